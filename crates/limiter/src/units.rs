//! The quantities of a decision: instants, durations, amounts.
//!
//! They are newtypes, so no signature takes two bare `u64`. Their arithmetic saturates: a clock
//! that jumps ten years or a hit count of 2^63 must end in a denial, never in a wrap-around or a
//! panic.
//!
//! [`Timestamp`] is wall-clock time and [`Monotonic`] is monotonic time. There is no conversion
//! between them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub const NANOS_PER_SEC: u64 = 1_000_000_000;

/// Wall-clock time: nanoseconds since the Unix epoch, until the year 2554.
///
/// Windows are aligned to the epoch, so nodes with synchronised clocks compute the same window
/// number without coordination.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch; also stands for "not yet" where a past instant is expected.
    pub const EPOCH: Self = Self(0);
    /// An instant that is never reached.
    pub const NEVER: Self = Self(u64::MAX);

    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Saturates at [`Timestamp::NEVER`].
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(NANOS_PER_SEC))
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Rounds down.
    pub const fn as_secs(self) -> u64 {
        self.0 / NANOS_PER_SEC
    }

    /// This instant moved `span` later, saturating at [`Timestamp::NEVER`].
    #[must_use]
    pub const fn plus(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// This instant moved `span` earlier, saturating at the epoch.
    #[must_use]
    pub const fn minus(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    /// The time from `earlier` to this instant; zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// The time between the two, whichever is earlier.
    pub const fn distance(self, other: Self) -> Span {
        Span(self.0.abs_diff(other.0))
    }
}

/// An instant on a monotonic clock: nanoseconds since an arbitrary start within the process.
///
/// Lease arithmetic and timeouts use it, because it never jumps and never runs backwards. Two
/// values compare only within one process, so it is never sent, stored or converted to a
/// [`Timestamp`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(u64);

impl Monotonic {
    pub const START: Self = Self(0);
    /// An instant that is never reached.
    pub const NEVER: Self = Self(u64::MAX);

    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Saturates at [`Monotonic::NEVER`].
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(NANOS_PER_SEC))
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This instant moved `span` later, saturating at [`Monotonic::NEVER`].
    #[must_use]
    pub const fn plus(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// This instant moved `span` earlier, saturating at [`Monotonic::START`].
    #[must_use]
    pub const fn minus(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    /// The time from `earlier` to this instant; zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

/// A duration in nanoseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Span(u64);

impl Span {
    pub const ZERO: Self = Self(0);
    /// 584 years.
    pub const MAX: Self = Self(u64::MAX);

    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Saturates at [`Span::MAX`].
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Saturates at [`Span::MAX`].
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(NANOS_PER_SEC))
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Rounds up, so that a reported wait is never too short.
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Rounds up, so that a reported wait is never too short.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(NANOS_PER_SEC)
    }

    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    pub const fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0)
    }
}

impl From<std::time::Duration> for Span {
    /// Saturates beyond 584 years.
    fn from(duration: std::time::Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Span {
    /// The largest unit that divides the span exactly: `90s`, `5m`, `1500ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let divides = |(unit, _): &&(u64, _)| self.0.is_multiple_of(*unit);
        match UNITS[1..].iter().find(divides) {
            Some((unit, name)) if self.0 > 0 => write!(f, "{}{name}", self.0 / unit),
            _ => f.write_str("0s"),
        }
    }
}

/// The text is not a valid [`Span`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write it as numbers with units: 400ms, 90s, 5m, 1h30m, 7d, 2w")]
pub struct ParseSpanError;

impl FromStr for Span {
    type Err = ParseSpanError;

    /// Parses one or more numbers with units: `400ms`, `90s`, `5m`, `1h30m`, `7d`, `2w`.
    ///
    /// # Errors
    ///
    /// Fails on any other text, and on a span longer than [`Span::MAX`].
    fn from_str(text: &str) -> Result<Self, ParseSpanError> {
        let mut rest = text;
        let mut nanos: u64 = 0;
        while !rest.is_empty() || text.is_empty() {
            let (number, after) = split_after(rest, |c| c.is_ascii_digit());
            let (unit, after) = split_after(after, |c| c.is_ascii_alphabetic());
            let unit = UNITS[..6].iter().find(|(_, name)| *name == unit);
            let part = number.parse::<u64>().ok().zip(unit);
            let part = part.and_then(|(number, (unit, _))| number.checked_mul(*unit));
            nanos = part.and_then(|part| nanos.checked_add(part)).ok_or(ParseSpanError)?;
            rest = after;
        }
        Ok(Self(nanos))
    }
}

/// Nanoseconds of each unit. Weeks are read but not printed, the last two printed but not read.
const UNITS: [(u64, &str); 8] = [
    (7 * 86_400 * NANOS_PER_SEC, "w"),
    (86_400 * NANOS_PER_SEC, "d"),
    (3_600 * NANOS_PER_SEC, "h"),
    (60 * NANOS_PER_SEC, "m"),
    (NANOS_PER_SEC, "s"),
    (1_000_000, "ms"),
    (1_000, "us"),
    (1, "ns"),
];

/// Splits `text` after its longest prefix of characters that all satisfy `fits`.
fn split_after(text: &str, fits: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !fits(c)).unwrap_or(text.len()))
}

/// The amount of one request: above zero it is *charged*, zero is a *peek*, below zero is a
/// *refund*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Hits(i64);

impl Hits {
    /// Reads the count without changing it.
    pub const PEEK: Self = Self(0);
    pub const ONE: Self = Self(1);

    pub const fn new(hits: i64) -> Self {
        Self(hits)
    }

    /// The amount to charge; zero for a peek and for a refund.
    pub const fn charge(self) -> u64 {
        if self.0 > 0 { self.0.unsigned_abs() } else { 0 }
    }

    /// The amount to refund; zero for a peek and for a charge.
    pub const fn refund(self) -> u64 {
        if self.0 < 0 { self.0.unsigned_abs() } else { 0 }
    }

    pub const fn get(self) -> i64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rounded_wait_is_never_shorter_than_the_exact_one() {
        assert_eq!(Span::from_nanos(1).as_secs_ceil(), 1);
        assert_eq!(Span::from_nanos(1).as_millis_ceil(), 1);
        assert_eq!(Span::from_nanos(NANOS_PER_SEC).as_secs_ceil(), 1);
        assert_eq!(Span::MAX.as_secs_ceil(), 18_446_744_074);
    }

    #[test]
    fn instants_saturate_instead_of_wrapping() {
        assert_eq!(Timestamp::from_secs(u64::MAX), Timestamp::NEVER);
        assert_eq!(Timestamp::NEVER.plus(Span::from_secs(1)), Timestamp::NEVER);
        assert_eq!(Timestamp::EPOCH.minus(Span::from_secs(1)), Timestamp::EPOCH);
        assert_eq!(Timestamp::EPOCH.since(Timestamp::from_secs(5)), Span::ZERO);
    }

    #[test]
    fn monotonic_instants_saturate_too() {
        assert_eq!(Monotonic::from_secs(u64::MAX), Monotonic::NEVER);
        assert_eq!(Monotonic::NEVER.plus(Span::from_secs(1)), Monotonic::NEVER);
        assert_eq!(Monotonic::START.minus(Span::from_secs(1)), Monotonic::START);
        assert_eq!(Monotonic::START.since(Monotonic::from_secs(5)), Span::ZERO);
    }

    #[test]
    fn spans_print_in_the_largest_exact_unit() {
        for (span, text) in [
            (Span::from_secs(90), "90s"),
            (Span::from_secs(300), "5m"),
            (Span::from_secs(86_400), "1d"),
            (Span::from_millis(1_500), "1500ms"),
            (Span::ZERO, "0s"),
        ] {
            assert_eq!(span.to_string(), text);
        }
    }

    #[test]
    fn durations_are_sums_of_numbers_with_units() {
        for (text, secs) in
            [("90s", 90), ("5m", 300), ("1h30m", 5_400), ("7d", 604_800), ("1w", 604_800)]
        {
            assert_eq!(text.parse(), Ok(Span::from_secs(secs)), "{text}");
        }
        assert_eq!("1500ms".parse(), Ok(Span::from_millis(1500)));
        for text in ["", "90", "s", "90 s", "-5s", "1.5h", "5M", "99999999999999999999s", "ſ"] {
            assert_eq!(text.parse::<Span>(), Err(ParseSpanError), "{text}");
        }
        assert_eq!("18446744073709551615d".parse::<Span>(), Err(ParseSpanError));
    }

    #[test]
    fn the_most_negative_refund_does_not_overflow() {
        assert_eq!(Hits::new(i64::MIN).refund(), 1 << 63);
        assert_eq!(Hits::new(i64::MIN).charge(), 0);
    }
}

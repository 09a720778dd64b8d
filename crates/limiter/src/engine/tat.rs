//! The instant that all bucket algorithms store, and exact arithmetic around it.
//!
//! # Idea
//!
//! A bucket that regains one hit every `T = window / limit` is described by a single instant: the
//! theoretical arrival time (TAT) at which it is idle again, that is full of tokens or empty of
//! water. A request moves it later.
//!
//! # Formula
//!
//! `T` is rarely a whole number of nanoseconds: 7 hits a second is one every 142,857,142 and 6/7
//! ns. Rounding `T` would let a polled bucket drift. So a TAT is stored as the exact fraction `ns +
//! rem / limit`, and sums are made in **ticks** of `1 / limit` ns, where everything is whole:
//!
//! ```text
//! one nanosecond = limit ticks          one hit = window ticks (window in ns)
//! debt           = max(0, TAT − now) in ticks
//! ```
//!
//! One hit is `window` ticks because `T × limit = window`. Only the final conversion back to
//! nanoseconds divides.
//!
//! # Example
//!
//! 7 hits a second, idle, one hit at `now = 0`: debt = 10⁹ ticks, so the TAT is
//! 10⁹ / 7 = 142,857,142 ns with `rem = 6`. Six hits later the debt is 7 × 10⁹ ticks and the TAT is
//! exactly 1 s with `rem = 0`: no fraction was lost.
//!
//! # Bound
//!
//! A debt is at most 2⁶⁴ ns × 2³² ticks, a cost at most 2⁶³ hits × 2⁵⁵ ticks: both fit in a `u128`,
//! and the usual ones in a `u64` (`Ticks`).
//!
//! # When a rule changes
//!
//! The state is a time, not a number of hits: a full bucket stays full when its limit is raised or
//! lowered, and is idle again at the same instant. `rem` is in units of the limit; it is cut to the
//! new limit, an error below one nanosecond.
//!
//! Source: ITU-T I.371 annex A for the TAT; the exact fraction is an addition.

use num_traits::{PrimInt, Unsigned};
use serde::{Deserialize, Serialize};

use crate::quota::Quota;
use crate::units::{Span, Timestamp};

/// A theoretical arrival time: the exact instant `ns + rem / limit` nanoseconds after the epoch.
///
/// Packed so that a [`State`](super::State) that holds it stays at 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(Rust, packed(4))]
pub struct Tat {
    ns: u64,
    rem: u32,
}

impl Tat {
    /// The instant `ns + rem / limit` nanoseconds after the epoch.
    pub const fn new(ns: u64, rem: u32) -> Self {
        Self { ns, rem }
    }

    /// The first whole nanosecond that is not before it.
    pub const fn ceil(self) -> Timestamp {
        Timestamp::from_nanos(self.ns.saturating_add((self.rem > 0) as u64))
    }

    pub(super) fn digest_words(self) -> [u64; 3] {
        [3, self.ns, u64::from(self.rem)]
    }
}

/// Converts hits and time of a quota to ticks and back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    ticks_per_ns: u32,
    ticks_per_hit: u64,
}

impl Rate {
    /// The rate of `quota`; `None` when its limit is zero, so that nothing ever drains.
    pub(super) fn of(quota: &Quota) -> Option<Self> {
        (quota.limit() > 0)
            .then(|| Self { ticks_per_ns: quota.limit(), ticks_per_hit: quota.window().as_nanos() })
    }

    /// The cost of `hits` in ticks.
    #[inline]
    pub(super) fn cost<T: Ticks>(self, hits: u64) -> Option<T> {
        T::from(hits)?.checked_mul(&T::from(self.ticks_per_hit)?)
    }

    /// The number of whole hits that cost at most `ticks`.
    #[inline]
    pub(super) fn hits<T: Ticks>(self, ticks: T) -> Option<u64> {
        (ticks / T::from(self.ticks_per_hit)?).to_u64()
    }

    /// How far `tat` lies ahead of `now`, in ticks.
    #[inline]
    pub(super) fn debt<T: Ticks>(self, tat: Option<Tat>, now: Timestamp) -> Option<T> {
        let Some(Tat { ns, rem }) = tat else { return Some(T::zero()) };
        let Some(ahead) = ns.checked_sub(now.as_nanos()) else { return Some(T::zero()) };
        let rem = rem.min(self.ticks_per_ns.saturating_sub(1));
        let whole = T::from(ahead)?.checked_mul(&T::from(self.ticks_per_ns)?)?;
        whole.checked_add(&T::from(rem)?)
    }

    /// The time in which `ticks` drain.
    #[inline]
    pub(super) fn wait<T: Ticks>(self, ticks: T) -> Option<Wait> {
        let per_ns = T::from(self.ticks_per_ns)?;
        Some(Wait { ns: (ticks / per_ns).to_u64(), rem: (ticks % per_ns).to_u32()? })
    }
}

/// Integers that hold ticks: 64 bits nearly always, whose divisions are one instruction; 128 where
/// those are too narrow. Every operation returns `None` on overflow.
pub(super) trait Ticks: PrimInt + Unsigned {}

impl Ticks for u64 {}
impl Ticks for u128 {}

/// An exact time from now: `ns + rem / limit` nanoseconds; `ns` is `None` beyond 64 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    ns: Option<u64>,
    rem: u32,
}

impl Wait {
    /// The TAT this far ahead of `now`; `None` beyond the end of representable time.
    pub(super) fn tat(self, now: Timestamp) -> Option<Tat> {
        Some(Tat { ns: now.as_nanos().checked_add(self.ns?)?, rem: self.rem })
    }

    /// The same in whole nanoseconds, rounded up.
    pub(super) fn span_ceil(self) -> Span {
        let ceil = |ns: u64| ns.saturating_add(u64::from(self.rem > 0));
        Span::from_nanos(self.ns.map_or(u64::MAX, ceil))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Algorithm;

    #[test]
    fn fractions_add_up_to_whole_seconds() {
        let quota = Quota::simple(Algorithm::Gcra, 7, Span::from_secs(1)).expect("valid");
        let rate = Rate::of(&quota).expect("a limit above zero");
        let mut tat = None;
        for _ in 0..7 {
            let debt: u64 = rate.debt(tat, Timestamp::EPOCH).expect("fits 64 bits");
            let debt = debt + rate.cost::<u64>(1).expect("fits 64 bits");
            tat = rate.wait(debt).and_then(|wait| wait.tat(Timestamp::EPOCH));
        }
        assert_eq!(tat, Some(Tat::new(1_000_000_000, 0)));
    }

    #[test]
    fn a_fraction_rounds_up_to_the_next_nanosecond() {
        assert_eq!(Tat::new(10, 0).ceil(), Timestamp::from_nanos(10));
        assert_eq!(Tat::new(10, 1).ceil(), Timestamp::from_nanos(11));
        assert_eq!(Tat::new(u64::MAX, 1).ceil(), Timestamp::NEVER);
    }

    #[test]
    fn a_lowered_limit_cuts_the_fraction_to_less_than_a_nanosecond() {
        let quota = Quota::simple(Algorithm::Gcra, 2, Span::from_secs(1)).expect("valid");
        let rate = Rate::of(&quota).expect("a limit above zero");
        assert_eq!(rate.debt(Some(Tat::new(5, u32::MAX)), Timestamp::EPOCH), Some(11_u64));
    }

    #[test]
    fn times_beyond_the_end_are_none_rather_than_wrapped() {
        let quota = Quota::simple(Algorithm::Gcra, 1, Span::from_secs(1)).expect("valid");
        let rate = Rate::of(&quota).expect("a limit above zero");
        let one = rate.cost::<u64>(1).and_then(|cost| rate.wait(cost)).expect("fits 64 bits");
        assert_eq!(one.tat(Timestamp::NEVER), None);
        let longest = rate.wait(u128::MAX).expect("fits 128 bits");
        assert_eq!(longest.tat(Timestamp::EPOCH), None);
    }
}

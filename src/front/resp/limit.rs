//! The limit in the arguments of `CL.THROTTLE key max_burst count period`, and its reply.
//!
//! # Idea
//!
//! redis-cell uses GCRA: `max_burst + 1` at once, and `count` per `period` seconds in the long run.
//! In strict mode the quota here is exactly the same:
//!
//! ```text
//! gcra: limit = count, window = period, burst = max_burst + 1
//! ```
//!
//! # Eventual keys
//!
//! The state of GCRA is one instant, and instants that several nodes advanced cannot be merged. So
//! with `resp.mode = "eventual"` a sliding window counter keeps the same burst and rate:
//!
//! ```text
//! L = max_burst + 1    W = L · period / count     at most L in each window of length W
//! W < 1 s:  L = ⌊count / period⌋, W = 1 s         a window has at least a second
//! ```
//!
//! `W` is rounded up to a millisecond. The rate `L / W` never exceeds `count / period`. An idle key
//! admits the same burst, or up to one second's worth when `W` is below a second.
//!
//! Example: `15 30 60` admits 16 per 32 s. `0 100 1` would be 1 per 10 ms; it is 100 per 1 s.
//!
//! # Bound
//!
//! That of the sliding window counter: `L` per window by its estimate, fewer than `2 · L` in any
//! interval of a window's length, and in addition what other nodes admit before their counts are
//! synchronised, as for every eventual rule.
//!
//! # The reply
//!
//! The five integers of redis-cell: limited (0 or 1), limit (`max_burst + 1`), remaining, seconds
//! to wait (-1 when it is allowed, and when it exceeds the limit itself), seconds until the full
//! limit is available again. Seconds are rounded up from nanoseconds; redis-cell truncates to
//! milliseconds first, so its wait can be up to 1 ms too short.
//!
//! Source: redis-cell 0.4, `src/lib.rs` and `src/cell/mod.rs`.

use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::policy::Mode;
use tidegate_limiter::quota::{self, Algorithm, Quota, QuotaParts, WINDOW_MAX, WINDOW_MIN};
use tidegate_limiter::units::{NANOS_PER_SEC, Span};

/// The arguments of `CL.THROTTLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleLimit {
    /// Requests admitted at once beyond the first.
    pub max_burst: i64,
    /// Requests per period in the long run.
    pub count: i64,
    /// In seconds.
    pub period: i64,
}

/// The arguments are no valid limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Nothing would ever be refilled; the error of redis-cell.
    #[error("Cell error: Zero rates are not supported")]
    ZeroRate,
    #[error("ERR {what} must be {min} to {max}")]
    OutOfRange { what: &'static str, min: i64, max: i64 },
    /// Each number is within its range, but their combination is not.
    #[error("ERR {0}")]
    Quota(quota::Error),
}

const COUNT_MAX: i64 = u32::MAX as i64;
const PERIOD_MAX: i64 = (WINDOW_MAX.as_nanos() / NANOS_PER_SEC).cast_signed();

impl ThrottleLimit {
    /// The quota of this limit in `mode`.
    ///
    /// # Errors
    ///
    /// A number is out of range, or the quota cannot be represented.
    pub fn quota(self, mode: Mode) -> Result<Quota, LimitError> {
        let Self { max_burst, count, period } = self;
        if count == 0 || period == 0 {
            return Err(LimitError::ZeroRate);
        }
        let burst = within("max_burst", max_burst, 0, COUNT_MAX - 1)? + 1;
        let count = within("count", count, 1, COUNT_MAX)?;
        let period = u64::from(within("period", period, 1, PERIOD_MAX)?);
        let parts = |algorithm, limit, window, burst| QuotaParts {
            algorithm,
            limit,
            window,
            burst,
            sub_windows: 1,
            queue: None,
        };
        let parts = match mode {
            Mode::Strict | Mode::Leased => {
                parts(Algorithm::Gcra, count, Span::from_secs(period), burst)
            }
            Mode::Eventual => {
                let millis = u128::from(burst) * u128::from(period) * 1_000;
                let millis = millis.div_ceil(u128::from(count));
                let window = Span::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
                let (limit, window) = if window < WINDOW_MIN {
                    // A window below a second means a rate above one per second.
                    (count / u32::try_from(period).unwrap_or(u32::MAX), WINDOW_MIN)
                } else {
                    (burst, window)
                };
                parts(Algorithm::SlidingWindowCounter, limit, window, limit)
            }
        };
        Quota::new(parts).map_err(LimitError::Quota)
    }
}

fn within(what: &'static str, value: i64, min: i64, max: i64) -> Result<u32, LimitError> {
    let fits = (min..=max).contains(&value).then(|| u32::try_from(value).ok()).flatten();
    fits.ok_or(LimitError::OutOfRange { what, min, max })
}

/// The reply to a verdict; `limit` is what is admitted at once.
#[inline]
pub fn reply(allowed: bool, limit: u32, verdict: &Verdict) -> [i64; 5] {
    let secs = |span: Span| i64::try_from(span.as_secs_ceil()).unwrap_or(i64::MAX);
    let retry = match verdict.retry {
        Retry::After(span) if !allowed => secs(span),
        Retry::After(_) | Retry::Now | Retry::Never => -1,
    };
    let remaining = i64::from(verdict.remaining);
    [i64::from(!allowed), i64::from(limit), remaining, retry, secs(verdict.reset)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(args: [i64; 3], mode: Mode) -> Result<Quota, String> {
        let [max_burst, count, period] = args;
        ThrottleLimit { max_burst, count, period }.quota(mode).map_err(|error| error.to_string())
    }

    #[test]
    fn a_strict_limit_is_the_same_gcra() {
        let quota = quota([15, 30, 60], Mode::Strict).unwrap();
        assert_eq!(quota.algorithm(), Algorithm::Gcra);
        assert_eq!((quota.limit(), quota.burst()), (30, 16));
        assert_eq!(quota.window(), Span::from_secs(60));
    }

    #[test]
    fn an_eventual_limit_has_the_same_burst_and_rate() {
        for (args, limit, millis) in [
            ([15, 30, 60], 16, 32_000),
            ([0, 100, 1], 100, 1_000),
            ([9, 10, 1], 10, 1_000),
            ([9, 100, 7], 14, 1_000),
            ([0, 3, 10], 1, 3_334),
        ] {
            let quota = quota(args, Mode::Eventual).unwrap();
            assert_eq!(quota.algorithm(), Algorithm::SlidingWindowCounter);
            assert_eq!((quota.limit(), quota.window()), (limit, Span::from_millis(millis)));
            let [_, count, period] = args.map(|n| u64::try_from(n).unwrap());
            assert!(u64::from(limit) * period * 1_000 <= count * millis, "{args:?}");
        }
    }

    #[test]
    fn invalid_limits_are_rejected() {
        for (args, text) in [
            ([15, 0, 60], "Cell error: Zero rates are not supported"),
            ([15, 30, 0], "Cell error: Zero rates are not supported"),
            ([-1, 30, 60], "ERR max_burst must be 0 to 4294967294"),
            ([i64::MAX, 30, 60], "ERR max_burst must be 0 to 4294967294"),
            ([15, -1, 60], "ERR count must be 1 to 4294967295"),
            ([15, 30, 34_560_001], "ERR period must be 1 to 34560000"),
        ] {
            for mode in [Mode::Strict, Mode::Eventual] {
                assert_eq!(quota(args, mode), Err(text.to_owned()));
            }
        }
        let error = quota([4_294_967_294, 1, 34_560_000], Mode::Strict).unwrap_err();
        assert!(
            error.starts_with("ERR 4294967295 hits at 1 per 400d take over 100 years"),
            "{error}"
        );
        assert!(quota([4_294_967_294, 1, 34_560_000], Mode::Eventual).is_err());
    }

    #[test]
    fn seconds_are_rounded_up_and_never_is_minus_one() {
        let verdict = |retry| Verdict {
            allowed: false,
            limit: 30,
            remaining: 0,
            reset: Span::from_nanos(2_000_000_001),
            retry,
            delay: Span::ZERO,
            excess: 1,
        };
        let soon = verdict(Retry::After(Span::from_nanos(1)));
        assert_eq!(reply(false, 16, &soon), [1, 16, 0, 1, 3]);
        assert_eq!(reply(false, 16, &verdict(Retry::Never)), [1, 16, 0, -1, 3]);
        assert_eq!(reply(true, 16, &verdict(Retry::Now)), [0, 16, 0, -1, 3]);
        // A rule in shadow mode always allows: there is nothing to wait for.
        assert_eq!(reply(true, 16, &soon), [0, 16, 0, -1, 3]);
    }
}

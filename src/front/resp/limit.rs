//! The limit that `CL.THROTTLE key max_burst count period` names, and what its verdict says.
//!
//! # Idea
//!
//! redis-cell limits by GCRA: `max_burst + 1` at once, and `count` per `period` seconds in the long
//! run. In strict mode ours is the same quota, exactly:
//!
//! ```text
//! gcra: limit = count, window = period, burst = max_burst + 1
//! ```
//!
//! # Eventual keys
//!
//! GCRA has one instant for a state, and instants that several nodes moved do not add up. So with
//! `resp.mode = "eventual"` the same burst and the same rate are held by a sliding window counter:
//!
//! ```text
//! L = max_burst + 1    W = L · period / count     at most L in each window of length W
//! W < 1 s:  L = ⌊count / period⌋, W = 1 s         a window has at least a second
//! ```
//!
//! `W` is rounded up to a millisecond. The rate `L / W` is never above `count / period`; an idle
//! key lets the same burst pass (more of it, up to a second's worth, when `W` is below a second).
//!
//! Example: `15 30 60` lets 16 pass in each 32 s. `0 100 1` would be 1 in 10 ms; it is 100 in 1 s.
//!
//! # Bound
//!
//! What the sliding window counter admits: `L` per window by its estimate, in any stretch as long
//! as a window fewer than `2 · L`, and on top what nodes admit that have not heard of each other
//! yet, as for every eventual rule.
//!
//! # The answer
//!
//! Five integers as redis-cell gives them: limited (0 or 1), limit (`max_burst + 1`), remaining,
//! seconds to wait (-1 when it was let through, and when it asks for more than the limit), seconds
//! until the whole limit is there again. Seconds are rounded up from the nanosecond; redis-cell
//! cuts off what is below a millisecond first, and so can name a wait up to 1 ms too short.
//!
//! Source: redis-cell 0.4, `src/lib.rs` and `src/cell/mod.rs`.

use std::fmt;

use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::policy::Mode;
use tidegate_limiter::quota::{self, Algorithm, Quota, QuotaParts, WINDOW_MAX, WINDOW_MIN};
use tidegate_limiter::units::{NANOS_PER_SEC, Span};

/// What a client names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// How many may come at once beyond the first.
    pub max_burst: i64,
    /// How many may come per period in the long run.
    pub count: i64,
    /// Seconds.
    pub period: i64,
}

/// Why it is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLimit {
    /// Nothing would ever come back; redis-cell's words.
    ZeroRate,
    /// A number outside of what it may be.
    Outside {
        /// Which.
        what: &'static str,
        /// From.
        min: i64,
        /// To.
        max: i64,
    },
    /// All are within their ranges, and do not go together.
    Quota(quota::Error),
}

impl fmt::Display for NoLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroRate => f.write_str("Cell error: Zero rates are not supported"),
            Self::Outside { what, min, max } => write!(f, "ERR {what} must be {min} to {max}"),
            Self::Quota(error) => write!(f, "ERR {error}"),
        }
    }
}

const COUNT_MAX: i64 = u32::MAX as i64;
const PERIOD_MAX: i64 = (WINDOW_MAX.as_nanos() / NANOS_PER_SEC).cast_signed();

impl Named {
    /// The quota that this is in `mode`.
    pub fn quota(self, mode: Mode) -> Result<Quota, NoLimit> {
        let Self { max_burst, count, period } = self;
        if count == 0 || period == 0 {
            return Err(NoLimit::ZeroRate);
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
            Mode::Strict => parts(Algorithm::Gcra, count, Span::from_secs(period), burst),
            Mode::Eventual => {
                let millis = u128::from(burst) * u128::from(period) * 1_000;
                let millis = millis.div_ceil(u128::from(count));
                let window = Span::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
                let (limit, window) = if window < WINDOW_MIN {
                    // The window is short, so the rate is above one a second.
                    (count / u32::try_from(period).unwrap_or(u32::MAX), WINDOW_MIN)
                } else {
                    (burst, window)
                };
                parts(Algorithm::SlidingWindowCounter, limit, window, limit)
            }
        };
        Quota::new(parts).map_err(NoLimit::Quota)
    }
}

fn within(what: &'static str, value: i64, min: i64, max: i64) -> Result<u32, NoLimit> {
    let fits = (min..=max).contains(&value).then(|| u32::try_from(value).ok()).flatten();
    fits.ok_or(NoLimit::Outside { what, min, max })
}

/// The five integers of a verdict under a limit of `limit` at once.
#[inline]
pub fn five(allowed: bool, limit: u32, verdict: &Verdict) -> [i64; 5] {
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

    fn quota(named: [i64; 3], mode: Mode) -> Result<Quota, String> {
        let [max_burst, count, period] = named;
        Named { max_burst, count, period }.quota(mode).map_err(|error| error.to_string())
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
        for (named, limit, millis) in [
            ([15, 30, 60], 16, 32_000),
            ([0, 100, 1], 100, 1_000),
            ([9, 10, 1], 10, 1_000),
            ([9, 100, 7], 14, 1_000),
            ([0, 3, 10], 1, 3_334),
        ] {
            let quota = quota(named, Mode::Eventual).unwrap();
            assert_eq!(quota.algorithm(), Algorithm::SlidingWindowCounter);
            assert_eq!((quota.limit(), quota.window()), (limit, Span::from_millis(millis)));
            let [_, count, period] = named.map(|n| u64::try_from(n).unwrap());
            assert!(u64::from(limit) * period * 1_000 <= count * millis, "{named:?}");
        }
    }

    #[test]
    fn what_is_no_limit_says_why() {
        for (named, text) in [
            ([15, 0, 60], "Cell error: Zero rates are not supported"),
            ([15, 30, 0], "Cell error: Zero rates are not supported"),
            ([-1, 30, 60], "ERR max_burst must be 0 to 4294967294"),
            ([i64::MAX, 30, 60], "ERR max_burst must be 0 to 4294967294"),
            ([15, -1, 60], "ERR count must be 1 to 4294967295"),
            ([15, 30, 34_560_001], "ERR period must be 1 to 34560000"),
        ] {
            for mode in [Mode::Strict, Mode::Eventual] {
                assert_eq!(quota(named, mode), Err(text.to_owned()));
            }
        }
        let far = quota([4_294_967_294, 1, 34_560_000], Mode::Strict).unwrap_err();
        assert!(far.starts_with("ERR 4294967295 hits at 1 per 400d take over 100 years"), "{far}");
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
        assert_eq!(five(false, 16, &soon), [1, 16, 0, 1, 3]);
        assert_eq!(five(false, 16, &verdict(Retry::Never)), [1, 16, 0, -1, 3]);
        assert_eq!(five(true, 16, &verdict(Retry::Now)), [0, 16, 0, -1, 3]);
        // A rule in shadow mode lets it pass whatever its limit says: there is nothing to wait for.
        assert_eq!(five(true, 16, &soon), [0, 16, 0, -1, 3]);
    }
}

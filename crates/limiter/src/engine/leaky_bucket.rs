//! The leaky bucket: a level that drains at the rate, as a meter or as a queue.
//!
//! # Idea
//!
//! A bucket leaks one hit every `T = window / limit`; a request adds its hits. *As a meter* a
//! request that would overflow the bucket is denied, and a request that fits passes at once. *As a
//! queue* (`queue: N`) hits pass one by one, `T` apart; the verdict on a request that finds others
//! before it holds the delay, and at most `N` hits may wait.
//!
//! # Formula
//!
//! ```text
//! level(now) = max(0, level(then) − (now − then) / T)
//!
//! meter:  admit n ⇔ level + n ≤ burst                        delay = 0
//! queue:  admit n ⇔ level + n ≤ N + 1                        delay = (level + n − 1)·T
//!
//! retry = (level + n − size)·T      with size = burst or N + 1; never when n > size
//! reset = level·T
//! ```
//!
//! The queue's extra hit above `N` is the one that passes without waiting. A request of several
//! hits passes as a whole, when the last of them may: the delay is that of its last hit.
//! `remaining` is how many more hits would be admitted now, to pass or to wait. The delay is
//! rounded up to a nanosecond, so hits leave at the rate and never early.
//!
//! # Example
//!
//! 10 a second with `queue: 2`, so `T` = 100 ms. Four requests at 0 ms: the first passes at once,
//! the second after 100 ms, the third after 200 ms; the fourth finds two waiting and is denied,
//! retry after 100 ms. At 150 ms the level is 1.5, and a request is admitted with a delay of 150
//! ms, so it passes at 300 ms.
//!
//! # Bound
//!
//! Meter: in any interval of length `t` at most `burst + t/T` hits pass. Queue: after a request at
//! most `t/T` hits pass in the next `t`, plus a nanosecond of rounding.
//!
//! Source: Turner 1986 for the meter (ITU-T I.371 annex A.1.2, "continuous-state leaky bucket");
//! nginx `limit_req` for the queue with a bounded wait.

use super::bucket;
use super::state::State;
use super::tat::{Rate, Tat, Wait};
use super::verdict::Update;
use crate::quota::Quota;
use crate::units::{Hits, Span, Timestamp};

#[inline]
pub(super) fn evaluate(state: &State, quota: &Quota, hits: Hits, now: Timestamp) -> Update<Tat> {
    let (next, mut verdict) = bucket::evaluate(state, quota, quota.capacity(), hits, now);
    if let (Some(_), true, Some(before_last), Some(rate)) =
        (quota.queue(), verdict.allowed, hits.charge().checked_sub(1), Rate::of(quota))
    {
        let wait = || {
            let level: u128 = rate.debt(bucket::tat(state), now)?;
            rate.wait(level + rate.cost::<u128>(before_last)?)
        };
        verdict.delay = wait().map_or(Span::ZERO, Wait::span_ceil);
    }
    (next, verdict)
}

#[cfg(test)]
mod tests {
    use super::super::{Retry, decide};
    use super::*;
    use crate::quota::{Algorithm, QuotaParts};

    fn queue(waiting: u32) -> Quota {
        Quota::new(QuotaParts {
            algorithm: Algorithm::LeakyBucket,
            limit: 10,
            window: Span::from_secs(1),
            burst: 10,
            sub_windows: 1,
            queue: Some(waiting),
        })
        .expect("a valid quota")
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::EPOCH.plus(Span::from_millis(ms))
    }

    #[test]
    fn the_worked_example_holds() {
        let (quota, mut state) = (queue(2), State::Absent);
        for delay_ms in [0, 100, 200] {
            let verdict = decide(&mut state, &quota, Hits::ONE, at(0));
            assert_eq!((verdict.allowed, verdict.delay), (true, Span::from_millis(delay_ms)));
        }
        let denied = decide(&mut state, &quota, Hits::ONE, at(0));
        assert_eq!(denied.retry, Retry::After(Span::from_millis(100)));
        assert_eq!(denied.delay, Span::ZERO);
        let later = decide(&mut state, &quota, Hits::ONE, at(150));
        assert_eq!(later.delay, Span::from_millis(150));
    }

    #[test]
    fn a_request_of_several_hits_waits_for_its_last() {
        let (quota, mut state) = (queue(2), State::Absent);
        let three = decide(&mut state, &quota, Hits::new(3), at(0));
        assert_eq!((three.allowed, three.delay), (true, Span::from_millis(200)));
        assert_eq!(decide(&mut state, &quota, Hits::new(4), at(9_000)).retry, Retry::Never);
    }

    #[test]
    fn a_queue_in_which_none_may_wait_still_lets_hits_pass_one_by_one() {
        let (quota, mut state) = (queue(0), State::Absent);
        assert!(decide(&mut state, &quota, Hits::ONE, at(0)).allowed);
        let second = decide(&mut state, &quota, Hits::ONE, at(40));
        assert_eq!(second.retry, Retry::After(Span::from_millis(60)));
    }
}

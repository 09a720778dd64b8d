//! The sliding window log: every admitted hit is stored until it is a window old.
//!
//! # Idea
//!
//! The only exact answer to "how many in the last minute?" is to store the times. Memory grows with
//! the limit, so [`Quota::new`] rejects limits above
//! [`LOG_LIMIT_MAX`](crate::quota::LOG_LIMIT_MAX).
//!
//! # Formula
//!
//! ```text
//! live      = hits with time in (now − window, now]      a hit at t leaves at t + window exactly
//! admit n   ⇔ live + n ≤ limit
//! remaining = limit − live
//! retry     = when enough of the oldest have left: tⱼ + window − now, where j is the first with
//!             h₁ + … + hⱼ ≥ live + n − limit;  never when n > limit
//! reset     = newest + window − now
//! ```
//!
//! Denied requests leave no entry.
//!
//! # Example
//!
//! 3 a minute. Hits at 0 s, 10 s and 50 s pass. A request at 55 s is denied, retry after 5 s; a
//! request for two is denied too, retry after 15 s, when the second hit leaves.
//!
//! # Bound
//!
//! At most `limit` hits in every interval as long as a window. 16 bytes an entry, at most `limit`
//! entries, of a smaller limit 1,024 with costs of work that was done;
//! expired entries are freed by later requests for the same key.
//!
//! Source: Figma, "An alternative approach to rate limiting", 2017, which names the algorithm and
//! its cost.

use super::log::{ENTRIES_MAX, Log};
use super::state::State;
use super::verdict::{Retry, Verdict};
use crate::quota::Quota;
use crate::units::{Hits, Span, Timestamp};

/// Most entries of a log with a smaller limit, which only costs of work that was done need. Beyond
/// it the oldest share one; of copies of such a log another owner may count some hits twice.
const OVERRUN_ENTRIES_MAX: usize = 1_024;

/// Decides one request and counts it.
pub(super) fn decide(state: &mut State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
    let verdict = preview(state, quota, hits, now);
    if hits == Hits::PEEK {
        return verdict;
    }
    if let State::Log(log) = state {
        let at = log.effective(now);
        log.drop_expired(at, quota.window());
        if hits.refund() > 0 {
            log.refund(hits.refund());
        }
    }
    if !verdict.allowed || hits.charge() == 0 {
        return verdict;
    }
    if !matches!(state, State::Log(_)) {
        *state = State::Log(Box::default());
    }
    if let State::Log(log) = state {
        let at = log.effective(now);
        log.record(u32::try_from(hits.charge()).unwrap_or(u32::MAX), at);
    }
    verdict
}

/// Counts `hits` whatever is left.
pub(super) fn charge_in_full(state: &mut State, quota: &Quota, hits: Hits, now: Timestamp) {
    if hits.charge() == 0 {
        return;
    }
    if !matches!(state, State::Log(_)) {
        *state = State::Log(Box::default());
    }
    if let State::Log(log) = state {
        let at = log.effective(now);
        log.drop_expired(at, quota.window());
        log.record(u32::try_from(hits.charge()).unwrap_or(u32::MAX), at);
        let most = usize::try_from(quota.limit()).unwrap_or(ENTRIES_MAX);
        log.join_oldest(most.max(OVERRUN_ENTRIES_MAX));
    }
}

/// Returns the verdict that [`decide`] would give, without counting.
pub(super) fn preview(state: &State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
    let empty = Log::default();
    let log = if let State::Log(log) = state { log } else { &empty };
    let (limit, window) = (u64::from(quota.limit()), quota.window());
    let at = log.effective(now);
    let live = log.live(at, window);
    let after = live.saturating_sub(hits.refund()).saturating_add(hits.charge());

    let retry = if after <= limit || hits.refund() > 0 {
        Retry::Now
    } else if hits.charge() > limit {
        Retry::Never
    } else {
        log.expiry_of_oldest(after - limit, at, window)
            .map_or(Retry::Never, |end| Retry::After(end.since(now).max(Span::from_nanos(1))))
    };
    let allowed = retry == Retry::Now;
    let used = if allowed { after } else { live };
    let reset = if allowed && hits.charge() > 0 {
        at.plus(window).since(now)
    } else {
        log.expiry_of_newest(hits.refund(), at, window).map_or(Span::ZERO, |end| end.since(now))
    };
    Verdict::new(quota, hits, limit.saturating_sub(used), reset, retry)
}

#[cfg(test)]
mod tests {
    use super::super::decide;
    use super::*;
    use crate::quota::Algorithm;

    fn quota(limit: u32) -> Quota {
        Quota::simple(Algorithm::SlidingWindowLog, limit, Span::from_secs(60)).expect("valid")
    }

    #[test]
    fn the_worked_example_holds() {
        let (quota, mut state) = (quota(3), State::Absent);
        for secs in [0, 10, 50] {
            assert!(decide(&mut state, &quota, Hits::ONE, Timestamp::from_secs(secs)).allowed);
        }
        let now = Timestamp::from_secs(55);
        let one = decide(&mut state, &quota, Hits::ONE, now);
        assert_eq!(one.retry, Retry::After(Span::from_secs(5)));
        let two = decide(&mut state, &quota, Hits::new(2), now);
        assert_eq!(two.retry, Retry::After(Span::from_secs(15)));
        assert_eq!(two.reset, Span::from_secs(55));
    }

    #[test]
    fn hits_of_one_instant_share_an_entry() {
        let (quota, mut one_by_one) = (quota(100), State::Absent);
        for _ in 0..40 {
            decide(&mut one_by_one, &quota, Hits::ONE, Timestamp::from_secs(1));
        }
        let mut at_once = State::Absent;
        decide(&mut at_once, &quota, Hits::new(40), Timestamp::from_secs(1));
        assert_eq!(one_by_one, at_once);
    }

    #[test]
    fn a_denied_request_advances_the_time_of_the_log() {
        let (quota, mut state) = (quota(10), State::Absent);
        let at = Timestamp::from_secs;
        assert!(decide(&mut state, &quota, Hits::new(10), at(0)).allowed);
        assert!(!decide(&mut state, &quota, Hits::new(11), at(61)).allowed);
        // The clock steps back to a time at which the first ten, already dropped, would still
        // count.
        assert!(decide(&mut state, &quota, Hits::new(10), at(5)).allowed);
        let denied = decide(&mut state, &quota, Hits::ONE, at(66));
        assert_eq!(denied.retry, Retry::After(Span::from_secs(55)));
    }

    #[test]
    fn costs_that_are_given_back_leave_what_was_counted_before() {
        for (limit, before, cost) in [(20, 8, 20), (20, 8, 1), (1_000, 400, 30_000)] {
            let (quota, mut state) = (quota(limit), State::Absent);
            let at = |ms: u64| Timestamp::from_nanos(ms * 1_000_000);
            for ms in 0..before {
                assert!(decide(&mut state, &quota, Hits::ONE, at(ms)).allowed);
            }
            let mut given_back = 0;
            for ms in 0..30 {
                charge_in_full(&mut state, &quota, Hits::new(cost), at(2_000 + ms));
                given_back += cost;
            }
            let State::Log(log) = &state else { panic!("no log") };
            assert!(log.len() <= usize::try_from(before).expect("small") + 30);
            decide(&mut state, &quota, Hits::new(-given_back), at(3_000));
            let left = preview(&state, &quota, Hits::PEEK, at(3_000)).remaining;
            assert_eq!(u64::from(left), u64::from(limit) - before, "{limit} {before} {cost}");
        }
    }

    #[test]
    fn a_larger_limit_finds_what_was_counted_beyond_the_smaller_one() {
        let (small, mut state) = (quota(20), State::Absent);
        let at = Timestamp::from_secs;
        for secs in 0..18 {
            assert!(decide(&mut state, &small, Hits::ONE, at(secs)).allowed);
        }
        charge_in_full(&mut state, &small, Hits::new(20), at(20));
        assert_eq!(preview(&state, &quota(60), Hits::PEEK, at(21)).remaining, 22);
    }
}

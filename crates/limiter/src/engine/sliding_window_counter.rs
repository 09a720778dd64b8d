//! The sliding window counter: this window's count plus the part of the last one that still
//! overlaps.
//!
//! # Idea
//!
//! A fixed window lets twice the limit pass around its edge. Remembering the previous window's
//! count and assuming that its hits were spread evenly gives nearly the answer of a log at the
//! price of two numbers. With `sub_windows: N` the same is done over `N` slices, so that only one
//! slice of the window is estimated and the rest is counted ([`super::sub_windows`]).
//!
//! # Formula
//!
//! ```text
//! e         = now − ⌊now / window⌋·window
//! used      = current + previous × (window − e) / window
//! admit n   ⇔ used + n ≤ limit                 exact: both sides times window, no division
//! remaining = ⌊limit − used⌋
//! retry     = the first nanosecond at which the same n fits, by solving the line above;
//!             it may lie in the next window or the one after; never when n > limit
//! reset     = when the newest hit no longer overlaps
//! ```
//!
//! Refused asks are not counted.
//!
//! # Example
//!
//! 100 a minute, 80 hits in the last window, 30 so far in this one, 15 s of which have passed:
//! `used = 30 + 80 × 45/60 = 90`, so 10 more fit. An ask for 20 is refused; it fits when
//! `80 × (60 − e)/60 ≤ 50`, at `e = 22.5 s`: retry after 7.5 s.
//!
//! # Bound
//!
//! In any stretch as long as a window at most `limit` plus the hits of one slice pass, so fewer
//! than `2 × limit`; when hits arrive evenly the error vanishes. The worst case is a slice whose
//! hits all came at its end.
//!
//! Source: Cloudflare, "How we built rate limiting capable of scaling to millions of domains",
//! 2017.

use super::slots::Slots;
use super::{State, Step, fixed_window};
use crate::quota::Quota;
use crate::units::{Hits, Timestamp};

/// Asks for `hits` at `now`, over one whole window.
pub(super) fn step(state: &State, quota: &Quota, hits: Hits, now: Timestamp) -> Step {
    let (index, prev, cur) = roll(state, fixed_window::index_at(now, quota));
    let counts = [u64::from(cur), u64::from(prev)];
    let span = quota.window().as_nanos().max(1);

    if hits.refund() > 0 {
        let from_cur = hits.refund().min(u64::from(cur));
        let from_prev = (hits.refund() - from_cur).min(u64::from(prev));
        let counts = [u64::from(cur) - from_cur, u64::from(prev) - from_prev];
        let verdict =
            Slots { span, index: u64::from(index), counts: &counts, now }.judge(quota, hits);
        let next = (from_cur + from_prev > 0).then(|| counter(index, counts));
        return (next, verdict);
    }
    let verdict = Slots { span, index: u64::from(index), counts: &counts, now }.judge(quota, hits);
    let counted = verdict.allowed && hits != Hits::PEEK;
    let next =
        counted.then(|| counter(index, [u64::from(cur).saturating_add(hits.charge()), counts[1]]));
    (next, verdict)
}

/// When a counter whose current window is `index` no longer matters.
pub(super) fn absent_at(index: u32, quota: &Quota) -> Timestamp {
    match index.checked_add(1) {
        Some(next) => fixed_window::end(next, quota),
        None => Timestamp::NEVER,
    }
}

/// The counter as it stands in window `present`, or in the later one that it has seen.
fn roll(state: &State, present: u32) -> (u32, u32, u32) {
    let State::SlidingCounter { index, prev, cur } = *state else { return (present, 0, 0) };
    match present.saturating_sub(index) {
        0 => (index, prev, cur),
        1 => (present, cur, 0),
        _ => (present, 0, 0),
    }
}

fn counter(index: u32, [cur, prev]: [u64; 2]) -> State {
    let narrow = |count| u32::try_from(count).unwrap_or(u32::MAX);
    State::SlidingCounter { index, prev: narrow(prev), cur: narrow(cur) }
}

#[cfg(test)]
mod tests {
    use super::super::{Retry, decide};
    use super::*;
    use crate::quota::Algorithm;
    use crate::units::Span;

    #[test]
    fn the_worked_example_holds() {
        let quota = Quota::simple(Algorithm::SlidingWindowCounter, 100, Span::from_secs(60))
            .expect("a valid quota");
        let mut state = State::SlidingCounter { index: 1, prev: 80, cur: 30 };
        let now = Timestamp::from_secs(75);
        assert_eq!(decide(&mut state, &quota, Hits::PEEK, now).remaining, 10);
        let refused = decide(&mut state, &quota, Hits::new(20), now);
        assert_eq!(refused.retry, Retry::After(Span::from_millis(7_500)));
        assert!(decide(&mut state, &quota, Hits::new(10), now).allowed);
    }

    #[test]
    fn the_retry_time_may_lie_two_windows_ahead() {
        let quota = Quota::simple(Algorithm::SlidingWindowCounter, 10, Span::from_secs(60))
            .expect("a valid quota");
        let mut state = State::SlidingCounter { index: 0, prev: 0, cur: 10 };
        let refused = decide(&mut state, &quota, Hits::new(10), Timestamp::EPOCH);
        assert_eq!(refused.retry, Retry::After(Span::from_secs(120)));
    }

    #[test]
    fn a_refund_empties_the_current_window_before_the_last() {
        let quota = Quota::simple(Algorithm::SlidingWindowCounter, 100, Span::from_secs(60))
            .expect("a valid quota");
        let mut state = State::SlidingCounter { index: 1, prev: 80, cur: 30 };
        decide(&mut state, &quota, Hits::new(-40), Timestamp::from_secs(75));
        assert_eq!(state, State::SlidingCounter { index: 1, prev: 70, cur: 0 });
    }
}

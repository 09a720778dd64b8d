//! The sliding window counter: the count of this window plus the part of the previous one that
//! still overlaps.
//!
//! # Idea
//!
//! A fixed window lets twice the limit pass around its edge. Storing the count of the previous
//! window and assuming that its hits were spread evenly gives nearly the accuracy of a log at the
//! cost of two numbers. With `sub_windows: N` the same is done over `N` slices, so that only one
//! slice of the window is estimated and the others are counted exactly ([`super::sub_windows`]).
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
//! `engine/slices.rs` holds the arithmetic for any `N`. Denied requests are not counted.
//!
//! # Example
//!
//! 100 a minute, 80 hits in the previous window, 30 so far in this one, 15 s of which have passed:
//! `used = 30 + 80 × 45/60 = 90`, so 10 more fit. A request for 20 is denied; it fits when
//! `80 × (60 − e)/60 ≤ 50`, at `e = 22.5 s`: retry after 7.5 s.
//!
//! # Bound
//!
//! In any interval as long as a window at most `limit` plus the hits of one slice pass, so fewer
//! than `2 × limit`; when hits arrive evenly the error vanishes. The worst case is a slice whose
//! hits all came at its end.
//!
//! Source: Cloudflare, "How we built rate limiting capable of scaling to millions of domains",
//! 2017.

use smallvec::SmallVec;

use super::fixed_window;
use super::slices::{Slices, take_refund};
use super::state::State;
use super::sub_windows::SubWindows;
use super::verdict::{Update, Verdict};
use crate::quota::Quota;
use crate::units::{Hits, Timestamp};

/// Number of the current window, hits of the previous one, hits of the current one.
pub(super) type Counts = (u32, u32, u32);

/// Evaluates a request over one slice, the whole window.
pub(super) fn evaluate(state: &State, quota: &Quota, hits: Hits, now: Timestamp) -> Update<State> {
    let (index, prev, cur) = advance(state.counts(), fixed_window::index_at(now, quota));
    let before = [u64::from(cur), u64::from(prev)];
    let mut counts = before;
    if hits.refund() > 0 {
        take_refund(&mut counts, hits.refund());
    }
    let slice_ns = quota.window().as_nanos().max(1);
    let verdict =
        Slices { slice_ns, index: u64::from(index), counts: &counts, now }.verdict(quota, hits);
    counts[0] = counts[0].saturating_add(hits.charge());
    let next = (verdict.allowed && counts != before).then(|| state_of(index, counts));
    (next, verdict)
}

/// The counts after hits that were allowed at `now`, or a refund.
pub(super) fn counted(counts: Counts, quota: &Quota, hits: Hits, now: Timestamp) -> Counts {
    let (index, prev, cur) = advance(Some(counts), fixed_window::index_at(now, quota));
    let mut counts = [u64::from(cur), u64::from(prev)];
    take_refund(&mut counts, hits.refund());
    (index, narrow(counts[1]), narrow(counts[0].saturating_add(hits.charge())))
}

/// Decides a request over `sub_windows` slices and counts it.
pub(super) fn decide_sliced(
    state: &mut State,
    quota: &Quota,
    hits: Hits,
    now: Timestamp,
) -> Verdict {
    let fits = matches!(state, State::SubWindows(slices) if slices.fits(quota));
    let verdict = preview_sliced(state, quota, hits, now);
    if hits == Hits::PEEK || !verdict.allowed || (hits.refund() > 0 && !fits) {
        return verdict;
    }
    if !fits {
        *state = State::SubWindows(Box::new(SubWindows::new(quota)));
    }
    if let State::SubWindows(slices) = state {
        slices.count(hits, now);
    }
    verdict
}

/// Returns the verdict that [`decide_sliced`] would give, without counting.
pub(super) fn preview_sliced(state: &State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
    let slice_ns = quota.slice().as_nanos();
    let present = now.as_nanos() / slice_ns;
    let mut counts: SmallVec<[u64; 16]> =
        SmallVec::from_elem(0, usize::from(quota.sub_windows()) + 1);
    let index = match state {
        State::SubWindows(slices) if slices.fits(quota) => slices.copy_at(present, &mut counts),
        _ => present,
    };
    take_refund(&mut counts, hits.refund());
    Slices { slice_ns, index, counts: &counts, now }.verdict(quota, hits)
}

/// From this instant on a counter whose current window is `index` does not matter.
pub(super) fn expires_at(index: u32, quota: &Quota) -> Timestamp {
    index.checked_add(1).map_or(Timestamp::NEVER, |next| fixed_window::end(next, quota))
}

/// The counts as of window `present`, or of a later one that was counted in already.
pub(super) fn advance(counts: Option<Counts>, present: u32) -> Counts {
    let Some((index, prev, cur)) = counts else { return (present, 0, 0) };
    match present.saturating_sub(index) {
        0 => (index, prev, cur),
        1 => (present, cur, 0),
        _ => (present, 0, 0),
    }
}

fn state_of(index: u32, [cur, prev]: [u64; 2]) -> State {
    State::SlidingCounter { index, prev: narrow(prev), cur: narrow(cur) }
}

fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::{Retry, decide};
    use super::*;
    use crate::quota::{Algorithm, QuotaParts};
    use crate::units::Span;

    #[test]
    fn the_worked_example_holds() {
        let quota = Quota::simple(Algorithm::SlidingWindowCounter, 100, Span::from_secs(60))
            .expect("a valid quota");
        let mut state = State::SlidingCounter { index: 1, prev: 80, cur: 30 };
        let now = Timestamp::from_secs(75);
        assert_eq!(decide(&mut state, &quota, Hits::PEEK, now).remaining, 10);
        let denied = decide(&mut state, &quota, Hits::new(20), now);
        assert_eq!(denied.retry, Retry::After(Span::from_millis(7_500)));
        assert!(decide(&mut state, &quota, Hits::new(10), now).allowed);
    }

    #[test]
    fn the_retry_time_may_lie_two_windows_ahead() {
        let quota = Quota::simple(Algorithm::SlidingWindowCounter, 10, Span::from_secs(60))
            .expect("a valid quota");
        let mut state = State::SlidingCounter { index: 0, prev: 0, cur: 10 };
        let denied = decide(&mut state, &quota, Hits::new(10), Timestamp::EPOCH);
        assert_eq!(denied.retry, Retry::After(Span::from_secs(120)));
    }

    #[test]
    fn a_refund_empties_the_current_window_before_the_last() {
        let quota = Quota::simple(Algorithm::SlidingWindowCounter, 100, Span::from_secs(60))
            .expect("a valid quota");
        let mut state = State::SlidingCounter { index: 1, prev: 80, cur: 30 };
        decide(&mut state, &quota, Hits::new(-40), Timestamp::from_secs(75));
        assert_eq!(state, State::SlidingCounter { index: 1, prev: 70, cur: 0 });
    }

    #[test]
    fn hits_of_a_sliced_window_expire_slice_by_slice() {
        let quota = Quota::new(QuotaParts {
            algorithm: Algorithm::SlidingWindowCounter,
            limit: 10,
            window: Span::from_secs(60),
            burst: 10,
            sub_windows: 6,
            queue: None,
        })
        .expect("a valid quota");
        let mut state = State::Absent;
        let full = decide_sliced(&mut state, &quota, Hits::new(10), Timestamp::from_secs(5));
        assert!(full.allowed);
        let left =
            |secs| preview_sliced(&state, &quota, Hits::PEEK, Timestamp::from_secs(secs)).remaining;
        assert_eq!([left(59), left(60), left(65), left(69), left(70)], [0, 0, 5, 9, 10]);
    }
}

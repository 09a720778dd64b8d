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
//! `engine/slices.rs` holds the arithmetic for any `N`. Denied requests are not counted. Near its
//! limit a strict counter of two counts knows when each hit passed ([`super::fine_window`]).
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

use std::sync::Arc;

use smallvec::SmallVec;

use super::fine_keys::FineKeys;
use super::fine_window::FineWindow;
use super::slices::{Slices, take_refund};
use super::state::State;
use super::sub_windows::SubWindows;
use super::verdict::{Update, Verdict};
use super::windows::{self, TwoCounts};
use crate::quota::Quota;
use crate::units::{Hits, Timestamp};

/// Decides one request and counts it.
#[inline]
pub(super) fn decide(state: &mut State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
    if quota.sub_windows() > 1 {
        return decide_sliced(state, quota, hits, now);
    }
    if let State::FineWindow(fine) = state
        && fine.fits(quota)
    {
        let verdict = fine.verdict(quota, hits, now);
        let is_counted = verdict.allowed && hits != Hits::PEEK;
        if is_counted && !fine.count(quota, hits, now) {
            *state = state.copy();
        }
        return verdict;
    }
    let (next, verdict) = evaluate(state, quota, hits, now);
    if let Some(next) = next {
        *state = next;
    }
    verdict
}

/// Counts `hits` whatever is left, if the counter has a ring; returns whether it has.
pub(super) fn charge_ring_in_full(
    state: &mut State,
    quota: &Quota,
    hits: Hits,
    now: Timestamp,
) -> bool {
    let State::FineWindow(fine) = state else { return false };
    if !fine.fits(quota) {
        return false;
    }
    if !fine.count(quota, hits, now) {
        *state = state.copy();
    }
    true
}

/// Returns the verdict that [`decide`] would give, without counting.
pub(super) fn preview(state: &State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
    match state {
        _ if quota.sub_windows() > 1 => preview_sliced(state, quota, hits, now),
        State::FineWindow(fine) if fine.fits(quota) => fine.verdict(quota, hits, now),
        _ => evaluate(state, quota, hits, now).1,
    }
}

/// From this instant on a counter whose current window is `index` does not matter.
pub(super) fn expires_at(index: u32, quota: &Quota) -> Timestamp {
    index.checked_add(1).map_or(Timestamp::NEVER, |next| windows::end(next, quota))
}

// === impl State ===

impl State {
    /// Begins a ring if the counts are near the limit, and if `keys` has room.
    pub fn refine(&mut self, quota: &Quota, now: Timestamp, keys: &Arc<FineKeys>) {
        if let Self::SlidingCounter { index, prev, cur } = *self {
            self.begin_ring(TwoCounts { index, prev, cur }, (quota, 0), now, keys);
        }
    }

    /// Begins a ring for a cost that exceeds what is left, before it is counted; afterwards its
    /// counts would be beyond the limit, and have none. Any other begins one as a check does.
    pub fn refine_for_cost(
        &mut self,
        quota: &Quota,
        cost: Hits,
        now: Timestamp,
        keys: &Arc<FineKeys>,
    ) {
        let counts = match *self {
            Self::Absent => TwoCounts::none(windows::index_at(now, quota)),
            Self::SlidingCounter { index, prev, cur } => TwoCounts { index, prev, cur },
            _ => return,
        };
        if !preview(self, quota, cost, now).allowed {
            self.begin_ring(counts, (quota, cost.charge()), now, keys);
        }
    }

    fn begin_ring(
        &mut self,
        counts: TwoCounts,
        (quota, about_to_pass): (&Quota, u64),
        now: Timestamp,
        keys: &Arc<FineKeys>,
    ) {
        if let Some(fine) = FineWindow::begin(counts, quota, about_to_pass, now, keys) {
            *self = Self::FineWindow(Box::new(fine));
        }
    }
}

/// Evaluates a request over one slice, the whole window.
fn evaluate(state: &State, quota: &Quota, hits: Hits, now: Timestamp) -> Update<State> {
    let present = windows::index_at(now, quota);
    let counts =
        state.counts().map_or_else(|| TwoCounts::none(present), |counts| counts.at(present));
    let before = counts.newest_first();
    let mut after = before;
    take_refund(&mut after, hits.refund());
    let slice_ns = quota.window().as_nanos().max(1);
    let verdict = Slices { slice_ns, index: u64::from(counts.index), counts: &after, now }
        .verdict(quota, hits);
    after[0] = after[0].saturating_add(hits.charge());
    let next = (verdict.allowed && after != before).then(|| TwoCounts::of(counts.index, after));
    (next.map(State::from), verdict)
}

/// Decides a request over `sub_windows` slices and counts it.
fn decide_sliced(state: &mut State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
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
fn preview_sliced(state: &State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
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

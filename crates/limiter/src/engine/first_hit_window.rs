//! The first-hit window: a counter whose window begins with the first hit of its key.
//!
//! # Idea
//!
//! A key without a window has used nothing. Its first admitted hit *opens* a window, which ends one
//! `window` later; nothing is refilled in between. Each key has windows of its own, so not all keys
//! begin anew at the same instant, as they do at the boundary of a
//! [fixed window](super::fixed_window), and a client that waits for its end never waits longer than
//! `window` after its own first hit.
//!
//! A request that does not fit takes nothing, and neither it nor a peek opens a window. A window
//! whose hits were all given back is closed: the next hit opens another.
//!
//! # Formula
//!
//! ```text
//! end       = opened + window
//! open      ⇔ now < end                    also when now < opened: the clock stepped back
//! used      = admitted hits of the open window, else 0
//! admit n   ⇔ used + n ≤ limit             opens a window at now if none is open
//! remaining = max(0, limit − used)
//! reset     = end − now                    zero when none is open
//! retry     = end − now                    never when n > limit
//! ```
//!
//! The state is `opened` and `used`, and limit and window are those of the request at hand. So a
//! limit that changes while the window is open keeps the hits that were used, and a window that
//! becomes longer or shorter moves its end; if that has passed, the next hit opens another.
//!
//! # Example
//!
//! 100 a minute. The first hit, at 12:00:40, opens a window until 12:01:40. With 98 used the limit
//! becomes 120: 22 remain. At 12:01:39 they are used up, and one more is denied with retry after 1
//! s. The next hit is sent at 12:05:00 and opens a window until 12:06:00.
//!
//! # Bound
//!
//! At most `limit` hits in a window, and windows of one key do not overlap, so at most `2 × limit`
//! in any interval as long as a window: 1 at 12:00:40 and 99 at 12:01:39, then 100 at 12:01:40.
//!
//! # Credit
//!
//! Clients of Gubernator may give back more than they used. A refund of a request that
//! [`credits`](super::Behavior::credits) adds what is beyond the used hits to the limit until the
//! window ends, and opens one if none is open. **Bound:** [`CREDIT_MAX`] hits of a window; what is
//! beyond is dropped.
//!
//! # Joining copies
//!
//! Two copies of one window have the same `opened`, and the larger count is the later one. Copies
//! with different `opened` that are both open come from two owners that did not know of each
//! other's: the join is the later `opened` with the larger `used` and the smaller credit, so it
//! admits no more than either. A window that was over when the other began is dropped by the
//! store, which knows when each expires ([`State::is_over_before`]).
//!
//! Source: the behaviour of Gubernator's `TOKEN_BUCKET` (`gubernator-io/gubernator`,
//! `algorithms.go`), observed on version 2: in spite of its name it has no refill. It differs in
//! three points: there also a peek and a refused request open a window, a refused first request
//! for more than the limit is not followed by a drain, and refunds always credit, without a bound.

use super::state::State;
use super::verdict::{Retry, Update, Verdict};
use crate::quota::Quota;
use crate::units::{Hits, Span, Timestamp};

/// Most hits that a window admits beyond its limit because they were given back.
pub const CREDIT_MAX: u16 = u16::MAX;

/// Hits of one window.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub(super) opened: Timestamp,
    pub(super) used: u32,
    credit: u16,
}

pub(super) fn evaluate(
    state: &State,
    quota: &Quota,
    hits: Hits,
    credits: bool,
    now: Timestamp,
) -> Update<State> {
    let open = open_at(state, quota, now);
    let before = open.unwrap_or(Window { opened: now, used: 0, credit: 0 });
    let limit = u64::from(quota.limit()) + u64::from(before.credit);
    let with_hits = u64::from(before.used).saturating_add(hits.charge());
    let retry = if hits.refund() > 0 || with_hits <= limit {
        Retry::Now
    } else if hits.charge() > limit {
        Retry::Never
    } else {
        // Zero only where time saturates; a denied request never gets a zero wait.
        Retry::After(end(before.opened, quota).since(now).max(Span::from_nanos(1)))
    };
    let after = if hits.refund() > 0 {
        given_back(before, hits.refund(), credits)
    } else if retry == Retry::Now {
        Window { used: u32::try_from(with_hits).unwrap_or(u32::MAX), ..before }
    } else {
        before
    };
    let is_counted = after.used > 0 || after.credit > 0;
    let limit = u64::from(quota.limit()) + u64::from(after.credit);
    let left = limit.saturating_sub(u64::from(after.used));
    let reset = if is_counted { end(after.opened, quota).since(now) } else { Span::ZERO };
    let verdict = Verdict::new(quota, hits, left, reset, retry)
        .over(u64::from(before.used).saturating_sub(limit));
    let Window { opened, used, credit } = after;
    let next = match (open, is_counted) {
        _ if hits == Hits::PEEK || retry != Retry::Now => None,
        (None, false) => None,
        (Some(_), false) => Some(State::Absent),
        (_, true) => Some(State::FirstHitWindow { opened, used, credit }),
    };
    (next, verdict)
}

/// When a window that was opened then ends.
pub(super) const fn end(opened: Timestamp, quota: &Quota) -> Timestamp {
    opened.plus(quota.window())
}

/// The window of `state`, if it is open at `now`.
pub(super) fn open_at(state: &State, quota: &Quota, now: Timestamp) -> Option<Window> {
    match *state {
        State::FirstHitWindow { opened, used, credit } => {
            let end = end(opened, quota);
            // At the end of time a window never ends, which denies rather than grants.
            let is_open = now < end || end == Timestamp::NEVER;
            is_open.then_some(Window { opened, used, credit })
        }
        _ => None,
    }
}

/// Whether `state` is a window that is open at `now` by the length that `quota` has.
pub(crate) fn is_open(state: &State, quota: &Quota, now: Timestamp) -> bool {
    open_at(state, quota, now).is_some()
}

/// Takes hits off a window that is open by the request that was admitted last, whatever the window
/// of the request that they were charged for.
pub(super) fn take_back(state: &mut State, hits: u64) {
    if let State::FirstHitWindow { opened, used, credit } = *state {
        let Window { used, credit, .. } = given_back(Window { opened, used, credit }, hits, false);
        let is_counted = used > 0 || credit > 0;
        *state =
            if is_counted { State::FirstHitWindow { opened, used, credit } } else { State::Absent };
    }
}

/// Ends what refunds have added to the limit of a window. Copies of another node's windows have
/// none: the node that holds them does not learn of its end, and would admit it again.
pub fn end_credit(state: &mut State) {
    if let State::FirstHitWindow { opened, used, .. } = *state {
        *state = match used {
            0 => State::Absent,
            _ => State::FirstHitWindow { opened, used, credit: 0 },
        };
    }
}

/// `window` after a refund.
fn given_back(window: Window, refund: u64, credits: bool) -> Window {
    let Window { opened, used, credit } = window;
    let beyond = refund.saturating_sub(u64::from(used));
    let used = u32::try_from(u64::from(used).saturating_sub(refund)).unwrap_or_default();
    let credit = match (credits, used) {
        (true, _) => credit.saturating_add(u16::try_from(beyond).unwrap_or(CREDIT_MAX)),
        // Nothing is used: the window begins anew with the next hit.
        (false, 0) => 0,
        (false, _) => credit,
    };
    Window { opened, used, credit }
}

#[cfg(test)]
mod tests {
    use super::super::{Behavior, decide, decide_with, preview};
    use super::*;
    use crate::quota::Algorithm;

    fn quota(limit: u32, millis: u64) -> Quota {
        let window = Span::from_millis(millis);
        Quota::simple(Algorithm::FirstHitWindow, limit, window).expect("valid")
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_secs(1_790_000_000).plus(Span::from_millis(millis))
    }

    /// Limit, window, hits and instant; in milliseconds.
    type Request = (u32, u64, i64, u64);
    /// Whether it is allowed, what remains, and the instant of the reset.
    type Answer = (bool, u32, u64);

    fn check(steps: &[(Request, Answer)], behavior: Behavior) {
        let mut state = State::Absent;
        for &((limit, window, hits, millis), expected) in steps {
            let (quota, now) = (quota(limit, window), at(millis));
            let verdict = decide_with(&mut state, &quota, Hits::new(hits), behavior, now);
            let reset = now.plus(verdict.reset).since(at(0)).as_millis_ceil();
            let answer = (verdict.allowed, verdict.remaining, reset);
            assert_eq!(answer, expected, "{hits} hits of {limit} in {window} ms at {millis} ms");
        }
    }

    #[test]
    fn the_worked_example_holds() {
        let (minute, mut state) = (quota(100, 60_000), State::Absent);
        assert!(decide(&mut state, &minute, Hits::ONE, at(40_000)).allowed);
        assert!(decide(&mut state, &minute, Hits::new(97), at(41_000)).allowed);
        let raised = quota(120, 60_000);
        assert_eq!(preview(&state, &raised, Hits::PEEK, at(41_000)).remaining, 22);
        assert!(decide(&mut state, &raised, Hits::new(22), at(99_000)).allowed);
        let denied = decide(&mut state, &raised, Hits::ONE, at(99_000));
        assert_eq!(denied.retry, Retry::After(Span::from_secs(1)));
        let next = decide(&mut state, &raised, Hits::ONE, at(300_000));
        assert_eq!((next.allowed, next.reset), (true, Span::from_secs(60)));
    }

    #[test]
    fn a_window_begins_with_the_first_hit_that_passes() {
        check(
            &[
                ((10, 5_000, 0, 0), (true, 10, 0)),
                ((10, 5_000, 11, 100), (false, 10, 100)),
                ((10, 5_000, 1, 1_000), (true, 9, 6_000)),
                ((10, 5_000, 10, 2_000), (false, 9, 6_000)),
                ((10, 5_000, 0, 5_999), (true, 9, 6_000)),
                ((10, 5_000, 10, 6_000), (true, 0, 11_000)),
            ],
            Behavior::default(),
        );
    }

    #[test]
    fn nothing_is_refilled_and_twice_the_limit_passes_around_an_end() {
        check(
            &[
                ((10, 1_000, 1, 0), (true, 9, 1_000)),
                ((10, 1_000, 9, 900), (true, 0, 1_000)),
                ((10, 1_000, 1, 999), (false, 0, 1_000)),
                ((10, 1_000, 10, 1_000), (true, 0, 2_000)),
            ],
            Behavior::default(),
        );
    }

    #[test]
    fn a_limit_that_changes_keeps_the_hits() {
        check(
            &[
                ((100, 9_000, 2, 0), (true, 98, 9_000)),
                ((10, 9_000, 1, 1), (true, 7, 9_000)),
                ((2, 9_000, 0, 2), (false, 0, 9_000)),
                ((200, 9_000, 1, 3), (true, 196, 9_000)),
            ],
            Behavior::default(),
        );
    }

    #[test]
    fn a_window_that_changes_moves_its_end() {
        check(
            &[
                ((10, 1_000, 1, 0), (true, 9, 1_000)),
                ((10, 5_000, 1, 900), (true, 8, 5_000)),
                ((10, 5_000, 1, 1_500), (true, 7, 5_000)),
                ((10, 2_000, 1, 1_600), (true, 6, 2_000)),
                // The new end has passed.
                ((10, 1_000, 1, 1_700), (true, 9, 2_700)),
            ],
            Behavior::default(),
        );
    }

    #[test]
    fn a_window_whose_hits_are_all_given_back_is_closed() {
        check(
            &[
                ((2, 5_000, -1, 0), (true, 2, 0)),
                ((2, 5_000, 2, 0), (true, 0, 5_000)),
                ((2, 5_000, -1, 100), (true, 1, 5_000)),
                ((2, 5_000, -9, 200), (true, 2, 200)),
                ((2, 5_000, 1, 300), (true, 1, 5_300)),
            ],
            Behavior::default(),
        );
    }

    #[test]
    fn hits_may_be_given_back_beyond_the_limit_where_that_is_asked_for() {
        let credits = Behavior { credits: true, ..Behavior::default() };
        check(
            &[
                ((2, 5_000, -1, 0), (true, 3, 5_000)),
                ((2, 5_000, -1, 1), (true, 4, 5_000)),
                ((2, 5_000, 4, 2), (true, 0, 5_000)),
                ((2, 5_000, 1, 3), (false, 0, 5_000)),
                ((2, 5_000, -1, 3), (true, 1, 5_000)),
                ((2, 5_000, i64::MIN, 4), (true, 2 + u32::from(CREDIT_MAX), 5_000)),
                ((2, 5_000, 3, 5_000), (false, 2, 5_000)),
            ],
            credits,
        );
    }

    #[test]
    fn a_refund_without_credit_begins_anew() {
        let (quota, mut state) = (quota(2, 5_000), State::Absent);
        let credits = Behavior { credits: true, ..Behavior::default() };
        decide_with(&mut state, &quota, Hits::new(-5), credits, at(0));
        assert_eq!(decide(&mut state, &quota, Hits::new(i64::MIN), at(1)).remaining, 2);
        assert_eq!(state, State::Absent);
    }

    #[test]
    fn a_window_at_the_end_of_time_denies() {
        let (quota, mut state) = (quota(1, 5_000), State::Absent);
        assert!(decide(&mut state, &quota, Hits::ONE, Timestamp::NEVER).allowed);
        let denied = decide(&mut state, &quota, Hits::ONE, Timestamp::NEVER);
        assert_eq!(denied.retry, Retry::After(Span::from_nanos(1)));
    }

    #[test]
    fn open_windows_join_to_what_admits_no_more_than_either() {
        let window = |secs, used, credit| State::FirstHitWindow {
            opened: Timestamp::from_secs(secs),
            used,
            credit,
        };
        let mut joined = window(100, 10, 3);
        joined.merge(window(130, 1, 1));
        assert_eq!(joined, window(130, 10, 1));
        let ends = Timestamp::from_secs(160);
        assert!(window(100, 10, 0).is_over_before(ends, &window(160, 1, 0)));
        assert!(!window(100, 10, 0).is_over_before(ends, &window(159, 1, 0)));
    }
}

//! What a request may ask for beside its hits, for clients of protocols that let them.
//!
//! # Draining
//!
//! A refused request takes nothing. With [`Behavior::drains`] it takes what is left, so that
//! smaller requests are refused as well until something is there again: a client whose large
//! request did not fit does not go on with small ones. In the notation of the algorithms:
//!
//! ```text
//! refused and remaining = r > 0   →   as if a request of r hits had been admitted
//! ```
//!
//! The verdict is still a refusal. Its `remaining` is zero, `reset` and `retry` are those of the
//! drained counter, and `excess` says how many of its hits were too many before.
//!
//! This holds for every algorithm that does not count refused hits. A fixed window does, which
//! leaves nothing anyway.
//!
//! **Example.** 10 a minute, of which 3 are used. A request for 8 is refused and leaves 0, with
//! `excess` 1. Without draining it would leave 7.
//!
//! # Credits
//!
//! See [`first_hit_window`](super::first_hit_window). Other algorithms give back what was used and
//! no more.
//!
//! Source: `DRAIN_OVER_LIMIT` and negative hits of Gubernator. It does not drain when the first
//! request of a window is refused, which lets the same client go on with small ones.

use serde::{Deserialize, Serialize};

use super::state::State;
use super::verdict::Verdict;
use super::{decide, first_hit_window, preview};
use crate::quota::{Algorithm, Quota};
use crate::units::{Hits, Timestamp};

/// How a request is counted, beside its hits. By default as each algorithm documents it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Behavior {
    /// If it is refused, it takes what is left.
    pub drains: bool,
    /// What it gives back beyond the used hits of a first-hit window may pass beyond the limit.
    pub credits: bool,
}

/// As [`decide`], with this behavior.
pub fn decide_with(
    state: &mut State,
    quota: &Quota,
    hits: Hits,
    behavior: Behavior,
    now: Timestamp,
) -> Verdict {
    if behavior.credits && quota.algorithm() == Algorithm::FirstHitWindow && hits.refund() > 0 {
        let (next, verdict) = first_hit_window::evaluate(state, quota, hits, true, now);
        if let Some(next) = next {
            *state = next;
        }
        return verdict;
    }
    let verdict = decide(state, quota, hits, now);
    if !takes_rest(behavior, hits, &verdict) {
        return verdict;
    }
    decide(state, quota, rest(&verdict), now);
    Verdict { excess: verdict.excess, ..preview(state, quota, hits, now) }
}

/// Returns the verdict that [`decide_with`] would give, without counting.
pub fn preview_with(
    state: &State,
    quota: &Quota,
    hits: Hits,
    behavior: Behavior,
    now: Timestamp,
) -> Verdict {
    if behavior == Behavior::default() {
        return preview(state, quota, hits, now);
    }
    decide_with(&mut state.clone(), quota, hits, behavior, now)
}

/// Whether a request with this verdict takes what is left.
pub(crate) fn takes_rest(behavior: Behavior, hits: Hits, verdict: &Verdict) -> bool {
    behavior.drains && !verdict.allowed && hits.charge() > 0 && verdict.remaining > 0
}

/// What is left by this verdict.
pub(crate) fn rest(verdict: &Verdict) -> Hits {
    Hits::new(i64::from(verdict.remaining))
}

#[cfg(test)]
mod tests {
    use super::super::Retry;
    use super::*;
    use crate::units::Span;

    #[test]
    fn the_worked_example_holds() {
        let minute = Span::from_secs(60);
        let quota = Quota::simple(Algorithm::FirstHitWindow, 10, minute).expect("valid");
        let (mut state, drains) = (State::Absent, Behavior { drains: true, ..Behavior::default() });
        decide(&mut state, &quota, Hits::new(3), Timestamp::EPOCH);
        let before = state.clone();
        let refused = decide_with(&mut state, &quota, Hits::new(8), drains, Timestamp::EPOCH);
        assert_eq!((refused.allowed, refused.remaining, refused.excess), (false, 0, 1));
        assert_eq!(refused.retry, Retry::After(minute));
        assert!(!decide(&mut state, &quota, Hits::ONE, Timestamp::EPOCH).allowed);
        let previewed = preview_with(&before, &quota, Hits::new(8), drains, Timestamp::EPOCH);
        assert_eq!(previewed, refused);
    }

    #[test]
    fn a_refused_first_request_drains_as_well() {
        for algorithm in [Algorithm::FirstHitWindow, Algorithm::TokenBucket] {
            let quota = Quota::simple(algorithm, 10, Span::from_secs(60)).expect("valid");
            let drains = Behavior { drains: true, ..Behavior::default() };
            let mut state = State::Absent;
            let refused = decide_with(&mut state, &quota, Hits::new(11), drains, Timestamp::EPOCH);
            assert_eq!((refused.retry, refused.remaining), (Retry::Never, 0));
            assert!(!decide(&mut state, &quota, Hits::ONE, Timestamp::EPOCH).allowed);
        }
    }
}

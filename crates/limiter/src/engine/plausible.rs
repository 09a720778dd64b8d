//! Whether an honest node could remember this: the question before a state from outside is joined.
//!
//! A state only ever grows by being joined, so one absurd value would stay until it expires: a
//! count of the future pushes the present one out, and a state that never expires refuses its key
//! for good. Nobody who reads a state from a peer or a disk has its quota. The instant at which it
//! expires tells what is needed of it:
//!
//! ```text
//! fixed window `index`     expires at (index + 1) × window   so window = expires / (index + 1)
//! sliding window `index`   expires at (index + 2) × window   so window = expires / (index + 2)
//! ```
//!
//! Example: a state of window 20,000 that expires at 20,001 days was counted by the day; at noon of
//! day 19,998 it lies 36 hours ahead, and no clock of a cluster is that wrong.

use super::State;
use super::actor_counters::ACTORS_MAX;
use super::delta::Bounds;
use crate::quota::{WINDOW_MAX, WINDOW_MIN};
use crate::units::{Span, Timestamp};

/// How far ahead of ours the clock may be that a state was counted by.
pub const AHEAD_MAX: Span = Span::from_secs(5);

impl State {
    /// Whether an honest node, whose clock is at most [`AHEAD_MAX`] ahead of `now`, could hold this
    /// state and forget it at `expires`.
    pub fn is_plausible(&self, expires: Timestamp, now: Timestamp) -> bool {
        let latest = now.plus(AHEAD_MAX);
        // A bucket's debt may be a burst beyond its window; a sliding state matters for two.
        let matters_at_most = latest.plus(WINDOW_MAX).plus(WINDOW_MAX);
        expires <= matters_at_most
            && match self {
                Self::Absent => true,
                Self::FixedWindow { index, .. } => began(*index, 1, expires, latest),
                Self::SlidingCounter { index, .. } => began(*index, 2, expires, latest),
                Self::Tat(tat) => tat.ceil() <= expires,
                Self::SubWindows(slots) => {
                    slots.absent_at() <= expires && slots.newest_start() <= latest
                }
                Self::Log(log) => log.latest() <= expires.min(latest),
                Self::ActorCounters(actor_counters) => {
                    let bounds = Bounds { now, ahead_max: AHEAD_MAX, columns_max: ACTORS_MAX };
                    actor_counters.wire().validate(&bounds).is_ok()
                }
            }
    }
}

/// Whether window `index`, which matters until `windows` of them later, has a length that a quota
/// may have and begins at `latest` at the latest.
fn began(index: u32, windows: u64, expires: Timestamp, latest: Timestamp) -> bool {
    let window = Span::from_nanos(expires.as_nanos() / (u64::from(index) + windows));
    let start = window.as_nanos().saturating_mul(u64::from(index));
    (WINDOW_MIN..=WINDOW_MAX).contains(&window) && Timestamp::from_nanos(start) <= latest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{ActorId, Tat, decide, decide_eventual};
    use crate::quota::{Algorithm, Quota};
    use crate::units::Hits;

    const NOW: Timestamp = Timestamp::from_secs(1_767_225_600 + 3_601);
    const LONG: [Span; 3] =
        [Span::from_secs(3_600), Span::from_secs(86_400), Span::from_secs(400 * 86_400)];
    const ALGORITHMS: [Algorithm; 6] = [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::Gcra,
    ];

    #[test]
    fn what_an_honest_node_counts_is_plausible() {
        for (algorithm, window) in ALGORITHMS.into_iter().flat_map(|a| LONG.map(|w| (a, w))) {
            let quota = Quota::simple(algorithm, 10, window).expect("a valid quota");
            let mut state = State::Absent;
            decide(&mut state, &quota, Hits::new(10), NOW);
            let expires = state.absent_at(&quota);
            assert!(state.is_plausible(expires, NOW), "{algorithm:?} {window}");
            // As it lies in a table, whose instants are rounded up; and a second behind.
            let rounded = expires.plus(Span::from_nanos(7));
            assert!(state.is_plausible(rounded, NOW.minus(Span::from_secs(1))), "{algorithm:?}");
        }
    }

    #[test]
    fn what_was_counted_by_a_clock_far_ahead_is_not() {
        for algorithm in ALGORITHMS {
            let quota = Quota::simple(algorithm, 10, LONG[0]).expect("a valid quota");
            let ahead = NOW.plus(WINDOW_MAX).plus(WINDOW_MAX).plus(Span::from_secs(7_200));
            let mut state = State::Absent;
            decide(&mut state, &quota, Hits::ONE, ahead);
            assert!(!state.is_plausible(state.absent_at(&quota), NOW), "{algorithm:?}");
        }
    }

    #[test]
    fn a_window_that_has_not_begun_is_not_plausible_however_soon_it_ends() {
        let hour = LONG[0].as_nanos();
        let next = u32::try_from(NOW.as_nanos() / hour + 1).expect("fits");
        let ends = |windows: u64| Timestamp::from_nanos((u64::from(next) + windows) * hour);
        assert!(!State::FixedWindow { index: next, used: 1 }.is_plausible(ends(1), NOW));
        let sliding = State::SlidingCounter { index: next, prev: 0, cur: 1 };
        assert!(!sliding.is_plausible(ends(2), NOW));
        let endless = State::FixedWindow { index: 0, used: 1 };
        assert!(!endless.is_plausible(ends(1), NOW), "a window of decades");
        let far = State::FixedWindow { index: u32::MAX, used: 1 };
        assert!(!far.is_plausible(ends(1), NOW), "a window of less than a second ago");
        let bucket = State::Tat(Tat::new(ends(9).as_nanos(), 0));
        assert!(!bucket.is_plausible(ends(1), NOW), "it would be dropped while it matters");
        assert!(!bucket.is_plausible(Timestamp::NEVER, NOW), "it would never be dropped");
    }

    #[test]
    fn columns_are_held_to_what_a_peer_may_say() {
        let quota = Quota::simple(Algorithm::FixedWindow, 10, LONG[1]).expect("a valid quota");
        let mut state = State::Absent;
        decide_eventual(&mut state, ActorId::new(1), &quota, Hits::ONE, NOW);
        let expires = state.absent_at(&quota);
        assert!(state.is_plausible(expires, NOW));
        assert!(!state.is_plausible(expires, NOW.minus(LONG[1])), "a bucket of tomorrow");
    }
}

//! When a state expires, when it last changed, and whether a state from outside is plausible.
//!
//! # States from outside
//!
//! A state only grows by being merged, so one absurd value would stay until it expires: a count of
//! the far future pushes the present one out, and a state that never expires denies its key for
//! good. A copy from a peer or a disk comes without its quota. Its expiry gives enough of it:
//!
//! ```text
//! fixed window      expires = (index + 1)·w     w = ⌊expires / (index + 1)⌋     start = index·w
//! sliding counter   expires = (index + 2)·w     w = ⌊expires / (index + 2)⌋     start = index·w
//! bucket            TAT − last update ≤ the longest time in which any bucket drains
//! sub-windows, log  the state holds its own time
//! first-hit window  the state holds its opening        w = expires − opened
//! reservation       expires = until + the time for which an id is remembered
//! ```
//!
//! # Example
//!
//! Window number 28,333,334 that expires at 1,700,000,100 s: `w` is 60 s and the window began at
//! 1,700,000,040 s. The same number with an expiry a minute later would be a window of 60.000002 s,
//! which is harmless; with an expiry ten years ahead it would begin years ahead.

use super::delta::{ACTORS_MAX, Bounds};
use super::reservation::{REMEMBERED, TTL_MAX};
use super::state::State;
use super::{bucket, first_hit_window, sliding_window_counter, windows};
use crate::quota::{DRAIN_MAX, Quota, WINDOW_MAX, WINDOW_MIN};
use crate::units::{Span, Timestamp};

/// How far ahead of the local clock the clock of a peer may be.
pub const AHEAD_MAX: Span = Span::from_secs(5);

/// The store rounds an expiry up by at most this. The `w` computed from it is too large by less
/// than a step divided by the index, and the start by less than a step.
const EXPIRY_STEP: Span = Span::from_nanos(16);

impl State {
    /// From this instant on the state equals [`State::Absent`] and may be dropped.
    pub fn expires_at(&self, quota: &Quota) -> Timestamp {
        match self {
            Self::Absent => Timestamp::EPOCH,
            Self::FixedWindow { index, .. } => windows::end(*index, quota),
            Self::SlidingCounter { index, .. } => sliding_window_counter::expires_at(*index, quota),
            Self::FineWindow(fine) => {
                sliding_window_counter::expires_at(fine.counts().index, quota)
            }
            Self::Tat(tat) => tat.ceil(),
            Self::SubWindows(slices) => slices.expires_at(),
            Self::Log(log) => log.expires_at(quota.window()),
            Self::ActorCounters(actor_counters) => actor_counters.expires_at(),
            Self::Reservation { .. } => {
                self.reservation().map_or(Timestamp::EPOCH, |it| it.expires_at())
            }
            Self::FirstHitWindow { opened, .. } => first_hit_window::end(*opened, quota),
        }
    }

    /// A lower bound of the time of the last change.
    ///
    /// Merging a state of the far future would replace present counts, and time would stand still
    /// for its key. A receiver of states rejects those whose last update is further ahead of its
    /// own clock than clocks may differ.
    pub fn last_update(&self, quota: &Quota) -> Timestamp {
        let start = |index: u64, length: Span| {
            Timestamp::from_nanos(index.saturating_mul(length.as_nanos()))
        };
        match self {
            Self::Absent => Timestamp::EPOCH,
            Self::FixedWindow { index, .. } | Self::SlidingCounter { index, .. } => {
                start(u64::from(*index), quota.window())
            }
            Self::FineWindow(fine) => windows::start(fine.counts().index, quota),
            Self::Tat(tat) => tat.ceil().minus(bucket::drain_time(quota)),
            Self::SubWindows(slices) => slices.newest_start(),
            Self::Log(log) => log.latest(),
            Self::ActorCounters(actor_counters) => start(
                actor_counters.newest().unwrap_or(0),
                Span::from_nanos(actor_counters.slice_ns()),
            ),
            Self::Reservation { until, .. } => until.minus(TTL_MAX),
            Self::FirstHitWindow { opened, .. } => *opened,
        }
    }

    /// Like [`State::last_update`], computed from the expiry instead of the quota. `None` when no
    /// quota gives this state this expiry, and for per-actor counters.
    pub fn last_update_from_expiry(&self, expires: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Absent => Some(Timestamp::EPOCH),
            Self::FixedWindow { index, .. } => start_from_expiry(*index, 1, expires),
            Self::SlidingCounter { index, .. } => start_from_expiry(*index, 2, expires),
            Self::FineWindow(fine) => start_from_expiry(fine.counts().index, 2, expires),
            Self::Tat(tat) => (tat.ceil() <= expires).then(|| tat.ceil().minus(DRAIN_MAX)),
            Self::SubWindows(slices) => {
                (slices.expires_at() <= expires).then(|| slices.newest_start())
            }
            Self::Log(log) => (log.latest() <= expires).then(|| log.latest()),
            Self::ActorCounters(_) => None,
            Self::Reservation { until, .. } => {
                // Copies that were joined may expire later, by no more than an id is remembered.
                let least = self.reservation()?.expires_at();
                let most = until.plus(REMEMBERED).plus(REMEMBERED).plus(EXPIRY_STEP);
                (least..=most).contains(&expires).then(|| until.minus(TTL_MAX))
            }
            Self::FirstHitWindow { opened, .. } => {
                let longest = opened.plus(WINDOW_MAX).plus(EXPIRY_STEP);
                (*opened <= expires && expires <= longest).then_some(*opened)
            }
        }
    }

    /// Whether this first-hit window, with this expiry, was over when the window of `other` began.
    /// Two such copies are not joined: the earlier one no longer matters, at whatever instant the
    /// other arrives. False for any other two states.
    pub fn is_over_before(&self, expires: Timestamp, other: &Self) -> bool {
        matches!(
            (self, other),
            (Self::FirstHitWindow { .. }, Self::FirstHitWindow { opened, .. })
                if expires.minus(EXPIRY_STEP) <= *opened
        )
    }

    /// Whether a correct node, whose clock is at most [`AHEAD_MAX`] ahead of `now`, could hold this
    /// state with this expiry.
    pub fn is_plausible(&self, expires: Timestamp, now: Timestamp) -> bool {
        let latest = now.plus(AHEAD_MAX);
        let expires_max = match self {
            // Two rounding steps: of the TAT to a nanosecond and of the expiry.
            Self::Tat(_) => latest.plus(DRAIN_MAX).plus(EXPIRY_STEP).plus(EXPIRY_STEP),
            // A sliding state matters for two windows.
            _ => latest.plus(WINDOW_MAX).plus(WINDOW_MAX),
        };
        expires <= expires_max
            && match self {
                Self::Absent => true,
                Self::FixedWindow { index, .. } => has_begun(*index, 1, expires, latest),
                Self::SlidingCounter { index, .. } => has_begun(*index, 2, expires, latest),
                Self::FineWindow(fine) => has_begun(fine.counts().index, 2, expires, latest),
                Self::Tat(tat) => tat.ceil() <= expires,
                Self::SubWindows(slices) => {
                    slices.expires_at() <= expires && slices.newest_start() <= latest
                }
                Self::Log(log) => log.latest() <= expires.min(latest),
                Self::ActorCounters(actor_counters) => {
                    let bounds = Bounds { now, ahead_max: AHEAD_MAX, actors_max: ACTORS_MAX };
                    actor_counters.to_delta().validate(&bounds).is_ok()
                }
                Self::Reservation { .. } | Self::FirstHitWindow { .. } => {
                    self.last_update_from_expiry(expires).is_some_and(|seen| seen <= latest)
                }
            }
    }
}

/// The start of window `index`, which matters until `windows` windows after its start; one
/// [`EXPIRY_STEP`] early, because the expiry may be rounded up.
fn start_from_expiry(index: u32, windows: u64, expires: Timestamp) -> Option<Timestamp> {
    let index = u64::from(index);
    let window = expires.as_nanos() / index.saturating_add(windows).max(1);
    let longest = WINDOW_MAX.as_nanos().saturating_add(EXPIRY_STEP.as_nanos());
    let start = Timestamp::from_nanos(index.saturating_mul(window));
    (1..=longest).contains(&window).then(|| start.minus(EXPIRY_STEP))
}

/// Whether window `index`, which matters until `windows` windows after its start, has a length that
/// a quota may have and begins no later than `latest`.
fn has_begun(index: u32, windows: u64, expires: Timestamp, latest: Timestamp) -> bool {
    let window = Span::from_nanos(expires.as_nanos() / (u64::from(index) + windows));
    let start = window.as_nanos().saturating_mul(u64::from(index));
    (WINDOW_MIN..=WINDOW_MAX).contains(&window) && Timestamp::from_nanos(start) <= latest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{ActorId, Tat, decide, decide_eventual};
    use crate::quota::{Algorithm, QuotaParts};
    use crate::units::Hits;

    const NOW: Timestamp = Timestamp::from_secs(1_767_225_600 + 3_601);
    const LONG: [Span; 3] =
        [Span::from_secs(3_600), Span::from_secs(86_400), Span::from_secs(400 * 86_400)];
    const ALGORITHMS: [Algorithm; 7] = Algorithm::ALL;

    #[test]
    fn the_state_of_a_correct_node_is_plausible() {
        for (algorithm, window) in ALGORITHMS.into_iter().flat_map(|a| LONG.map(|w| (a, w))) {
            let quota = Quota::simple(algorithm, 10, window).expect("a valid quota");
            let mut state = State::Absent;
            decide(&mut state, &quota, Hits::new(10), NOW);
            let expires = state.expires_at(&quota);
            assert!(state.is_plausible(expires, NOW), "{algorithm:?} {window}");
            // As the store holds it, with the expiry rounded up, on a clock a second behind.
            let rounded = expires.plus(Span::from_nanos(7));
            assert!(state.is_plausible(rounded, NOW.minus(Span::from_secs(1))), "{algorithm:?}");
        }
    }

    #[test]
    fn a_full_bucket_that_drains_for_years_is_plausible() {
        let quota = Quota::new(QuotaParts {
            algorithm: Algorithm::TokenBucket,
            limit: 10,
            window: LONG[1],
            burst: 10_000,
            sub_windows: 1,
            queue: None,
        });
        let (quota, mut state) = (quota.expect("a valid quota"), State::Absent);
        decide(&mut state, &quota, Hits::new(10_000), NOW);
        let expires = state.expires_at(&quota);
        assert!(expires > NOW.plus(WINDOW_MAX).plus(WINDOW_MAX), "1,000 days");
        assert!(state.is_plausible(expires, NOW));
    }

    #[test]
    fn a_state_of_a_clock_far_ahead_is_not_plausible() {
        for algorithm in ALGORITHMS {
            let quota = Quota::simple(algorithm, 10, LONG[0]).expect("a valid quota");
            // A bucket may take decades to drain.
            let longest = DRAIN_MAX.max(WINDOW_MAX);
            let ahead = NOW.plus(longest).plus(Span::from_secs(7_200));
            let mut state = State::Absent;
            decide(&mut state, &quota, Hits::ONE, ahead);
            assert!(!state.is_plausible(state.expires_at(&quota), NOW), "{algorithm:?}");
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
        let opened = |opened| State::FirstHitWindow { opened, used: 1, credit: 0 };
        assert!(opened(NOW).is_plausible(NOW.plus(WINDOW_MAX), NOW));
        assert!(!opened(NOW).is_plausible(Timestamp::NEVER, NOW), "would never be dropped");
        let long_ago = opened(NOW.minus(WINDOW_MAX));
        assert!(!long_ago.is_plausible(NOW.plus(LONG[0]), NOW), "a window of over 400 days");
        let ahead = NOW.plus(AHEAD_MAX).plus(LONG[0]);
        assert!(!opened(ahead).is_plausible(ahead.plus(LONG[0]), NOW), "opened in an hour");
        let bucket = State::Tat(Tat::new(ends(9).as_nanos(), 0));
        assert!(!bucket.is_plausible(ends(1), NOW), "would be dropped while it matters");
        assert!(!bucket.is_plausible(Timestamp::NEVER, NOW), "would never be dropped");
    }

    #[test]
    fn per_actor_counters_are_held_to_the_bounds_of_a_delta() {
        let quota = Quota::simple(Algorithm::FixedWindow, 10, LONG[1]).expect("a valid quota");
        let mut state = State::Absent;
        decide_eventual(&mut state, ActorId::new(1), &quota, Hits::ONE, NOW);
        let expires = state.expires_at(&quota);
        assert!(state.is_plausible(expires, NOW));
        assert!(!state.is_plausible(expires, NOW.minus(LONG[1])), "a slice of tomorrow");
    }
}

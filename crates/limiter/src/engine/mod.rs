//! The six algorithms as pure functions over small states.
//!
//! A [`State`] is what is remembered of one counter. [`decide`] answers one ask and counts it,
//! [`preview`] gives the same answer and counts nothing, and [`State::merge`] joins what two nodes
//! remember of the same counter.
//!
//! What holds for all six:
//!
//! - **A refused ask consumes nothing**, except in `fixed_window`, whose classic form counts it.
//! - **Zero hits are a peek**: it changes nothing and is allowed unless the count already is over
//!   the limit (a lowered limit, a clock that stepped back); `remaining` tells the rest.
//! - **Negative hits are a refund**: always allowed, the newest hits first, never below zero.
//! - **A clock that steps back grants nothing.** A state knows how far time had come when it was
//!   last changed, and time never runs behind that.
//! - A state of another algorithm, or of other slices (a rule changed its mind), counts as
//!   [`State::Absent`].
//!
//! **Invariant:** nothing here reads a clock, allocates for a small state, or uses floats.

// The algorithms are public for their documentation: each holds its formula, example and bound.
pub mod fixed_window;
pub mod gcra;
pub mod leaky_bucket;
pub mod sliding_window_counter;
pub mod sliding_window_log;
pub mod token_bucket;

pub mod actor_counters;
pub mod delta;
pub mod log;
pub mod sub_windows;
pub mod tat;

mod actor;
mod bucket;
mod eventual;
mod merge;
mod plausible;
mod pn_counter;
mod quotaless;
mod slots;
mod verdict;

use serde::{Deserialize, Serialize};

pub use actor::ActorId;
pub use actor_counters::ActorCounters;
pub use delta::Delta;
pub use eventual::{decide_eventual, preview_eventual};
pub use log::Log;
pub use plausible::AHEAD_MAX;
pub use sub_windows::SubWindows;
pub use tat::Tat;
pub use verdict::{Retry, Verdict};

use crate::quota::{Algorithm, Quota};
use crate::units::{Hits, Span, Timestamp};

/// What is remembered of one counter; 16 bytes.
///
/// Its serialized form travels between nodes: variants are only ever appended, and the boxed states
/// check their bounds when they are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Nothing was counted yet, or what was counted no longer matters.
    #[default]
    Absent,
    /// Hits of one epoch-aligned window.
    FixedWindow {
        /// Number of the window since the epoch.
        index: u32,
        /// Hits in it, refused ones too.
        used: u32,
    },
    /// Hits of the current window and the one before it.
    SlidingCounter {
        /// Number of the current window since the epoch.
        index: u32,
        /// Admitted hits of the window before.
        prev: u32,
        /// Admitted hits of the current window.
        cur: u32,
    },
    /// When a bucket is back to its idle state.
    Tat(Tat),
    /// Hits of every slice of a sliding window.
    SubWindows(Box<SubWindows>),
    /// The time of every hit.
    Log(Box<Log>),
    /// Every node's own share of the hits of every slice of a window.
    ActorCounters(Box<ActorCounters>),
}

// A million keys fit in a cache of this size only while a state stays at two words.
const _: () = assert!(size_of::<State>() == 16);

/// Decides one ask and counts it.
#[inline]
pub fn decide(state: &mut State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
    let (next, verdict) = match quota.algorithm() {
        Algorithm::SlidingWindowLog => return sliding_window_log::decide(state, quota, hits, now),
        Algorithm::SlidingWindowCounter if quota.sub_windows() > 1 => {
            return sub_windows::decide(state, quota, hits, now);
        }
        Algorithm::TokenBucket => {
            return bucket::keep(token_bucket::step(state, quota, hits, now), state);
        }
        Algorithm::LeakyBucket => {
            return bucket::keep(leaky_bucket::step(state, quota, hits, now), state);
        }
        Algorithm::Gcra => return bucket::keep(gcra::step(state, quota, hits, now), state),
        Algorithm::SlidingWindowCounter => sliding_window_counter::step(state, quota, hits, now),
        Algorithm::FixedWindow => fixed_window::step(state, quota, hits, now),
    };
    if let Some(next) = next {
        *state = next;
    }
    verdict
}

/// The verdict that [`decide`] would give, counting nothing.
pub fn preview(state: &State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
    match quota.algorithm() {
        Algorithm::SlidingWindowLog => sliding_window_log::preview(state, quota, hits, now),
        Algorithm::SlidingWindowCounter if quota.sub_windows() > 1 => {
            sub_windows::preview(state, quota, hits, now)
        }
        Algorithm::SlidingWindowCounter => sliding_window_counter::step(state, quota, hits, now).1,
        Algorithm::FixedWindow => fixed_window::step(state, quota, hits, now).1,
        Algorithm::TokenBucket => token_bucket::step(state, quota, hits, now).1,
        Algorithm::LeakyBucket => leaky_bucket::step(state, quota, hits, now).1,
        Algorithm::Gcra => gcra::step(state, quota, hits, now).1,
    }
}

/// What a step of a small state gives: the state to keep, if it changes, and the answer.
type Step = (Option<State>, Verdict);

impl State {
    /// The instant from which on this state answers as [`State::Absent`] does and may be dropped.
    pub fn absent_at(&self, quota: &Quota) -> Timestamp {
        match self {
            Self::Absent => Timestamp::EPOCH,
            Self::FixedWindow { index, .. } => fixed_window::end(*index, quota),
            Self::SlidingCounter { index, .. } => sliding_window_counter::absent_at(*index, quota),
            Self::Tat(tat) => tat.ceil(),
            Self::SubWindows(slots) => slots.absent_at(),
            Self::Log(log) => log.absent_at(quota.window()),
            Self::ActorCounters(actor_counters) => actor_counters.absent_at(),
        }
    }

    /// How far time had come, at least, when this state was last changed.
    ///
    /// A state of the far future would push present counts out when it is merged, and time would
    /// stand still at it: whoever takes states from peers refuses those whose time is further ahead
    /// of its own clock than clocks may differ.
    pub fn seen_at(&self, quota: &Quota) -> Timestamp {
        let start = |index: u64, length: Span| {
            Timestamp::from_nanos(index.saturating_mul(length.as_nanos()))
        };
        match self {
            Self::Absent => Timestamp::EPOCH,
            Self::FixedWindow { index, .. } | Self::SlidingCounter { index, .. } => {
                start(u64::from(*index), quota.window())
            }
            Self::Tat(tat) => tat.ceil().minus(bucket::depth(quota)),
            Self::SubWindows(slots) => slots.newest_start(),
            Self::Log(log) => log.latest(),
            Self::ActorCounters(actor_counters) => start(
                actor_counters.newest().unwrap_or(0),
                Span::from_nanos(actor_counters.bucket_ns()),
            ),
        }
    }

    /// The columns, when this is an eventual counter.
    pub fn actor_counters(&self) -> Option<&ActorCounters> {
        if let Self::ActorCounters(actor_counters) = self { Some(actor_counters) } else { None }
    }
}

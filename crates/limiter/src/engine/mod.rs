//! Seven rate limiting algorithms as pure functions over small states.
//!
//! A [`State`] is the stored form of one counter. [`decide`] answers a request and counts it,
//! [`preview`] returns the same verdict without counting, and [`State::merge`] joins the copies of
//! a counter that two nodes hold.
//!
//! These rules hold for all seven:
//!
//! - **A denied request consumes nothing**, except in `fixed_window`, whose classic form counts it.
//! - **Zero hits are a peek.** A peek changes nothing. It is allowed unless the count already
//!   exceeds the limit (a lowered limit, a clock that stepped back); read `remaining` for the rest.
//! - **Negative hits are a refund.** A refund is always allowed, takes the newest hits first, and
//!   never goes below zero.
//! - **A clock that steps back grants nothing.** A state records the time of its last change, and a
//!   decision is never made at an earlier time.
//! - A state of another kind, or with slices of another length, counts as [`State::Absent`].
//!
//! **Invariant:** the engine reads no clock, allocates nothing for a small state and uses no
//! floats.
//!
//! # Words
//!
//! A *slice* is one of the `sub_windows` equal parts of a window, numbered from the Unix epoch. A
//! *bucket* is a token bucket or a leaky bucket, never a part of time. A *slot* belongs to the hash
//! table of [`crate::store`] and does not occur here.
//!
//! How to add an algorithm is described in CONTRIBUTING.md of the repository.

// Public for their documentation: each algorithm holds its formula, example and bound.
pub mod fine_window;
pub mod first_hit_window;
pub mod fixed_window;
pub mod gcra;
pub mod leaky_bucket;
pub mod sliding_window_counter;
pub mod sliding_window_log;
pub mod token_bucket;

pub mod actor_counters;
pub mod delta;
pub mod grant;
pub mod log;
pub mod reservation;
pub mod sub_windows;
pub mod tat;

mod behavior;
mod bucket;
mod eventual;
mod fine_keys;
mod lifetime;
mod ring;
mod slices;
mod state;
mod verdict;
mod windows;

pub use actor_counters::{ActorCounters, MergeStats};
pub use behavior::{Behavior, decide_with, preview_with};
pub(crate) use behavior::{rest, takes_rest};
pub use delta::{ActorId, Delta};
pub use eventual::{decide_eventual, preview_eventual};
pub use fine_keys::FineKeys;
pub use fine_window::FineWindow;
pub use lifetime::AHEAD_MAX;
pub use log::Log;
pub use reservation::Reservation;
pub use state::State;
pub use sub_windows::SubWindows;
pub use tat::Tat;
pub use verdict::{Retry, Verdict};

use crate::quota::{Algorithm, Quota};
use crate::units::{Hits, Timestamp};

/// Decides one request and counts it.
#[inline]
pub fn decide(state: &mut State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
    let (next, verdict) = match quota.algorithm() {
        Algorithm::SlidingWindowLog => return sliding_window_log::decide(state, quota, hits, now),
        Algorithm::SlidingWindowCounter => {
            return sliding_window_counter::decide(state, quota, hits, now);
        }
        Algorithm::TokenBucket | Algorithm::Gcra => {
            let update = bucket::evaluate(state, quota, quota.burst(), hits, now);
            return bucket::store(update, state);
        }
        Algorithm::LeakyBucket => {
            return bucket::store(leaky_bucket::evaluate(state, quota, hits, now), state);
        }
        Algorithm::FixedWindow => fixed_window::evaluate(state, quota, hits, now),
        Algorithm::FirstHitWindow => first_hit_window::evaluate(state, quota, hits, false, now),
    };
    if let Some(next) = next {
        *state = next;
    }
    verdict
}

/// Returns the verdict that [`decide`] would give, without counting.
pub fn preview(state: &State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
    match quota.algorithm() {
        Algorithm::SlidingWindowLog => sliding_window_log::preview(state, quota, hits, now),
        Algorithm::SlidingWindowCounter => sliding_window_counter::preview(state, quota, hits, now),
        Algorithm::FixedWindow => fixed_window::evaluate(state, quota, hits, now).1,
        Algorithm::TokenBucket | Algorithm::Gcra => {
            bucket::evaluate(state, quota, quota.burst(), hits, now).1
        }
        Algorithm::LeakyBucket => leaky_bucket::evaluate(state, quota, hits, now).1,
        Algorithm::FirstHitWindow => first_hit_window::evaluate(state, quota, hits, false, now).1,
    }
}

//! The stored form of one counter.

use serde::{Deserialize, Serialize};

use super::actor_counters::ActorCounters;
use super::log::Log;
use super::sub_windows::SubWindows;
use super::tat::Tat;

/// The stored form of one counter, 16 bytes.
///
/// Its serialized form travels between nodes: variants are only ever appended, and the boxed forms
/// check their bounds when they are deserialized.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// No hits, or none that still matter.
    #[default]
    Absent,
    /// Hits of one epoch-aligned window.
    FixedWindow {
        /// Number of the window since the epoch.
        index: u32,
        /// Hits in it, denied ones included.
        used: u32,
    },
    /// Hits of the current window and the one before it.
    SlidingCounter {
        /// Number of the current window since the epoch.
        index: u32,
        /// Admitted hits of the previous window.
        prev: u32,
        /// Admitted hits of the current window.
        cur: u32,
    },
    /// The instant at which a bucket is idle again.
    Tat(Tat),
    /// Hits of every slice of a sliding window.
    SubWindows(Box<SubWindows>),
    /// The time of every admitted hit.
    Log(Box<Log>),
    /// Hits of every actor in every slice of a window (eventual mode).
    ActorCounters(Box<ActorCounters>),
}

// Two words: a slot of the store is 40 bytes only with a state of this size.
const _: () = assert!(size_of::<State>() == 16);

impl State {
    /// The per-actor counters of an eventual counter.
    pub fn actor_counters(&self) -> Option<&ActorCounters> {
        if let Self::ActorCounters(actor_counters) = self { Some(actor_counters) } else { None }
    }

    /// Upper bound of the encoded size in bytes. Does not cover per-actor counters, which have
    /// [`Delta::weight`](super::Delta::weight).
    pub fn encoded_bytes_max(&self) -> usize {
        let (parts, bytes) = match self {
            Self::SubWindows(slices) => (slices.len(), 5),
            Self::Log(log) => (log.len(), 14),
            _ => (0, 0),
        };
        32 + parts * bytes
    }

    /// Writes the state as numbers that are the same in every build, as input of a digest.
    /// Per-actor counters write nothing: they have digests of their own.
    pub fn digest_words(&self, write: impl FnMut(u64)) {
        match self {
            Self::Absent | Self::ActorCounters(_) => {}
            Self::FixedWindow { index, used } => {
                [1, *index, *used].into_iter().map(u64::from).for_each(write);
            }
            Self::SlidingCounter { index, prev, cur } => {
                [2, *index, *prev, *cur].into_iter().map(u64::from).for_each(write);
            }
            Self::Tat(tat) => tat.digest_words().into_iter().for_each(write),
            Self::SubWindows(slices) => slices.digest_words().for_each(write),
            Self::Log(log) => log.digest_words().for_each(write),
        }
    }
}

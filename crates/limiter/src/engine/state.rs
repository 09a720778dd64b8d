//! The stored form of one counter, and merging the copies of it that two nodes hold.
//!
//! # Merging
//!
//! Each kind of state is a join-semilattice, so copies may arrive late, twice and in any order:
//!
//! | kind | join |
//! |---|---|
//! | fixed window | the later window; within one window the larger count |
//! | first-hit window | the later opening, the larger count, and the smaller credit |
//! | sliding counters | the larger count of each slice, cut to what the later copy keeps |
//! | fine windows | as their two counts; a ring stays with the counts that it belongs to |
//! | buckets | the later TAT |
//! | log | union by time |
//! | per-actor counters | the larger count of each actor, cut like the sliding counters |
//! | reservations | a settled one, then the later end |
//!
//! A *slice* is one of the equal parts of a sliding window. *TAT* is the theoretical arrival time:
//! when a bucket will be empty again. An *actor* is a node or a region that counts hits in a
//! counter of its own, which only it increases.
//!
//! A counter key contains the algorithm, so all copies of a counter have one kind. If a faulty peer
//! sends another kind, the merge keeps the one that [`State`] declares later: that choice, too,
//! does not depend on order or repetition.
//!
//! The join **loses no hit**: at any time that both states have reached, the joined one admits no
//! more than either. It may lose a *refund* that only one copy has, which errs on the safe side.
//! Per-actor counters count refunds separately and lose neither.

use serde::{Deserialize, Serialize};

use super::actor_counters::ActorCounters;
use super::fine_window::FineWindow;
use super::log::Log;
use super::sub_windows::SubWindows;
use super::tat::Tat;
use super::windows::TwoCounts;
use crate::units::Timestamp;

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
    /// An amount that is kept free beside the counters of its token.
    Reservation {
        /// From then on it keeps nothing free.
        until: Timestamp,
        /// In hits.
        amount: u32,
        /// It was committed or released, and keeps nothing free.
        is_settled: bool,
    },
    /// Hits of the window that began with the first of them.
    FirstHitWindow {
        opened: Timestamp,
        /// Admitted hits.
        used: u32,
        /// Hits that may pass beyond the limit, because they were given back.
        credit: u16,
    },
    /// Hits of the current window and the one before it, and when they passed. Never serialised:
    /// a [`copy`](State::copy) is [`State::SlidingCounter`].
    #[serde(skip)]
    FineWindow(Box<FineWindow>),
}

// Two words: a slot of the store is 40 bytes only with a state of this size.
const _: () = assert!(size_of::<State>() == 16);

impl State {
    /// Merges another copy of the same counter.
    pub fn merge(&mut self, other: Self) {
        match (&mut *self, other) {
            (
                Self::FixedWindow { index, used },
                Self::FixedWindow { index: other_index, used: other_used },
            ) => (*index, *used) = (*index, *used).max((other_index, other_used)),
            (
                Self::SlidingCounter { .. } | Self::FineWindow(_),
                other @ (Self::SlidingCounter { .. } | Self::FineWindow(_)),
            ) => self.merge_counts(other),
            (Self::Tat(tat), Self::Tat(other)) => *tat = (*tat).max(other),
            (Self::SubWindows(slices), Self::SubWindows(other)) => slices.merge(*other),
            (Self::Log(log), Self::Log(other)) => log.merge(*other),
            (Self::ActorCounters(actor_counters), Self::ActorCounters(other)) => {
                actor_counters.join(*other);
            }
            (mine @ Self::Reservation { .. }, other @ Self::Reservation { .. }) => {
                if let (Some(ours), Some(theirs)) = (mine.reservation(), other.reservation()) {
                    *mine = ours.max(theirs).into();
                }
            }
            (
                Self::FirstHitWindow { opened, used, credit },
                Self::FirstHitWindow { opened: also_opened, used: also_used, credit: other_credit },
            ) => {
                (*opened, *used) = ((*opened).max(also_opened), (*used).max(also_used));
                *credit = (*credit).min(other_credit);
            }
            (mine, other) => {
                if mine.kind() < other.kind() {
                    *self = other;
                }
            }
        }
    }

    /// Joins the counts of two sliding counters. A ring stays if its counts are the joined ones;
    /// of two such rings the larger one in an arbitrary order. Otherwise there are hits of which
    /// neither ring knows when they passed, and none stays.
    fn merge_counts(&mut self, other: Self) {
        let (Some(mine), Some(theirs)) = (self.counts(), other.counts()) else { return };
        let joined = mine.join(theirs);
        let is_other = match (mine == joined, theirs == joined) {
            (true, true) => match (&*self, &other) {
                (Self::FineWindow(mine), Self::FineWindow(theirs)) => mine.is_ring_below(theirs),
                (mine, _) => !matches!(mine, Self::FineWindow(_)),
            },
            (true, false) => false,
            (false, true) => true,
            (false, false) => {
                *self = joined.into();
                return;
            }
        };
        if is_other {
            *self = other;
        }
    }

    /// What other nodes and disks get to know: everything but a ring.
    #[must_use]
    pub fn copy(&self) -> Self {
        match self {
            Self::FineWindow(fine) => fine.counts().into(),
            other => other.clone(),
        }
    }

    /// The two counts of a sliding counter.
    #[inline]
    pub(super) fn counts(&self) -> Option<TwoCounts> {
        match *self {
            Self::SlidingCounter { index, prev, cur } => Some(TwoCounts { index, prev, cur }),
            Self::FineWindow(ref fine) => Some(fine.counts()),
            _ => None,
        }
    }

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

    /// Whether it is a first-hit window of which there is nothing but credit.
    pub const fn is_credit(&self) -> bool {
        matches!(self, Self::FirstHitWindow { used: 0, .. })
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
            Self::FineWindow(fine) => Self::from(fine.counts()).digest_words(write),
            Self::Tat(tat) => tat.digest_words().into_iter().for_each(write),
            Self::SubWindows(slices) => slices.digest_words().for_each(write),
            Self::Log(log) => log.digest_words().for_each(write),
            Self::Reservation { until, amount, is_settled } => {
                let rest = u64::from(*amount) << 1 | u64::from(*is_settled);
                [6, until.as_nanos(), rest].into_iter().for_each(write);
            }
            // Copies have no credit.
            Self::FirstHitWindow { opened, used, credit: _ } => {
                [7, opened.as_nanos(), u64::from(*used) << 16].into_iter().for_each(write);
            }
        }
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Absent => 0,
            Self::FixedWindow { .. } => 1,
            Self::SlidingCounter { .. } | Self::FineWindow(_) => 2,
            Self::Tat(_) => 3,
            Self::SubWindows(_) => 4,
            Self::Log(_) => 5,
            Self::ActorCounters(_) => 6,
            Self::Reservation { .. } => 7,
            Self::FirstHitWindow { .. } => 8,
        }
    }
}

impl From<TwoCounts> for State {
    fn from(TwoCounts { index, prev, cur }: TwoCounts) -> Self {
        Self::SlidingCounter { index, prev, cur }
    }
}

//! Joining what two nodes remember of one counter.
//!
//! Each kind of state is a join-semilattice, so states may arrive late, twice and in any order:
//!
//! | kind | join |
//! |---|---|
//! | fixed window | the later window; of the same window the larger count |
//! | sliding counters | slot by slot the larger count, cut to what the later one sees |
//! | buckets | the later TAT |
//! | log | union by time |
//! | columns | column by column the larger count, cut like the sliding counters |
//!
//! Two states of different kinds (the rule's algorithm changed in between) do not join: the kind
//! that stands later in [`State`] stays, so that the laws hold there too.
//!
//! The join **forgets no hit**: at any time that both states have reached, the joined one admits no
//! more than either. It may forget a *refund* that only one side has seen, which errs on the safe
//! side; columns keep refunds in columns of their own and forget neither.

use std::cmp::Ordering;

use super::State;

impl State {
    /// Takes in what another node remembers of the same counter.
    pub fn merge(&mut self, other: Self) {
        match (&mut *self, other) {
            (
                Self::FixedWindow { index, used },
                Self::FixedWindow { index: other_index, used: other_used },
            ) => (*index, *used) = (*index, *used).max((other_index, other_used)),
            (
                Self::SlidingCounter { index, prev, cur },
                Self::SlidingCounter { index: other_index, prev: other_prev, cur: other_cur },
            ) => {
                let mine = (*index, *prev, *cur);
                (*index, *prev, *cur) = join_pairs(mine, (other_index, other_prev, other_cur));
            }
            (Self::Tat(tat), Self::Tat(other)) => *tat = (*tat).max(other),
            (Self::SubWindows(slots), Self::SubWindows(other)) => slots.merge(*other),
            (Self::Log(log), Self::Log(other)) => log.merge(*other),
            (Self::ActorCounters(actor_counters), Self::ActorCounters(other)) => {
                actor_counters.join(*other)
            }
            (mine, other) => {
                if mine.kind().cmp(&other.kind()) == Ordering::Less {
                    *self = other;
                }
            }
        }
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Absent => 0,
            Self::FixedWindow { .. } => 1,
            Self::SlidingCounter { .. } => 2,
            Self::Tat(_) => 3,
            Self::SubWindows(_) => 4,
            Self::Log(_) => 5,
            Self::ActorCounters(_) => 6,
        }
    }
}

/// Joins two (window, previous count, current count).
fn join_pairs(a: (u32, u32, u32), b: (u32, u32, u32)) -> (u32, u32, u32) {
    let (late, early) = if a.0 >= b.0 { (a, b) } else { (b, a) };
    match late.0 - early.0 {
        0 => (late.0, late.1.max(early.1), late.2.max(early.2)),
        1 => (late.0, late.1.max(early.2), late.2),
        _ => late,
    }
}

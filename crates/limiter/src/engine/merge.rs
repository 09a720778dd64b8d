//! Merging the copies of one counter that two nodes hold.
//!
//! Each form of state is a join-semilattice, so copies may arrive late, twice and in any order:
//!
//! | form | join |
//! |---|---|
//! | fixed window | the later window; within one window the larger count |
//! | sliding counters | the larger count of each slice, cut to what the later copy keeps |
//! | buckets | the later TAT |
//! | log | union by time |
//! | per-actor counters | the larger count of each actor, cut like the sliding counters |
//!
//! Two states of different forms (the algorithm of the rule changed) are not joined: the form that
//! is declared later in [`State`] wins, so the laws hold there too.
//!
//! The join **loses no hit**: at any time that both states have reached, the joined one admits no
//! more than either. It may lose a *refund* that only one copy has, which errs on the safe side.
//! Per-actor counters count refunds separately and lose neither.

use std::cmp::Ordering;

use super::state::State;

impl State {
    /// Merges another copy of the same counter.
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
            (Self::SubWindows(slices), Self::SubWindows(other)) => slices.merge(*other),
            (Self::Log(log), Self::Log(other)) => log.merge(*other),
            (Self::ActorCounters(actor_counters), Self::ActorCounters(other)) => {
                actor_counters.join(*other);
            }
            (mine, other) => {
                if mine.form().cmp(&other.form()) == Ordering::Less {
                    *self = other;
                }
            }
        }
    }

    const fn form(&self) -> u8 {
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

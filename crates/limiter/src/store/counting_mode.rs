//! Strict and eventual counting over the same slots.

use crate::engine::{self, ActorId, State, Verdict};
use crate::quota::Quota;
use crate::units::{Hits, Timestamp};

/// All nodes together leave at most one part in this many of a limit unsynchronised. A steady load
/// may exceed an eventual limit by a tenth: see `docs/guarantees.md`.
pub const SYNC_SLACK_DIVISOR: u32 = 10;

/// This node as a writer of eventual keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalActor {
    /// Whose counter it counts in.
    pub actor: ActorId,
    /// A key is synchronised lazily while at most one part in this many of its limit is used:
    /// [`SYNC_SLACK_DIVISOR`] × nodes. Zero sends every change in the next round.
    pub slack_divisor: u32,
}

/// Without slack: every change is sent in the next round.
impl From<ActorId> for LocalActor {
    fn from(actor: ActorId) -> Self {
        Self { actor, slack_divisor: 0 }
    }
}

/// Who counts: the owner alone, or every actor in a counter of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountingMode {
    /// This node is the owner; its state is complete.
    Strict,
    /// This node counts as this actor.
    Eventual(LocalActor),
}

/// What applies to every counter of a check.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckParams {
    pub(super) hits: Hits,
    pub(super) now: Timestamp,
    pub(super) mode: CountingMode,
}

impl CheckParams {
    /// The same check of a strict counter at `now`.
    pub(super) fn strict_at(self, now: Timestamp) -> Self {
        Self { now, mode: CountingMode::Strict, ..self }
    }

    /// See [`LocalActor::slack_divisor`].
    #[inline]
    pub(super) const fn slack_divisor(self) -> u32 {
        match self.mode {
            CountingMode::Strict => 0,
            CountingMode::Eventual(me) => me.slack_divisor,
        }
    }

    #[inline]
    pub(super) fn decide(self, state: &mut State, quota: &Quota) -> Verdict {
        let Self { hits, now, mode } = self;
        match mode {
            CountingMode::Strict => engine::decide(state, quota, hits, now),
            CountingMode::Eventual(me) => {
                engine::decide_eventual(state, me.actor, quota, hits, now)
            }
        }
    }

    pub(super) fn preview(self, state: &State, quota: &Quota) -> Verdict {
        match self.mode {
            CountingMode::Strict => engine::preview(state, quota, self.hits, self.now),
            CountingMode::Eventual(_) => {
                engine::preview_eventual(state, quota, self.hits, self.now)
            }
        }
    }
}

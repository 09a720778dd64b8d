//! The two ways to decide over the same slots.

use super::background_scan::LocalActor;
use crate::engine::{self, State, Verdict};
use crate::quota::Quota;
use crate::units::{Hits, Timestamp};

/// Who counts: the owner alone, or every actor in a column of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountingMode {
    /// This node is the owner; the state is the whole truth.
    Strict,
    /// This node counts in its own column.
    Eventual(LocalActor),
}

impl CountingMode {
    /// See [`LocalActor::slack_divisor`].
    #[inline]
    pub(super) const fn slack_divisor(self) -> u32 {
        match self {
            Self::Strict => 0,
            Self::Eventual(me) => me.slack_divisor,
        }
    }

    #[inline]
    pub(super) fn decide(
        self,
        state: &mut State,
        quota: &Quota,
        hits: Hits,
        now: Timestamp,
    ) -> Verdict {
        match self {
            Self::Strict => engine::decide(state, quota, hits, now),
            Self::Eventual(me) => engine::decide_eventual(state, me.actor, quota, hits, now),
        }
    }

    pub(super) fn preview(
        self,
        state: &State,
        quota: &Quota,
        hits: Hits,
        now: Timestamp,
    ) -> Verdict {
        match self {
            Self::Strict => engine::preview(state, quota, hits, now),
            Self::Eventual(_) => engine::preview_eventual(state, quota, hits, now),
        }
    }
}

//! Eventual keys that are far from their limit: told seldom.
//!
//! To tell a change costs the nodes of a cluster more than to decide it. Near the limit that buys
//! exactness; far from it, it buys nothing: whoever hears of the hits admits the next one all the
//! same. So a key is *far* while, as this node knows, at most
//!
//! ```text
//! limit / (HIDDEN_PART × nodes)
//! ```
//!
//! of its limit is used, rounded down. A far key stands in no line: it is told when a slow walk
//! over all keys comes by, or at the first ask that finds it nearer. The first ask of a bucket is
//! told like any other, because the key's owner tells its count to those that it knows to ask.
//!
//! **Bound:** what a node hides is part of what it knows, so all nodes together hide at most one
//! part in [`SYNC_SLACK_DIVISOR`] of a limit, whatever the rate and however slow the walk. Small limits
//! hide nothing: below 10 × nodes the first hit is already too near.
//!
//! **Worked example.** 1,000 a minute on three nodes: a key is far up to 33 hits. Three nodes that
//! counted 33 each with but a word of the first hide 96 of the 1,000. The 34th puts it in line for
//! the next round, and all 34 are told.

use super::Store;
use super::key::KeyHash;
use super::queues::take_eventual;
use super::scan::Cursor;
use super::slot::SyncPriority;
use super::sync_queue::DRAIN_PER_LOCK;
use crate::engine::{ActorCounters, ActorId, Verdict};
use crate::units::Timestamp;

/// All nodes together keep at most one part in this many of a limit to themselves. A steady load
/// may exceed an eventual limit by a tenth: see `docs/guarantees.md`.
pub const SYNC_SLACK_DIVISOR: u32 = 10;
/// Slots the walk looks at before it lets go of a shard's lock.
const WALK_SLOTS: usize = 512;

/// This node, as it counts eventual keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalActor {
    /// Whose column it counts in.
    pub actor: ActorId,
    /// A key is far while at most one part in this many of its limit is used: [`SYNC_SLACK_DIVISOR`] ×
    /// nodes. Zero: no key is far, every change is told in the next round.
    pub slack_divisor: u32,
}

/// Tells every change.
impl From<ActorId> for LocalActor {
    fn from(actor: ActorId) -> Self {
        Self { actor, slack_divisor: 0 }
    }
}

/// How far the walk over far keys has come. Start at the default.
#[derive(Debug, Default)]
pub struct BackgroundScan {
    at: Cursor,
    /// Shards that are due, times the rounds of a walk.
    owed: usize,
}

/// Whether a charge left its key far from the limit.
pub(super) fn is_lazy(verdict: &Verdict, slack_divisor: u32) -> bool {
    let used = u64::from(verdict.limit.saturating_sub(verdict.remaining));
    slack_divisor > 0
        && verdict.allowed
        && used * u64::from(slack_divisor) <= u64::from(verdict.limit)
}

impl Store {
    /// One round of a walk over all eventual keys that takes `rounds` of them: hands those that
    /// were not told, far ones too, to `send`, as [`Store::drain_sync_queue`] does, and returns how many
    /// there were. Ends early once there are `max`, or up to 63 more, and then the walk takes
    /// longer; fewer are all that were due. Expired keys are left out.
    pub fn drain_lazy(
        &self,
        walk: &mut BackgroundScan,
        rounds: usize,
        max: usize,
        now: Timestamp,
        mut send: impl FnMut(KeyHash, &ActorCounters),
    ) -> usize {
        let rounds = rounds.max(1);
        walk.owed += self.shards.len();
        let mut due = walk.owed / rounds;
        walk.owed %= rounds;
        let mut sent = 0;
        while due > 0 && sent < max {
            let (taken, next) = self.far_step(walk.at, now, &mut send);
            sent += taken;
            due -= usize::from(next.seen.is_none());
            walk.at = next;
        }
        sent
    }

    /// One bounded step of that walk, and where to go on.
    fn far_step(
        &self,
        from: Cursor,
        now: Timestamp,
        send: &mut impl FnMut(KeyHash, &ActorCounters),
    ) -> (usize, Cursor) {
        let Some(shard) = self.shard_at(from.shard) else { return (0, Cursor::default()) };
        let table = &mut shard.lock().table;
        let (range, mut next) = table.stretch(from.seen, WALK_SLOTS);
        let mut sent = 0;
        for slot in table.taken_mut(range) {
            sent +=
                usize::from(!slot.is_expired(now) && take_eventual(slot, SyncPriority::Far, send));
            if sent == DRAIN_PER_LOCK {
                next = Some(slot.key);
                break;
            }
        }
        match next {
            Some(_) => (sent, Cursor { seen: next, ..from }),
            None => (sent, Cursor { shard: (from.shard + 1) % self.shards.len(), seen: None }),
        }
    }
}

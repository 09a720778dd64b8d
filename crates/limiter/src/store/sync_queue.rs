//! Eventual keys: which change is news to the peers, and what comes back from them.
//!
//! An eventual slot lives as long as any of its buckets counts: with buckets of length `b` of which
//! `n` cover the window, what is counted in bucket `i` matters until `(i + n + 1) × b` (the oldest
//! bucket overlaps the window until then). It does not end when this node's own share is used up,
//! because the others' columns still count.
//!
//! **Worked example.** 100 a minute in 6 sub-windows: `b` = 10 s, `n` = 6. A key asked at 12:00:03
//! is kept until 12:01:10.

use super::Store;
use super::background_scan::is_lazy;
use super::check::Question;
use super::key::KeyHash;
use super::key_queue::is_urgent;
use super::queues::Queues;
use super::scan::StoredCounter;
use super::slot::{Slot, Stamp, SyncPriority};
use crate::engine::{ActorCounters, Delta, State, Verdict};
use crate::quota::{Algorithm, Quota};
use crate::units::{Span, Timestamp};

/// Changed keys handed over before a shard's lock is given back.
pub(super) const DRAIN_PER_LOCK: usize = 64;

/// What became of something a peer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// It is part of this node's state now.
    Joined {
        /// Whether it may have told this node anything.
        priority: bool,
    },
    /// It no longer matters.
    Expired,
    /// There is no room for its key; counted as refused.
    Full,
    /// Its key holds something of another form here; whoever sent it is wrong.
    Foreign,
}

impl Store {
    /// Hands up to `max` eventual keys that changed since they were last handed over to `send`,
    /// urgent ones first, and returns how many there were. `send` runs under a shard's lock: it
    /// copies what it needs and returns.
    ///
    /// What is handed over counts as sent. A caller that could not deliver it says so with
    /// [`Store::enqueue_sync`].
    pub fn drain_sync_queue(
        &self,
        max: usize,
        mut send: impl FnMut(KeyHash, &ActorCounters),
    ) -> usize {
        let urgent = self.drain_urgent_sync(max, &mut send);
        urgent + self.drain(false, max - urgent, &mut send)
    }

    /// Like [`Store::drain_sync_queue`], but only keys that are close to their limit: for the push that
    /// does not wait for the next round.
    pub fn drain_urgent_sync(
        &self,
        max: usize,
        mut send: impl FnMut(KeyHash, &ActorCounters),
    ) -> usize {
        self.drain(true, max, &mut send)
    }

    /// Puts a key in line to be sent again. A key that is gone meanwhile has nothing to send.
    pub fn enqueue_sync(&self, key: KeyHash) {
        let shard = &mut *self.shard(key.token).lock();
        if let Some(slot) = shard.table.find_mut(key) {
            shard.queues.enqueue_eventual(slot, SyncPriority::Calm);
        }
    }

    /// Like [`Store::enqueue_sync`], ahead of the keys that are not close to their limit.
    pub fn enqueue_urgent_sync(&self, key: KeyHash) {
        let shard = &mut *self.shard(key.token).lock();
        if let Some(slot) = shard.table.find_mut(key) {
            shard.queues.enqueue_eventual(slot, SyncPriority::Urgent);
        }
    }

    /// Joins what a peer counted into a key, which may be new to this node. Give it only what
    /// [`Delta::validate`] has let through. Does not put the key in line: who hears of it next is
    /// the caller's to know.
    ///
    /// After a rule changed its window's slices, columns of the other shape are no news until this
    /// node's own have expired or it is asked itself.
    pub fn merge_actor_counters(&self, key: KeyHash, delta: &Delta, now: Timestamp) -> Merged {
        let shard = &mut *self.shard(key.token).lock();
        let now = shard.instant(now);
        if let Some((slot, queues)) = shard.live_mut(key, now) {
            let State::ActorCounters(actor_counters) = &mut slot.state else {
                return Merged::Foreign;
            };
            let priority = actor_counters.merge(delta).changed;
            let expires = actor_counters.absent_at();
            slot.prolong(expires);
            if priority {
                queues.enqueue_snapshot(slot);
            }
            return Merged::Joined { priority };
        }
        let Ok(actor_counters) = ActorCounters::try_from(delta.clone()) else {
            return Merged::Expired;
        };
        let expires = actor_counters.absent_at();
        shard.adopt(
            StoredCounter { key, state: State::ActorCounters(Box::new(actor_counters)), expires },
            now,
        )
    }

    /// All columns this node knows of an eventual key.
    pub fn actor_counters(&self, key: KeyHash) -> Option<ActorCounters> {
        self.read_actor_counters(key, Clone::clone)
    }

    /// What `read` makes of them. It runs under a shard's lock and asks the store nothing.
    pub fn read_actor_counters<T>(
        &self,
        key: KeyHash,
        read: impl FnOnce(&ActorCounters) -> T,
    ) -> Option<T> {
        self.shard(key.token).lock().table.find(key)?.state.actor_counters().map(read)
    }

    fn drain(
        &self,
        urgent_only: bool,
        max: usize,
        send: &mut impl FnMut(KeyHash, &ActorCounters),
    ) -> usize {
        self.drain_shards(&self.drain_from, DRAIN_PER_LOCK, max, |shard, max| {
            shard.queues.drain_eventual(&mut shard.table, urgent_only, max, &mut *send)
        })
    }
}

/// Notes that this node was asked about an eventual key. `verdict` is `None` when nothing was
/// charged because another limit refused.
///
/// The key's peers should hear when its columns changed, and when a bucket sees its first ask here:
/// a node that only refuses must still be told what the others count. A slot without columns has
/// nothing to say and is left to expire.
///
/// Behind that first ask, a key far from its limit is told seldom (`far.rs`), and as soon as any
/// other once an ask finds it nearer. What was given back is told without that delay: peers may be
/// refusing.
pub(super) fn touch(
    slot: &mut Slot,
    queues: &mut Queues,
    quota: &Quota,
    ask: Question,
    verdict: Option<&Verdict>,
) {
    if matches!(slot.state, State::Absent) {
        return;
    }
    slot.prolong(bucket_end(quota, ask.now));
    let counts_refusals = quota.algorithm() == Algorithm::FixedWindow;
    let changed = verdict.is_some_and(|verdict| verdict.allowed || counts_refusals);
    if changed {
        queues.enqueue_snapshot(slot);
    }
    let is_first = !slot.stamp.has(Stamp::TOUCHED);
    let may_wait = !is_first && ask.hits.charge() > 0;
    let priority = match verdict {
        Some(verdict) if is_urgent(verdict) => SyncPriority::Urgent,
        Some(verdict) if may_wait && is_lazy(verdict, ask.counting_mode.slack_divisor()) => {
            SyncPriority::Far
        }
        _ => SyncPriority::Calm,
    };
    let is_nearer = verdict.is_some() && slot.stamp.priority() == SyncPriority::Far;
    if changed || is_first || is_nearer {
        slot.stamp.raise(Stamp::TOUCHED);
        queues.enqueue_eventual(slot, priority);
    }
}

/// When what is counted at `now` stops to matter.
pub(super) fn bucket_end(quota: &Quota, now: Timestamp) -> Timestamp {
    let buckets = u64::from(quota.sub_windows()).max(1);
    let bucket = (quota.window().as_nanos() / buckets).max(1);
    let index = now.as_nanos() / bucket;
    Timestamp::EPOCH.plus(Span::from_nanos((index + buckets + 1).saturating_mul(bucket)))
}

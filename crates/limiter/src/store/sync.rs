//! Synchronisation of eventual keys: which changes are sent to peers and when, and merging theirs.
//!
//! # Expiry
//!
//! An eventual slot lives as long as any of its slices matters: with slices of length `b` of which
//! `n` cover the window, a count in slice `i` matters until `(i + n + 1) × b` (the oldest slice
//! overlaps the window until then). It does not end when this node's own count has expired, because
//! the counts of other actors may still matter.
//!
//! **Worked example.** 100 a minute in 6 sub-windows: `b` = 10 s, `n` = 6. A key checked at
//! 12:00:03 is kept until 12:01:10.
//!
//! # When a change is sent
//!
//! Over-admission is the arrival rate times the time in which peers learn of it, and what nodes
//! hold back. So a count is *announced* at once when what is held back would matter, and otherwise
//! waits for others to share its message. With `h` hits of this node that peers have not been sent,
//! of a limit of which, as far as this node knows, `used` are used and `left` are left:
//!
//! | priority | condition | sent |
//! |---|---|---|
//! | urgent | `h × D > left`, with `D` = `SYNC_SLACK_DIVISOR` × nodes | at once |
//! | lazy | `used × D ≤ limit` | by a slow background scan over all keys |
//! | normal | otherwise; the first check of a slice; a refund | in the next round |
//!
//! A merge of what others counted may make hits urgent as well: they are held back from less.
//! The first check of a slice is sent so that the owner of the key, which collects the counts,
//! sends those of others to this node too.
//!
//! **Bound:** what all nodes together hold back from announcing is at most one part in
//! `SYNC_SLACK_DIVISOR` of what is left of the limit, so it vanishes near the limit, at any rate
//! and however slow the rounds. A limit `L` causes at most about `D × (1 + ln(L / D))`
//! announcements in a window; fewer if they cannot be sent as fast.
//!
//! **Worked example.** 1,000 a minute on three nodes, `D` = 30: a key is lazy up to 33 hits. A
//! node that alone used it announces its first 33 hits together, at 600 used 14, and of the last 30
//! each one.

use std::task::Waker;

use super::copies::{Cursor, MergeOutcome, StoredCounter};
use super::counting_mode::CheckParams;
use super::key::KeyHash;
use super::queues::{Queues, send_eventual};
use super::sharded::Store;
use super::slot::{Meta, Slot, SyncPriority};
use crate::engine::{ActorCounters, ActorId, Delta, MergeStats, State, Verdict};
use crate::quota::Quota;
use crate::units::{Hits, Span, Timestamp};

/// Keys sent under one lock.
const SYNC_PER_LOCK: usize = 64;
/// Slots that the background scan looks at under one lock.
const SCAN_SLOTS: usize = 512;
/// The position of the background scan over lazy keys. Starts at the default.
#[derive(Debug, Default)]
pub struct BackgroundScan {
    at: Cursor,
    /// Shards that are due, times the number of rounds of a full scan.
    due: usize,
}

/// Whether a charge left its key within the sync slack.
fn is_lazy(verdict: &Verdict, slack_divisor: u32) -> bool {
    let used = u64::from(verdict.limit.saturating_sub(verdict.remaining));
    slack_divisor > 0
        && verdict.allowed
        && used * u64::from(slack_divisor) <= u64::from(verdict.limit)
}

impl Store {
    /// Wakes `waker`, under a shard's lock, when an urgent key is queued in a shard that had none,
    /// until another waker or none is set. Then [`Store::drain_urgent_sync`] has something to take.
    pub fn set_synchronised(&self, waker: Option<&Waker>) {
        for shard in &self.shards {
            shard.lock().queues.set_synchronised(waker);
        }
    }

    /// Passes up to `max` queued eventual keys to `send`, urgent ones first, and returns how many
    /// there were. `send` runs under a shard's lock: it should copy what it needs and return.
    ///
    /// A key passed to `send` counts as sent. Requeue one that could not be delivered with
    /// [`Store::enqueue_sync`].
    pub fn drain_sync_queue(
        &self,
        max: usize,
        mut send: impl FnMut(KeyHash, &ActorCounters),
    ) -> usize {
        let urgent = self.drain_urgent_sync(max, &mut send);
        urgent + self.drain(false, max - urgent, &mut send)
    }

    /// Like [`Store::drain_sync_queue`], but only urgent keys: for the push between two rounds.
    pub fn drain_urgent_sync(
        &self,
        max: usize,
        mut send: impl FnMut(KeyHash, &ActorCounters),
    ) -> usize {
        self.drain(true, max, &mut send)
    }

    /// One round of a background scan that covers all eventual keys in `rounds` rounds: passes
    /// those with unsent changes, lazy ones included, to `send` as [`Store::drain_sync_queue`]
    /// does, and returns how many there were. Stops after `max` keys, or up to 63 more, and the
    /// scan then takes longer. Skips expired keys.
    pub fn drain_lazy(
        &self,
        scan: &mut BackgroundScan,
        rounds: usize,
        max: usize,
        now: Timestamp,
        mut send: impl FnMut(KeyHash, &ActorCounters),
    ) -> usize {
        let rounds = rounds.max(1);
        scan.due += self.shards();
        let mut shards_due = scan.due / rounds;
        scan.due %= rounds;
        let mut sent = 0;
        while shards_due > 0 && sent < max {
            let (taken, next) = self.lazy_step(scan.at, now, &mut send);
            sent += taken;
            shards_due -= usize::from(next.seen.is_none());
            scan.at = next;
        }
        sent
    }

    /// Queues a key again. Does nothing if the key is gone.
    pub fn enqueue_sync(&self, key: KeyHash) {
        self.change_slot(key, |slot, queues| queues.enqueue_eventual(slot, SyncPriority::Normal));
    }

    /// Merges the counts of a peer into a key, which may be new to this node. The delta must have
    /// passed [`Delta::validate`]. Does not queue the key: the caller decides who receives it next.
    ///
    /// A delta with slices of another length is ignored. No correct peer sends one: the key
    /// contains window and slices.
    pub fn merge_actor_counters(
        &self,
        key: KeyHash,
        delta: &Delta,
        now: Timestamp,
    ) -> MergeOutcome {
        let shard = &mut *self.shard(key.token).lock();
        let now = shard.instant(now);
        if let Some((slot, queues)) = shard.live_mut(key, now)
            && !matches!(slot.state, State::Absent)
        {
            let State::ActorCounters(actor_counters) = &mut slot.state else {
                return MergeOutcome::WrongKind;
            };
            let MergeStats { changed, refused } = actor_counters.merge(delta);
            let is_due = changed && actor_counters.is_due(now);
            let expires = actor_counters.expires_at();
            slot.extend(expires);
            if changed {
                queues.enqueue_snapshot(slot);
            }
            if is_due {
                queues.enqueue_eventual(slot, SyncPriority::Urgent);
            }
            shard.counts.actors_refused += refused as u64;
            return MergeOutcome::Merged { changed };
        }
        let Ok(actor_counters) = ActorCounters::try_from(delta.clone()) else {
            return MergeOutcome::Expired;
        };
        let expires = actor_counters.expires_at();
        let state = State::ActorCounters(Box::new(actor_counters));
        shard.merge(StoredCounter { key, state, expires }, now)
    }

    /// Folds the counters of earlier starts of an eventual key ([`ActorCounters::fold`]). Returns
    /// whether anything was folded. Does not queue the key for peers.
    pub fn fold(
        &self,
        key: KeyHash,
        first_kept: ActorId,
        is_complete: impl Fn(u64) -> bool,
    ) -> bool {
        let mut is_folded = false;
        self.change_slot(key, |slot, queues| {
            if let State::ActorCounters(actor_counters) = &mut slot.state
                && actor_counters.fold(first_kept, is_complete)
            {
                is_folded = true;
                queues.enqueue_snapshot(slot);
            }
        });
        is_folded
    }

    /// Folds every eventual key, of a node that has no peers and so all counters of its starts.
    /// Returns its newest total. Scans the store, so it is for the start of a node.
    pub fn fold_all(&self, first_kept: ActorId, now: Timestamp) -> Option<ActorId> {
        let (mut from, mut newest) = (Some(Cursor::default()), None);
        while let Some(cursor) = from {
            let mut found = Vec::new();
            from = self.scan(cursor, now, SCAN_SLOTS, KeyHash::is_eventual, &mut found);
            for StoredCounter { key, .. } in found {
                self.fold(key, first_kept, |_| true);
                let total = |it: &ActorCounters| it.to_delta().total_of(first_kept.writer());
                newest = newest.max(self.read_actor_counters(key, total).flatten());
            }
        }
        newest
    }

    /// A copy of the per-actor counters of an eventual key.
    pub fn actor_counters(&self, key: KeyHash) -> Option<ActorCounters> {
        self.read_actor_counters(key, Clone::clone)
    }

    /// Applies `read` to the per-actor counters of an eventual key. It runs under a shard's lock
    /// and must not use the store.
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
        self.drain_shards(&self.sync_from, SYNC_PER_LOCK, max, |shard, max| {
            shard.queues.drain_eventual(&mut shard.table, urgent_only, max, &mut *send)
        })
    }

    /// One bounded step of the background scan, and where to continue.
    fn lazy_step(
        &self,
        from: Cursor,
        now: Timestamp,
        send: &mut impl FnMut(KeyHash, &ActorCounters),
    ) -> (usize, Cursor) {
        let Some(shard) = self.shards.get(from.shard) else { return (0, Cursor::default()) };
        let table = &mut shard.lock().table;
        let (range, mut next) = table.next_range(from.seen, SCAN_SLOTS);
        let mut sent = 0;
        for slot in table.occupied_mut(range) {
            sent +=
                usize::from(!slot.is_expired(now) && send_eventual(slot, SyncPriority::Lazy, send));
            if sent == SYNC_PER_LOCK {
                next = Some(slot.key);
                break;
            }
        }
        match next {
            Some(_) => (sent, Cursor { seen: next, ..from }),
            None => (sent, Cursor { shard: (from.shard + 1) % self.shards(), seen: None }),
        }
    }
}

/// Records a check of an eventual key: extends its slot and queues it for peers and disk. `verdict`
/// is `None` when nothing was charged because a limit of the check denied it.
///
/// The key is sent when its counters changed, and at its first check in a slice: a node that only
/// denies must still receive the counts of others. A slot without counters has nothing to send and
/// is left to expire. A lazy key that is denied sends what it held back.
pub(super) fn record_check(
    slot: &mut Slot,
    queues: &mut Queues,
    quota: &Quota,
    params: CheckParams,
    verdict: Option<&Verdict>,
) {
    let State::ActorCounters(actor_counters) = &mut slot.state else { return };
    let divisor = params.me.map_or(0, |me| me.slack_divisor);
    let counted = verdict.filter(|verdict| verdict.allowed && params.hits != Hits::PEEK);
    let is_urgent = counted.is_some_and(|verdict| {
        actor_counters.note_remaining(verdict.remaining, verdict.limit, divisor)
    });
    slot.extend(slice_expiry(quota, params.now));
    if counted.is_some() {
        queues.enqueue_snapshot(slot);
    }
    let is_first = !slot.meta.has(Meta::CHECKED);
    let is_charge = !is_first && params.hits.charge() > 0;
    let priority = match counted {
        _ if is_urgent => SyncPriority::Urgent,
        Some(verdict) if is_charge && is_lazy(verdict, divisor) => SyncPriority::Lazy,
        _ => SyncPriority::Normal,
    };
    let was_lazy = verdict.is_some() && slot.meta.priority() == SyncPriority::Lazy;
    if counted.is_some() || is_first || was_lazy {
        slot.meta.raise(Meta::CHECKED);
        queues.enqueue_eventual(slot, priority);
    }
}

/// From this instant on a count at `now` does not matter.
pub(super) fn slice_expiry(quota: &Quota, now: Timestamp) -> Timestamp {
    let slices = u64::from(quota.sub_windows()).max(1);
    let slice_ns = quota.slice().as_nanos();
    let index = now.as_nanos() / slice_ns;
    Timestamp::EPOCH.plus(Span::from_nanos((index + slices + 1).saturating_mul(slice_ns)))
}

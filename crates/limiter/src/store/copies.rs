//! Copies of whole counters: reading them for replication, handoff and snapshots, and merging them.
//!
//! - **Replication** drains a queue of strict keys that changed. A charge or a refund is a change;
//!   a peek, a denial that counts nothing and a [`Store::merge`] are not.
//! - **Snapshots** scan for keys with windows of an hour or more ([`KeyHash::is_long`]), strict and
//!   eventual, that changed since they were last written. Only those are kept over a restart.
//!   *The end of a reservation comes after its cost.* A scan has gone past a counter when a commit
//!   changes it and the reservation, which is still to come. Had the disk the end alone, the same
//!   commit again would count nothing, and its cost would be lost. So the first scan that comes to
//!   a settled reservation passes it, and the next one takes it: the counters that its commit
//!   changed are in one of the two.
//! - **Handoff** and anti-entropy scan all keys of a token range.

use std::task::Waker;

use super::key::KeyHash;
use super::occupancy::Slots;
use super::shard::Shard;
use super::sharded::Store;
use super::slot::{Meta, Slot};
use crate::engine::{State, first_hit_window};
use crate::units::Timestamp;

/// Slots that one step of a scan looks at, under one lock.
const SCAN_SLOTS: usize = 1_024;
/// Keys that could not be removed from a snapshot, and are to be removed from the next.
const DROPPED_MAX: usize = 65_536;
/// Keys drained from the replication queue under one lock.
const REPLICATE_PER_LOCK: usize = 64;

/// A counter outside the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCounter {
    pub key: KeyHash,
    pub state: State,
    /// From this instant on the state equals [`State::Absent`].
    pub expires: Timestamp,
}

impl StoredCounter {
    fn of(slot: &Slot) -> Self {
        Self { key: slot.key, state: slot.state.copy(), expires: slot.meta.expires() }
    }
}

/// The position of a scan. Starts at the default.
///
/// Keys have a fixed order, and the cursor holds the last key seen. So a key that is in the store
/// during the whole scan is seen exactly once, whatever is inserted or removed between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    pub(super) shard: usize,
    pub(super) seen: Option<KeyHash>,
}

impl Cursor {
    /// Where the part of the store begins that this position is in. All keys of one token are in
    /// one part.
    #[must_use]
    pub fn part(self) -> Self {
        Self { seen: None, ..self }
    }
}

/// What a step of a snapshot has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotStep {
    /// Where to continue; `None` at the end.
    pub next: Option<Cursor>,
    /// Whether it has passed the end of a reservation, which the next scan of its part takes.
    pub has_passed: bool,
}

/// The result of merging a counter into the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeOutcome {
    /// Merged into this store.
    Merged {
        /// Whether the state here may have changed.
        changed: bool,
    },
    /// It counts nothing any more, or is no counter, and was ignored.
    Expired,
    /// No room for its key; counted in [`Stats::refused`](super::Stats::refused).
    Full,
    /// The key holds a state of another kind here: the sender is faulty.
    WrongKind,
}

// === reading and merging ===

impl Store {
    /// One bounded step of a scan over the counters that `is_included` selects (a range of tokens,
    /// say): appends at most `max` of them to `out`, and returns where to continue, `None` at the
    /// end. A step may find nothing. Skips expired counters.
    pub fn scan(
        &self,
        from: Cursor,
        now: Timestamp,
        max: usize,
        is_included: impl Fn(KeyHash) -> bool,
        out: &mut Vec<StoredCounter>,
    ) -> Option<Cursor> {
        self.scan_step(from, max, out, |slot| is_included(slot.key) && !slot.is_expired(now))
    }

    /// Like [`Store::scan`], without copying: passes key, state and expiry of each counter to
    /// `visit`, under a shard's lock.
    pub fn visit(
        &self,
        from: Cursor,
        now: Timestamp,
        is_included: impl Fn(KeyHash) -> bool,
        mut visit: impl FnMut(KeyHash, &State, Timestamp),
    ) -> Option<Cursor> {
        self.scan_step(from, usize::MAX, &mut Vec::new(), |slot| {
            if is_included(slot.key) && !slot.is_expired(now) {
                visit(slot.key, &slot.state, slot.meta.expires());
            }
            false
        })
    }

    /// One bounded step of a scan that ends the credit of all counters that `is_included` selects
    /// ([`first_hit_window::end_credit`]): those that another node decides from now on.
    pub fn end_credits(
        &self,
        from: Cursor,
        is_included: impl Fn(KeyHash) -> bool,
    ) -> Option<Cursor> {
        self.scan_step(from, usize::MAX, &mut Vec::new(), |slot| {
            if is_included(slot.key) {
                first_hit_window::end_credit(&mut slot.state);
            }
            false
        })
    }

    /// One counter, unless it expired.
    pub fn get(&self, key: KeyHash, now: Timestamp) -> Option<StoredCounter> {
        let shard = self.shard(key.token).lock();
        let slot = shard.table.find(key).filter(|slot| !slot.is_expired(now))?;
        Some(StoredCounter::of(slot))
    }

    /// Merges a counter from elsewhere into this store; no hit of either side is lost.
    ///
    /// Does not queue the key for replication: the caller decides who receives it next, and
    /// replicas that forward what they receive would never finish.
    pub fn merge(&self, counter: StoredCounter, now: Timestamp) -> MergeOutcome {
        let shard = &mut *self.shard(counter.key.token).lock();
        let now = shard.instant(now);
        shard.merge(counter, now)
    }

    /// Removes a counter that another node holds from now on.
    pub fn remove(&self, key: KeyHash) -> Option<State> {
        let shard = &mut *self.shard(key.token).lock();
        shard.remove(key).map(|slot| slot.state)
    }

    /// One bounded step of a scan over all slots: appends those that `select` returns true for.
    /// `select` may change their flags.
    fn scan_step(
        &self,
        from: Cursor,
        max: usize,
        out: &mut Vec<StoredCounter>,
        mut select: impl FnMut(&mut Slot) -> bool,
    ) -> Option<Cursor> {
        let mut shard = self.shards.get(from.shard)?.lock();
        let (range, next) = shard.table.next_range(from.seen, SCAN_SLOTS);
        let len_max = out.len().saturating_add(max.max(1));
        let mut seen = from.seen;
        for slot in shard.table.occupied_mut(range) {
            if out.len() == len_max {
                return Some(Cursor { seen, ..from });
            }
            seen = Some(slot.key);
            if select(slot) {
                out.push(StoredCounter::of(slot));
            }
        }
        if next.is_some() {
            return Some(Cursor { seen: next, ..from });
        }
        let next = from.shard + 1;
        self.shards.get(next).map(|_| Cursor { shard: next, seen: None })
    }
}

impl Shard {
    /// Merges a counter from elsewhere, whose key may be new here.
    pub(super) fn merge(&mut self, counter: StoredCounter, now: Timestamp) -> MergeOutcome {
        let StoredCounter { key, state, expires } = counter;
        if expires <= now || matches!(state, State::Absent) {
            return MergeOutcome::Expired;
        }
        self.forget_reservation(key);
        if let Some((slot, queues)) = self.live_mut(key, now) {
            if state.is_over_before(expires, &slot.state) {
                return MergeOutcome::Merged { changed: false };
            }
            let before = slot.state.clone();
            if before.is_over_before(slot.meta.expires(), &state) {
                slot.state = State::Absent;
                slot.meta = slot.meta.with_expiry(expires);
            }
            slot.state.merge(state);
            slot.extend(expires);
            let changed = slot.state != before;
            if changed {
                queues.enqueue_snapshot(slot);
            }
            let is_reservation = slot.state.reservation().is_some();
            self.occupancy.changed(key, before.reservation().is_some(), is_reservation);
            if is_reservation {
                self.note_reservation(key);
                self.may_have_refused(key);
            }
            return MergeOutcome::Merged { changed };
        }
        let is_reservation = state.reservation().is_some();
        let has_room = if is_reservation {
            self.has_room_for_reservation(Slots::Further, now)
        } else {
            self.reserve(key, 1, now)
        };
        if !has_room {
            // A copy that found no room is sent again and again.
            if is_reservation || !self.is_domain_full(key) {
                self.counts.refused += 1;
            }
            return MergeOutcome::Full;
        }
        let mut slot = Slot::new(key, state, expires);
        self.queues.enqueue_snapshot(&mut slot);
        self.insert(slot);
        if is_reservation {
            self.may_have_refused(key);
        }
        MergeOutcome::Merged { changed: true }
    }
}

// === replication queue ===

impl Store {
    /// Queues changed strict keys for [`Store::drain_replication_queue`] from now on, or stops. Off
    /// by default, so that a node without replicas does not pay for it.
    ///
    /// `waker` is woken, under a shard's lock, when a key is queued in a shard that had none. After
    /// a drain that took all keys nothing needs to be drained until then.
    pub fn set_replicated(&self, waker: Option<&Waker>) {
        for shard in &self.shards {
            shard.lock().queues.set_replicated(waker);
        }
    }

    /// Passes up to `max` queued strict keys to `send` and returns how many there were; fewer than
    /// `max` are all. `send` runs under a shard's lock. It receives no state: read the latest with
    /// [`Store::get`] when the message is built.
    ///
    /// A key passed to `send` counts as sent. Requeue one that could not be delivered with
    /// [`Store::enqueue_replication`].
    pub fn drain_replication_queue(&self, max: usize, mut send: impl FnMut(KeyHash)) -> usize {
        self.drain_shards(&self.replication_from, REPLICATE_PER_LOCK, max, |shard, max| {
            shard.queues.drain_strict(&mut shard.table, max, &mut send)
        })
    }

    /// Queues a strict key again. Does nothing if the key is gone.
    pub fn enqueue_replication(&self, key: KeyHash) {
        self.change_slot(key, |slot, queues| queues.enqueue_strict(slot));
    }
}

// === snapshots ===

impl Store {
    /// Whether changed long keys are marked for [`Store::drain_snapshot_queue`]. Off by default;
    /// changes made while it is off are not marked.
    pub fn set_snapshotted(&self, enabled: bool) {
        for shard in &self.shards {
            shard.lock().queues.set_snapshotted(enabled);
        }
    }

    /// One bounded step of a scan over the keys with unsaved changes: appends at most `max` of them
    /// to `out`. A step may find nothing. Skips expired counters, which a restart need not restore.
    ///
    /// A counter appended to `out` counts as saved. Mark one that could not be written with
    /// [`Store::enqueue_snapshot`].
    pub fn drain_snapshot_queue(
        &self,
        from: Cursor,
        now: Timestamp,
        max: usize,
        out: &mut Vec<StoredCounter>,
    ) -> SnapshotStep {
        let mut has_passed = false;
        let next = self.scan_step(from, max, out, |slot| {
            let is_unsaved = slot.meta.has(Meta::UNSAVED);
            if is_unsaved && slot.is_settled_reservation() && !slot.meta.has(Meta::PASSED) {
                slot.meta.raise(Meta::PASSED);
                has_passed = true;
                return false;
            }
            slot.meta.clear(Meta::UNSAVED);
            is_unsaved && !slot.is_expired(now) && !matches!(slot.state, State::Absent)
        });
        SnapshotStep { next, has_passed }
    }

    /// The same of all long keys, saved or not, which stay as they are: for a new snapshot, before
    /// what changes meanwhile is drained.
    pub fn scan_snapshot(
        &self,
        from: Cursor,
        now: Timestamp,
        max: usize,
        out: &mut Vec<StoredCounter>,
    ) -> Option<Cursor> {
        self.scan_step(from, max, out, |slot| {
            let is_end = slot.is_settled_reservation() && slot.meta.has(Meta::UNSAVED);
            slot.key.is_long() && !is_end && !slot.is_expired(now)
        })
    }

    /// Removes a counter that this node is not to hold any more, if its state and expiry are as
    /// `is_it` wants; returns whether they are. A snapshot must not bring it back
    /// ([`Store::take_dropped`]).
    pub fn drop_copy(&self, key: KeyHash, is_it: impl FnOnce(&State, Timestamp) -> bool) -> bool {
        let is_snapshotted = {
            let shard = &mut *self.shard(key.token).lock();
            let slot = shard.table.find(key);
            if !slot.is_some_and(|slot| is_it(&slot.state, slot.meta.expires())) {
                return false;
            }
            shard.remove(key);
            shard.queues.is_snapshotted()
        };
        if is_snapshotted && key.is_long() {
            self.dropped.lock().push(key);
        }
        true
    }

    /// The long keys that were dropped since the last call, or of which nothing is left. They may
    /// be in the snapshot, and some may be in the store again: what is queued now is written after
    /// them.
    pub fn take_dropped(&self) -> Vec<KeyHash> {
        let mut dropped = std::mem::take(&mut *self.dropped.lock());
        for shard in &self.shards {
            dropped.extend(shard.lock().queues.take_ended());
        }
        dropped
    }

    /// Notes dropped keys again, which could not be removed from the snapshot: [`DROPPED_MAX`] of
    /// them at most. A restart may bring others back.
    pub fn enqueue_dropped(&self, keys: Vec<KeyHash>) {
        let mut dropped = self.dropped.lock();
        dropped.extend(keys);
        // A key may be dropped again and again while the disk is full.
        dropped.sort_unstable();
        dropped.dedup();
        dropped.truncate(DROPPED_MAX);
    }

    /// How many keys [`Store::take_dropped`] would return. The caller of [`Store::drop_copy`]
    /// bounds it.
    pub fn dropped(&self) -> usize {
        self.dropped.lock().len()
    }

    /// Marks a key as unsaved again. Does nothing if the key is gone.
    pub fn enqueue_snapshot(&self, key: KeyHash) {
        self.change_slot(key, |slot, queues| queues.enqueue_snapshot(slot));
    }
}

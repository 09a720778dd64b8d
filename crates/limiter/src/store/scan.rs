//! Reading and moving whole counters: what replication, handoff and snapshots ride on.

use super::Store;
use super::key::KeyHash;
use super::shard::Shard;
use super::slot::Slot;
use super::sync_queue::Merged;
use crate::engine::State;
use crate::units::Timestamp;

/// Slots a scan looks at in one step, under one lock.
const SCAN_SLOTS: usize = 1_024;

/// A counter outside the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCounter {
    /// Its name.
    pub key: KeyHash,
    /// What was counted.
    pub state: State,
    /// From then on it equals absent.
    pub expires: Timestamp,
}

impl StoredCounter {
    fn of(slot: &Slot) -> Self {
        Self { key: slot.key, state: slot.state.clone(), expires: slot.stamp.expires() }
    }
}

/// Where a scan stands. Start at the default.
///
/// Keys come in an order that nothing changes, and the cursor remembers the last one it saw. So a
/// key that is in the store during the whole scan is seen exactly once, whatever else comes and
/// goes between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    pub(super) shard: usize,
    pub(super) seen: Option<KeyHash>,
}

impl Store {
    /// One bounded step of a scan over the counters that `wants` names (a range of places, say):
    /// appends at most `max` of them to `out`, and returns where to go on, `None` at the end. A
    /// step may well find nothing. Expired counters are left out.
    pub fn scan(
        &self,
        from: Cursor,
        now: Timestamp,
        max: usize,
        wants: impl Fn(KeyHash) -> bool,
        out: &mut Vec<StoredCounter>,
    ) -> Option<Cursor> {
        self.step(from, max, out, |slot| wants(slot.key) && !slot.is_expired(now))
    }

    /// One bounded step of a walk over the counters that `wants` names, without a copy of any:
    /// shows each to `see`, with its state and expiry, under a shard's lock.
    pub fn visit(
        &self,
        from: Cursor,
        now: Timestamp,
        wants: impl Fn(KeyHash) -> bool,
        mut see: impl FnMut(KeyHash, &State, Timestamp),
    ) -> Option<Cursor> {
        self.step(from, usize::MAX, &mut Vec::new(), |slot| {
            if wants(slot.key) && !slot.is_expired(now) {
                see(slot.key, &slot.state, slot.stamp.expires());
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

    /// Joins a counter from elsewhere into this store: after it, nothing that either side counted
    /// is forgotten. Does not put the key in line for its replicas: who hears of it next is the
    /// caller's to know, and a replica that passed on what it was told would never be done.
    pub fn merge(&self, counted: StoredCounter, now: Timestamp) -> Merged {
        let shard = &mut *self.shard(counted.key.token).lock();
        let now = shard.instant(now);
        shard.adopt(counted, now)
    }

    /// One bounded step of a walk over all slots: appends those that `picks`, which may change
    /// their flags.
    pub(super) fn step(
        &self,
        from: Cursor,
        max: usize,
        out: &mut Vec<StoredCounter>,
        mut picks: impl FnMut(&mut Slot) -> bool,
    ) -> Option<Cursor> {
        let mut shard = self.shard_at(from.shard)?.lock();
        let (range, next) = shard.table.stretch(from.seen, SCAN_SLOTS);
        let full = out.len().saturating_add(max.max(1));
        let mut seen = from.seen;
        for slot in shard.table.taken_mut(range) {
            if out.len() == full {
                return Some(Cursor { seen, ..from });
            }
            seen = Some(slot.key);
            if picks(slot) {
                out.push(StoredCounter::of(slot));
            }
        }
        if next.is_some() {
            return Some(Cursor { seen: next, ..from });
        }
        let next = from.shard + 1;
        self.shard_at(next).map(|_| Cursor { shard: next, seen: None })
    }

    /// Forgets a counter: another node has it now.
    pub fn remove(&self, key: KeyHash) -> Option<State> {
        let shard = &mut *self.shard(key.token).lock();
        let slot = shard.table.remove(key)?;
        shard.table.shrink();
        Some(slot.state)
    }
}

impl Shard {
    /// Joins a counter from elsewhere, which may be new here, into its slot.
    pub(super) fn adopt(&mut self, counted: StoredCounter, now: Timestamp) -> Merged {
        let StoredCounter { key, state, expires } = counted;
        if expires <= now || matches!(state, State::Absent) {
            return Merged::Expired;
        }
        if let Some((slot, queues)) = self.live_mut(key, now) {
            let before = slot.state.clone();
            slot.state.merge(state);
            slot.prolong(expires);
            let priority = slot.state != before;
            if priority {
                queues.enqueue_snapshot(slot);
            }
            return Merged::Joined { priority };
        }
        if !self.make_room(1, now) {
            self.counts.refused += 1;
            return Merged::Full;
        }
        let mut slot = Slot::new(key, state, expires);
        self.queues.enqueue_snapshot(&mut slot);
        self.insert(slot);
        Merged::Joined { priority: true }
    }
}

//! Which keys hold something that the disk does not: what snapshots ride on.
//!
//! Only keys of long windows ([`KeyHash::is_long`]) are kept over a restart, strict and eventual
//! ones, this node's own and copies. They do not stand in line: a snapshot every few seconds walks
//! the table, and a flag in the slot says what changed since the last one.

use super::Store;
use super::key::KeyHash;
use super::scan::{Cursor, StoredCounter};
use super::slot::Stamp;
use crate::engine::State;
use crate::units::Timestamp;

impl Store {
    /// Whether changes of long keys are noted for [`Store::drain_snapshot_queue`]. Off at first; what
    /// changed before it was switched on is not noted.
    pub fn set_snapshotted(&self, keeps: bool) {
        for shard in &self.shards {
            shard.lock().queues.set_snapshotted(keeps);
        }
    }

    /// One bounded step of a walk over the keys that hold something unsaved: appends at most `max`
    /// of them to `out` as they are now, and returns where to go on, `None` at the end. A step may
    /// well find nothing. Expired counters are left out: nobody misses them after a restart.
    ///
    /// What is handed over counts as saved. A caller that could not write it says so with
    /// [`Store::enqueue_snapshot`].
    pub fn drain_snapshot_queue(
        &self,
        from: Cursor,
        now: Timestamp,
        max: usize,
        out: &mut Vec<StoredCounter>,
    ) -> Option<Cursor> {
        self.step(from, max, out, |slot| {
            let is_unsaved = slot.stamp.has(Stamp::UNSAVED);
            slot.stamp.clear(Stamp::UNSAVED);
            is_unsaved && !slot.is_expired(now) && !matches!(slot.state, State::Absent)
        })
    }

    /// Notes that a key was not saved after all. One that is gone meanwhile need not be.
    pub fn enqueue_snapshot(&self, key: KeyHash) {
        let shard = &mut *self.shard(key.token).lock();
        if let Some(slot) = shard.table.find_mut(key) {
            shard.queues.enqueue_snapshot(slot);
        }
    }
}

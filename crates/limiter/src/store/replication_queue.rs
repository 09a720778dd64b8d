//! Strict keys: which change is news to their replicas.
//!
//! A charge or a refund is; a peek, or a refusal that counts nothing, is not. What was joined from
//! a peer is not either: see [`Store::merge`].

use super::Store;
use super::key::KeyHash;

/// Changed keys handed over before a shard's lock is given back.
const CHANGED_PER_LOCK: usize = 64;

impl Store {
    /// Whether strict keys stand in line for [`Store::drain_replication_queue`] when they change. Off at
    /// first: a node without replicas need not pay for it.
    pub fn set_replicated(&self, keeps: bool) {
        for shard in &self.shards {
            shard.lock().queues.set_replicated(keeps);
        }
    }

    /// Hands up to `max` strict keys that changed since they were last handed over to `send`, and
    /// returns how many there were; fewer than `max` are all. `send` runs under a shard's lock. It
    /// gets no state: whoever sends it later reads the latest with [`Store::get`].
    ///
    /// What is handed over counts as sent. A caller that could not deliver it says so with
    /// [`Store::enqueue_replication`].
    pub fn drain_replication_queue(&self, max: usize, mut send: impl FnMut(KeyHash)) -> usize {
        self.drain_shards(&self.changed_from, CHANGED_PER_LOCK, max, |shard, max| {
            shard.queues.drain_strict(&mut shard.table, max, &mut send)
        })
    }

    /// Puts a strict key in line to be sent again. A key that is gone meanwhile has nothing to
    /// send.
    pub fn enqueue_replication(&self, key: KeyHash) {
        let shard = &mut *self.shard(key.token).lock();
        if let Some(slot) = shard.table.find_mut(key) {
            shard.queues.enqueue_strict(slot);
        }
    }
}

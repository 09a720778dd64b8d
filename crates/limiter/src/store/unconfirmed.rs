//! Ends of reservations that no replica has confirmed.
//!
//! Such an end must reach nobody without its owner: not the disk, from which a node that was killed
//! would bring it back beside counters of another owner, and not a replica when the lease is over.
//! There the commit would count as done, and its cost be hidden by the join of the counters. Without
//! its end the same commit counts once more at most, so that a limit admits less and never more.
//!
//! **Bound:** the commits that wait for a replica.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::key::KeyHash;
use super::sharded::Store;

#[derive(Debug, Default)]
pub(super) struct Unconfirmed {
    /// How many commits of a key wait.
    keys: Mutex<HashMap<KeyHash, usize>>,
    /// The number of keys, for those who look for one among none.
    count: AtomicUsize,
}

/// A commit that waits for a replica, until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct AwaitsCopy {
    unconfirmed: Arc<Unconfirmed>,
    key: KeyHash,
}

impl Store {
    /// To be called before the commit of a reservation with this key. When the result is dropped,
    /// [`Store::enqueue_replication`] and [`Store::enqueue_snapshot`] send what was held back.
    pub fn awaits_copy(&self, key: KeyHash) -> AwaitsCopy {
        let unconfirmed = Arc::clone(&self.unconfirmed);
        {
            let mut keys = unconfirmed.keys.lock();
            *keys.entry(key).or_default() += 1;
            unconfirmed.count.store(keys.len(), Ordering::Release);
        }
        AwaitsCopy { unconfirmed, key }
    }

    /// Whether a commit of a descriptor with this token waits for a replica.
    pub fn has_unconfirmed(&self, token: u64) -> bool {
        self.unconfirmed.count.load(Ordering::Acquire) > 0
            && self.unconfirmed.keys.lock().keys().any(|key| key.token == token)
    }

    /// Whether a commit with this key waits for a replica.
    pub fn is_unconfirmed(&self, key: KeyHash) -> bool {
        self.unconfirmed.count.load(Ordering::Acquire) > 0
            && self.unconfirmed.keys.lock().contains_key(&key)
    }
}

impl Drop for AwaitsCopy {
    fn drop(&mut self) {
        let mut keys = self.unconfirmed.keys.lock();
        if let Some(count) = keys.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                keys.remove(&self.key);
            }
        }
        self.unconfirmed.count.store(keys.len(), Ordering::Release);
    }
}

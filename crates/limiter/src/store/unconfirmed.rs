//! Ends of reservations that no replica has confirmed.
//!
//! Such an end must not be kept or sent without its owner: not on the disk, from which a node that
//! was killed would bring it back beside counters of another owner, and not to a replica when the
//! lease is over. There the commit would count as done, and its cost be hidden by the join of the
//! counters. Without its end the same commit counts once more at most, so that a limit admits less
//! and never more.
//!
//! **Bound:** the commits that wait for a replica.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::key::KeyHash;

#[derive(Debug, Default)]
pub(super) struct Unconfirmed {
    /// One key for each commit that waits, by their token.
    keys: Mutex<HashMap<u64, Vec<KeyHash>>>,
    /// The number of tokens, for those who look for one among none.
    count: AtomicUsize,
}

/// A commit that waits for a replica, until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct AwaitsCopy {
    unconfirmed: Arc<Unconfirmed>,
    key: KeyHash,
}

impl Unconfirmed {
    pub(super) fn add(self: &Arc<Self>, key: KeyHash) -> AwaitsCopy {
        let mut keys = self.keys.lock();
        keys.entry(key.token).or_default().push(key);
        self.count.store(keys.len(), Ordering::Release);
        AwaitsCopy { unconfirmed: Arc::clone(self), key }
    }

    pub(super) fn has_token(&self, token: u64) -> bool {
        self.has_any() && self.keys.lock().contains_key(&token)
    }

    pub(super) fn has(&self, key: KeyHash) -> bool {
        let is_among = |keys: &Vec<KeyHash>| keys.contains(&key);
        self.has_any() && self.keys.lock().get(&key.token).is_some_and(is_among)
    }

    fn has_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }
}

impl Drop for AwaitsCopy {
    fn drop(&mut self) {
        let Self { unconfirmed, key } = self;
        let mut keys = unconfirmed.keys.lock();
        if let Some(of_token) = keys.get_mut(&key.token) {
            if let Some(at) = of_token.iter().position(|other| other == key) {
                of_token.swap_remove(at);
            }
            if of_token.is_empty() {
                keys.remove(&key.token);
            }
        }
        unconfirmed.count.store(keys.len(), Ordering::Release);
    }
}

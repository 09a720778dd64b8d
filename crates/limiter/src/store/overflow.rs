//! What a new key gets when its shard is full.
//!
//! With `on_full: share`, new keys that are limited alike share one counter with that limit: an
//! attacker with a million names then has one bucket, and keys that were known before keep theirs.
//! With `on_full: refuse` they are refused. Either way it is counted.
//!
//! **Bound:** [`COUNTERS_MAX`] shared counters, outside `keys_max`; when they are taken, new keys
//! are refused. Shared counters are this node's own: an eventual key's share is not synchronised.

use std::hash::{Hash, Hasher};

use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::check::Counter;
use super::counting_mode::CountingMode;
use super::key::KeyHash;
use super::shard::Shard;
use crate::engine::{Retry, Verdict};
use crate::quota::Quota;
use crate::store::OnFull;
use crate::units::{Span, Timestamp};

/// Most shared counters: one for each distinct quota and mode of the rule book in use at once.
const COUNTERS_MAX: usize = 1_024;
/// When a refused new key may try again: by then the sweep has seen some thousand slots.
const REFUSED_RETRY: Span = Span::from_secs(1);

/// The counters that new keys share.
#[derive(Debug)]
pub(super) struct Overflow {
    on_full: OnFull,
    /// Locked only while a full shard is locked, never the other way round.
    shared: Mutex<Shard>,
}

/// Where the counters of one check go that are not in the table yet.
#[derive(Debug)]
pub(super) enum Room<'a> {
    /// Into the table.
    Own,
    /// Into the counter they share with others.
    Shared(MutexGuard<'a, Shard>),
    /// Nowhere.
    Refused,
}

impl Overflow {
    pub(super) fn new(on_full: OnFull) -> Self {
        Self { on_full, shared: Mutex::new(Shard::new(COUNTERS_MAX)) }
    }

    /// Room for the counters of a check that did not fit into their shard.
    pub(super) fn room(&self, counters: impl Iterator<Item = Counter>, now: Timestamp) -> Room<'_> {
        if self.on_full == OnFull::Share {
            let mut shared = self.shared.lock();
            let is_new = |counter: &Counter| shared.table.find(counter.key).is_none();
            let new = counters.filter(is_new).count();
            if shared.make_room(new, now) {
                return Room::Shared(shared);
            }
        }
        Room::Refused
    }

    pub(super) fn bytes(&self) -> usize {
        self.shared.lock().bytes()
    }
}

/// The counter that stands for all new keys limited as `counter` is.
pub(super) fn shared_counter(counter: &Counter, counting_mode: CountingMode) -> Counter {
    let mut sip = SipHasher13::new();
    counter.quota.hash(&mut sip);
    sip.write_u8(u8::from(counting_mode == CountingMode::Strict));
    let hash = sip.finish128();
    Counter { key: KeyHash { token: hash.h1, tag: hash.h2 }, quota: counter.quota }
}

/// The answer to a new key that is refused.
pub(super) fn refusal(quota: &Quota) -> Verdict {
    Verdict {
        allowed: false,
        limit: quota.limit(),
        remaining: 0,
        reset: REFUSED_RETRY,
        retry: Retry::After(REFUSED_RETRY),
        delay: Span::ZERO,
        excess: 0,
    }
}

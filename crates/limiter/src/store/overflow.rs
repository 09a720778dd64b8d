//! What a new key gets when its shard is full.
//!
//! With `on_full: share`, new keys whose limits have the same parameters (the same *quota*) and
//! counting mode (strict or eventual) share one counter: an attacker who invents a million keys
//! then has one counter, and existing keys keep theirs. With `on_full: refuse` new keys are
//! refused. [`Stats`](super::Stats) counts both.
//!
//! **Bound:** [`COUNTERS_MAX`] shared counters, in addition to `keys_max`; when they are in use,
//! new keys are refused. Shared counters are local: eventual keys that use one are not
//! synchronised.

use std::hash::{Hash, Hasher};

use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::counting_mode::CheckParams;
use super::key::{Counter, KeyHash};
use super::options::OnFull;
use super::shard::Shard;
use crate::engine::{Retry, Verdict};
use crate::quota::Quota;
use crate::units::{Hits, Span, Timestamp};

/// Most shared counters: one for each quota and counting mode in use at once.
const COUNTERS_MAX: usize = 1_024;
/// Retry time of a refused new key. In this time the sweep covers some thousand slots.
const REFUSED_RETRY: Span = Span::from_secs(1);

/// The counters that new keys share while their shard is full.
#[derive(Debug)]
pub(super) struct Overflow {
    on_full: OnFull,
    /// Lock order: locked only while a full shard is locked, never before.
    shared: Mutex<Shard>,
}

/// Where new counters of a check are placed.
#[derive(Debug)]
pub(super) enum Placement<'a> {
    /// Into the table of their shard, where slots are reserved.
    Table,
    /// Into shared counters.
    Shared(MutexGuard<'a, Shard>),
    /// Nowhere: the requests are denied.
    Refused,
}

impl Overflow {
    pub(super) fn new(on_full: OnFull) -> Self {
        Self { on_full, shared: Mutex::new(Shard::new(COUNTERS_MAX)) }
    }

    /// Places the counters of a check that did not fit into their shard.
    pub(super) fn place(
        &self,
        counters: impl Iterator<Item = Counter>,
        now: Timestamp,
    ) -> Placement<'_> {
        if self.on_full == OnFull::Share {
            let mut shared = self.shared.lock();
            let is_new = |counter: &Counter| shared.table.find(counter.key).is_none();
            let new = counters.filter(is_new).count();
            // It has no bound for a domain.
            if shared.reserve(KeyHash::default(), new, now) {
                return Placement::Shared(shared);
            }
        }
        Placement::Refused
    }

    pub(super) fn bytes(&self) -> usize {
        self.shared.lock().bytes()
    }
}

/// The counter that all new keys with the quota of `counter` share, of its domain where domains
/// have bounds of their own.
pub(super) fn shared_counter(
    counter: &Counter,
    params: CheckParams,
    domain: Option<usize>,
) -> Counter {
    let mut sip = SipHasher13::new();
    counter.quota.hash(&mut sip);
    sip.write_u8(u8::from(params.me.is_none()));
    if let Some(domain) = domain {
        sip.write_usize(domain);
    }
    let hash = sip.finish128();
    Counter { key: KeyHash { token: hash.h1, tag: hash.h2 }, quota: counter.quota }
}

/// The verdict for a new key that is refused.
pub(super) fn refusal(quota: &Quota) -> Verdict {
    // As for a peek: nothing was counted, so nothing is above the limit.
    Verdict::new(quota, Hits::PEEK, 0, REFUSED_RETRY, Retry::After(REFUSED_RETRY))
}

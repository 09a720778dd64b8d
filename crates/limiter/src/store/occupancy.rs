//! Which slots of a shard count towards which bound.
//!
//! | slots | bound |
//! |---|---|
//! | counters of a shard | its part of `keys_max` |
//! | counters of a shard of one domain | its part of [`Store::with_domain_keys`], if that is set |
//! | reservations of all shards | a quarter of `keys_max`, besides the counters |
//! | these, ids of commits without one, and copies of other nodes' | twice as many |
//!
//! **Domains.** A key names its domain by 8 bits of its tag ([`KeyHash::domain`]), if the hasher
//! was told to ([`KeyHasher::with_domains`]). A domain that has its part is *full*: a new key of it
//! is treated as in a full store, and those of other domains are not. *Example*: a million keys at
//! most, and half a million of each domain. A flood of ten million keys in one occupies half of the
//! store; the other half is left to the others. Two domains share a number, and then their part,
//! with a probability of 1/256.
//!
//! **Reservations.** Those of one descriptor have its token, so they are all in one shard: a bound
//! by shard would be one of a few thousand for a tenant, whatever `keys_max` is.
//!
//! [`Store::with_domain_keys`]: super::Store::with_domain_keys
//! [`KeyHasher::with_domains`]: super::KeyHasher::with_domains

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::key::{DOMAINS, KeyHash};
use super::slot::Slot;

/// The slots of one shard.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    reservations: usize,
    in_store: Arc<InStore>,
    /// `None` where the keys of a domain have no bound of their own.
    domains: Option<Domains>,
}

/// What a slot with a reservation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slots {
    /// A new reservation.
    New,
    /// The id of a commit, which must not count twice, or a copy of another node's, which its owner
    /// may wait for: there is room for these when there is none for new ones.
    Further,
}

/// The slots with reservations of all shards.
#[derive(Debug)]
pub(super) struct InStore {
    reservations: AtomicUsize,
    reservations_max: usize,
}

#[derive(Debug)]
struct Domains {
    /// By number.
    counters: Box<[u32; DOMAINS]>,
    most: u32,
}

impl Occupancy {
    pub(super) fn new(in_store: &Arc<InStore>) -> Self {
        Self { reservations: 0, in_store: in_store.clone(), domains: None }
    }

    /// Sets the maximum number of counters of a domain; `None` is no bound. The shard is empty.
    pub(super) fn bound_domains(&mut self, most: Option<usize>) {
        self.domains = most.map(|most| Domains {
            counters: Box::new([0; DOMAINS]),
            most: u32::try_from(most.max(1)).unwrap_or(u32::MAX),
        });
    }

    /// Slots of this shard with reservations.
    pub(super) fn reservations(&self) -> usize {
        self.reservations
    }

    /// Threads that ask at the same time may exceed the bound by one each.
    pub(super) fn is_full_of_reservations(&self, slots: Slots) -> bool {
        let InStore { reservations, reservations_max } = &*self.in_store;
        let most = match slots {
            Slots::New => *reservations_max,
            Slots::Further => reservations_max.saturating_mul(2),
        };
        reservations.load(Ordering::Relaxed) >= most
    }

    /// How many counters too many there would be with `keys` more in the domain of `key`.
    pub(super) fn excess_of_domain(&self, key: KeyHash, keys: usize) -> usize {
        let Some(Domains { counters, most }) = &self.domains else { return 0 };
        let count = counters.get(key.domain()).map_or(0, |count| *count as usize);
        (count + keys).saturating_sub(*most as usize)
    }

    /// The number of the domain of `key`, where domains have bounds of their own.
    pub(super) fn domain_of(&self, key: KeyHash) -> Option<usize> {
        self.domains.is_some().then(|| key.domain())
    }

    pub(super) fn added(&mut self, slot: &Slot) {
        self.count(slot.key, slot.state.reservation().is_some(), 1);
    }

    pub(super) fn removed(&mut self, slot: &Slot) {
        self.count(slot.key, slot.state.reservation().is_some(), -1);
    }

    /// The slot of `key` had a reservation or not, and has one now or not.
    #[inline]
    pub(super) fn changed(&mut self, key: KeyHash, before: bool, after: bool) {
        if before != after {
            self.count(key, before, -1);
            self.count(key, after, 1);
        }
    }

    fn count(&mut self, key: KeyHash, is_reservation: bool, change: i32) {
        if is_reservation {
            let in_store = &self.in_store.reservations;
            if change > 0 {
                self.reservations += 1;
                in_store.fetch_add(1, Ordering::Relaxed);
            } else {
                self.reservations = self.reservations.saturating_sub(1);
                in_store.fetch_sub(1, Ordering::Relaxed);
            }
        } else if let Some(Domains { counters, .. }) = &mut self.domains
            && let Some(count) = counters.get_mut(key.domain())
        {
            *count = count.saturating_add_signed(change);
        }
    }
}

impl InStore {
    pub(super) fn new(reservations_max: usize) -> Self {
        Self { reservations: AtomicUsize::new(0), reservations_max }
    }
}

impl Default for InStore {
    /// Without a bound.
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

//! Which slots of a shard count towards which bound.
//!
//! | slots | bound |
//! |---|---|
//! | counters of a shard | its part of `keys_max` |
//! | counters of one domain in all shards | [`Store::with_domain_keys`], if that is set |
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
//! **One number for all shards.** A bound by shard would be reached far below the whole: 1,000 keys
//! of a domain are 4 for each of 244 shards, and the first shard has 5 of 300 keys. Reservations of
//! one descriptor have its token, so they are even all in one shard. What has expired in other
//! shards counts until it is swept there ([`Store::expire`]).
//!
//! [`Store::expire`]: super::Store::expire
//! [`Store::with_domain_keys`]: super::Store::with_domain_keys
//! [`KeyHasher::with_domains`]: super::KeyHasher::with_domains

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::key::{DOMAINS, KeyHash};
use super::slot::Slot;

/// The slots of one shard.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    reservations: usize,
    in_store: Arc<InStore>,
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

/// The slots of all shards. Threads that ask at the same time may each exceed its bounds by what
/// they add.
#[derive(Debug)]
pub(super) struct InStore {
    reservations: AtomicUsize,
    reservations_max: usize,
    /// `None` where the keys of a domain have no bound of their own.
    domains: Option<Domains>,
}

#[derive(Debug)]
struct Domains {
    /// By number.
    counters: Box<[AtomicU32; DOMAINS]>,
    most: usize,
}

impl Occupancy {
    pub(super) fn new(in_store: &Arc<InStore>) -> Self {
        Self { reservations: 0, in_store: in_store.clone() }
    }

    /// Counts for an empty store with at most `most` counters of each domain; 0 means no bound.
    pub(super) fn with_domain_keys(&self, most: usize) -> Arc<InStore> {
        Arc::new(self.in_store.with_domain_keys(most))
    }

    /// Slots of this shard with reservations.
    pub(super) fn reservations(&self) -> usize {
        self.reservations
    }

    pub(super) fn is_full_of_reservations(&self, slots: Slots) -> bool {
        let InStore { reservations, reservations_max, .. } = &*self.in_store;
        let most = match slots {
            Slots::New => *reservations_max,
            Slots::Further => reservations_max.saturating_mul(2),
        };
        reservations.load(Ordering::Relaxed) >= most
    }

    /// How many counters too many there would be with `keys` more in the domain of `key`.
    pub(super) fn excess_of_domain(&self, key: KeyHash, keys: usize) -> usize {
        let Some(Domains { counters, most }) = &self.in_store.domains else { return 0 };
        let count = counters.get(key.domain()).map_or(0, |count| count.load(Ordering::Relaxed));
        (count as usize + keys).saturating_sub(*most)
    }

    /// The number of the domain of `key`, where domains have bounds of their own.
    pub(super) fn domain_of(&self, key: KeyHash) -> Option<usize> {
        self.in_store.domains.is_some().then(|| key.domain())
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
        } else if let Some(Domains { counters, .. }) = &self.in_store.domains
            && let Some(count) = counters.get(key.domain())
        {
            // Adding the two's complement is subtracting.
            count.fetch_add(change.cast_unsigned(), Ordering::Relaxed);
        }
    }
}

impl InStore {
    pub(super) fn new(reservations_max: usize) -> Self {
        Self { reservations: AtomicUsize::new(0), reservations_max, domains: None }
    }

    /// Counts for an empty store: the same bound for reservations, and at most `most` counters of
    /// each domain; 0 means no bound.
    pub(super) fn with_domain_keys(&self, most: usize) -> Self {
        let counters = || Box::new([const { AtomicU32::new(0) }; DOMAINS]);
        let domains = (most > 0).then(|| Domains { counters: counters(), most });
        Self { domains, ..Self::new(self.reservations_max) }
    }
}

impl Default for InStore {
    /// Without a bound.
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

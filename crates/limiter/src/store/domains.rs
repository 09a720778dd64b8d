//! How many keys of a shard each domain has, so that a flood in one domain does not fill the store
//! for the others.
//!
//! A key names its domain by 8 bits of its tag ([`KeyHash::domain`]), if the hasher was told to
//! ([`KeyHasher::with_domains`](super::KeyHasher::with_domains)). A domain that has its part of the
//! shard is *full*: a new key of it is treated as in a full store, and those of other domains are
//! not.
//!
//! *Example*: a million keys at most, and half a million of each domain. A flood of ten million
//! keys in one domain occupies half of the store; the other half is left to the others.
//!
//! **Bound.** Two of the names share a number with a probability of 1/256, and then their part.
//! There are 1 KiB of counts for each shard of 4,096 keys.

use super::key::{DOMAINS, KeyHash};

/// The keys of each domain.
#[derive(Clone, Debug)]
pub(super) struct Domains {
    counts: [u32; DOMAINS],
    most: u32,
}

impl Domains {
    /// None yet; each may have `most`.
    pub(super) fn new(most: usize) -> Self {
        Self { counts: [0; DOMAINS], most: u32::try_from(most.max(1)).unwrap_or(u32::MAX) }
    }

    /// How many keys too many there would be with `keys` more in the domain of `key`.
    pub(super) fn excess(&self, key: KeyHash, keys: usize) -> usize {
        let count = self.counts.get(key.domain()).map_or(0, |count| *count as usize);
        (count + keys).saturating_sub(self.most as usize)
    }

    pub(super) fn added(&mut self, key: KeyHash) {
        if let Some(count) = self.counts.get_mut(key.domain()) {
            *count = count.saturating_add(1);
        }
    }

    pub(super) fn removed(&mut self, key: KeyHash) {
        if let Some(count) = self.counts.get_mut(key.domain()) {
            *count = count.saturating_sub(1);
        }
    }
}

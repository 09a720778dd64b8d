//! Digests: one sum per segment of the ring, by which two nodes find the copies that differ.
//!
//! ```text
//! segment(key) = upper 12 bits of its token
//! sum(segment) = Σ siphash(key, expiry, state)     over the keys in it, wrapping
//! ```
//!
//! A sum does not depend on the order of its keys, and two nodes with equal sums hold the same
//! states but for a chance of one in 2^64. Two nodes with the same view agree on the keys to sum,
//! so a segment whose sums differ has a copy that is missing or old, or that has changed since.
//!
//! **Example.** 200,000 keys between two nodes are some 49 per segment. One lost message of 1,024
//! keys is found by comparing 32 KiB, and costs some ten messages.

use std::collections::BTreeMap;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use tidegate_limiter::engine::State;
use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::{Monotonic, Timestamp};
use tidegate_ownership::identity::NodeId;

use super::targets::Targets;
use crate::mesh::wire::{DIGESTS_MAX, Digest};

const SEGMENT_BITS: u32 = 12;
const SEGMENTS: u16 = 1 << SEGMENT_BITS;

/// Whether the digests that a peer sent are within their bounds.
pub fn are_valid_digests(digests: &[Digest]) -> bool {
    digests.len() <= DIGESTS_MAX && digests.iter().all(|digest| digest.segment < SEGMENTS)
}

/// The sums over all strict keys in the store, taken by one scan of it. Keys that change during the
/// scan are included as they are when the scan reaches them.
///
/// **Bound:** 64 KiB per peer that shares keys with this node.
#[derive(Debug)]
pub(super) struct DigestSnapshot {
    /// When the scan began.
    pub(super) taken: Monotonic,
    /// By replica: the copies that it should hold of this node's keys.
    pub(super) owned: BTreeMap<NodeId, Sums>,
    /// By owner: the copies that this node holds of its keys.
    pub(super) held: BTreeMap<NodeId, Sums>,
}

impl DigestSnapshot {
    pub(super) fn add(&mut self, targets: &Targets, key: KeyHash, fingerprint: u64) {
        if let Some(owner) = targets.first_owner(key) {
            self.held.entry(owner.clone()).or_default().add(key, fingerprint);
        }
        let by_ring = targets.by_ring(key);
        let Some((owner, replicas)) = by_ring.split_first() else { return };
        let me = &targets.topology.me;
        if owner == me {
            for replica in replicas.iter().chain(targets.second_owner(key)) {
                self.owned.entry(replica.clone()).or_default().add(key, fingerprint);
            }
        } else if replicas.contains(me) {
            self.held.entry(owner.clone()).or_default().add(key, fingerprint);
        }
    }
}

/// The sums of one node's copies of another node's keys.
#[derive(Clone, Debug)]
pub(super) struct Sums(Box<[u64]>);

impl Sums {
    fn add(&mut self, key: KeyHash, fingerprint: u64) {
        if let Some(sum) = self.0.get_mut(usize::from(segment(key))) {
            *sum = sum.wrapping_add(fingerprint);
        }
    }

    /// The sums of the segments that have any key.
    pub(super) fn digests(&self) -> Vec<Digest> {
        let all = (0..SEGMENTS).zip(&self.0);
        all.filter(|(_, sum)| **sum != 0)
            .map(|(segment, sum)| Digest { segment, sum: *sum })
            .collect()
    }

    /// The segments of `digests` whose sums differ from these.
    pub(super) fn differing(&self, digests: &[Digest]) -> Vec<u16> {
        let differs =
            |digest: &&Digest| self.0.get(usize::from(digest.segment)) != Some(&digest.sum);
        digests.iter().filter(differs).map(|digest| digest.segment).collect()
    }
}

impl Default for Sums {
    fn default() -> Self {
        Self(vec![0; usize::from(SEGMENTS)].into())
    }
}

pub(super) fn segment(key: KeyHash) -> u16 {
    u16::try_from(key.token >> (u64::BITS - SEGMENT_BITS)).unwrap_or(u16::MAX)
}

/// What a key adds to the sum of its segment; the same on every node.
pub(super) fn fingerprint(key: KeyHash, state: &State, expires: Timestamp) -> u64 {
    // Copies have no credit.
    if state.is_credit() {
        return 0;
    }
    let mut sip = SipHasher13::new_with_key(b"tidegate digests");
    let mut write = |word: u64| sip.write(&word.to_le_bytes());
    [key.token, key.tag, expires.as_nanos()].into_iter().for_each(&mut write);
    state.digest_words(write);
    sip.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(segment: u64, tag: u64) -> KeyHash {
        KeyHash { token: segment << 52 | 7, tag }
    }

    #[test]
    fn sums_differ_where_a_copy_is_missing_or_old() {
        let print = |key, used| {
            let state = State::FixedWindow { index: 1, used };
            fingerprint(key, &state, Timestamp::from_secs(120))
        };
        let keys = [key(0, 1), key(3, 1), key(3, 2), key(4_095, 1), key(9, 1)];
        let (mut mine, mut theirs) = (Sums::default(), Sums::default());
        for at in keys {
            mine.add(at, print(at, 5));
        }
        // In another order, one of them missing and one of them old.
        for at in keys.into_iter().rev().filter(|at| *at != key(3, 1)) {
            theirs.add(at, print(at, if at == key(4_095, 1) { 4 } else { 5 }));
        }
        let digests = mine.digests();
        assert_eq!(
            digests.iter().map(|digest| digest.segment).collect::<Vec<_>>(),
            [0, 3, 9, 4_095]
        );
        assert_eq!(theirs.differing(&digests), [3, 4_095]);
        assert!(mine.differing(&digests).is_empty());
        assert_eq!(Sums::default().differing(&digests).len(), 4);
    }

    #[test]
    fn a_fingerprint_is_of_key_state_and_expiry() {
        let state = |used| State::FixedWindow { index: 1, used };
        let print =
            |tag, used, secs| fingerprint(key(1, tag), &state(used), Timestamp::from_secs(secs));
        let all = [print(1, 1, 1), print(2, 1, 1), print(1, 2, 1), print(1, 1, 2)];
        assert!(all.iter().enumerate().all(|(n, one)| !all[..n].contains(one)));
        // Pinned: nodes of different builds compare it.
        assert_eq!(print(1, 1, 1), 4_952_277_160_072_059_851);
    }
}

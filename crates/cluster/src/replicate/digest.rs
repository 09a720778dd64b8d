//! Copies in short: one sum for each bucket of the circle.
//!
//! ```text
//! bucket(key) = upper 12 bits of its place
//! sum(bucket) = Σ siphash(key, expiry, state)     over the keys in it, wrapping
//! ```
//!
//! A sum does not depend on the order, and two sides whose sums are equal hold the same states but
//! for a chance of one in 2^64. Two nodes with the same view agree which keys count, so a bucket
//! whose sums differ holds a copy that is missing or old, or one that changed since.
//!
//! **Example.** 200,000 keys between two nodes are some 49 a bucket: one lost message of 1,024 keys
//! is found by comparing 32 KiB, and costs some ten messages.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use tidegate_limiter::engine::State;
use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::Timestamp;

use crate::mesh::wire::Digest;

/// Buckets of the circle.
pub(super) const BUCKETS: u16 = 1 << BUCKET_BITS;
const BUCKET_BITS: u32 = 12;

/// The sums of what one node should hold of another's keys.
#[derive(Clone, Debug)]
pub(super) struct Sums(Box<[u64]>);

impl Sums {
    /// Counts a key in.
    pub(super) fn add(&mut self, key: KeyHash, fingerprint: u64) {
        if let Some(sum) = self.0.get_mut(usize::from(bucket(key))) {
            *sum = sum.wrapping_add(fingerprint);
        }
    }

    /// The buckets that hold anything.
    pub(super) fn digests(&self) -> Vec<Digest> {
        let all = (0..BUCKETS).zip(&self.0);
        all.filter(|(_, sum)| **sum != 0)
            .map(|(bucket, sum)| Digest { bucket, sum: *sum })
            .collect()
    }

    /// Those of the buckets that were told in which these sums are others.
    pub(super) fn differing(&self, told: &[Digest]) -> Vec<u16> {
        let is_other =
            |digest: &&Digest| self.0.get(usize::from(digest.bucket)) != Some(&digest.sum);
        told.iter().filter(is_other).map(|digest| digest.bucket).collect()
    }
}

impl Default for Sums {
    fn default() -> Self {
        Self(vec![0; usize::from(BUCKETS)].into())
    }
}

/// Where on the circle a key is summed up.
pub(super) fn bucket(key: KeyHash) -> u16 {
    u16::try_from(key.token >> (u64::BITS - BUCKET_BITS)).unwrap_or(u16::MAX)
}

/// What a key adds to its bucket's sum; the same on every node.
pub(super) fn fingerprint(key: KeyHash, state: &State, expires: Timestamp) -> u64 {
    let mut sip = SipHasher13::new_with_key(b"tidegate digests");
    let mut write = |word: u64| sip.write(&word.to_le_bytes());
    [key.token, key.tag, expires.as_nanos()].into_iter().for_each(&mut write);
    state.digest_words(write);
    sip.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bucket: u64, tag: u64) -> KeyHash {
        KeyHash { token: bucket << 52 | 7, tag }
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
        let told = mine.digests();
        assert_eq!(told.iter().map(|digest| digest.bucket).collect::<Vec<_>>(), [0, 3, 9, 4_095]);
        assert_eq!(theirs.differing(&told), [3, 4_095]);
        assert!(mine.differing(&told).is_empty());
        assert_eq!(Sums::default().differing(&told).len(), 4);
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

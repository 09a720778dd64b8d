//! Keys that wait for the region exchange.

use std::collections::BTreeSet;
use std::ops::Bound;

use tidegate_limiter::store::KeyHash;

/// Most keys that wait. A key that does not fit goes through another round.
const KEYS_MAX: usize = 262_144;

/// Keys taken in cyclic order, so that none starves.
#[derive(Debug, Default)]
pub(super) struct RegionQueue {
    keys: BTreeSet<KeyHash>,
    /// The last key taken.
    last: Option<KeyHash>,
}

impl RegionQueue {
    /// False if the queue is full.
    pub(super) fn add(&mut self, key: KeyHash) -> bool {
        let has_room = self.keys.len() < KEYS_MAX || self.keys.contains(&key);
        if has_room {
            self.keys.insert(key);
        }
        has_room
    }

    /// Takes up to `max` keys, beginning after the last one taken.
    pub(super) fn take(&mut self, max: usize) -> Vec<KeyHash> {
        let after_last = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let wrapped = self.last.into_iter().flat_map(|last| self.keys.range(..=last));
        let cyclic = self.keys.range((after_last, Bound::Unbounded)).chain(wrapped);
        let taken: Vec<KeyHash> = cyclic.take(max).copied().collect();
        for key in &taken {
            self.keys.remove(key);
        }
        self.last = taken.last().copied();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_taken_in_cyclic_order_and_once() {
        let key = |tag| KeyHash { token: 1, tag };
        let mut queue = RegionQueue::default();
        assert!((0..5).all(|tag| queue.add(key(tag))));
        assert_eq!(queue.take(2), [key(0), key(1)]);
        assert!(queue.add(key(0)));
        assert_eq!(queue.take(2), [key(2), key(3)], "a busy key does not delay the others");
        assert_eq!(queue.take(9), [key(4), key(0)]);
        assert_eq!(queue.take(9), []);
    }
}

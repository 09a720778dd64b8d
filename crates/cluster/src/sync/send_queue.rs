//! Keys that wait for the region exchange.

use std::collections::BTreeSet;
use std::ops::Bound;

use tidegate_limiter::store::KeyHash;

/// Keys that wait for the region exchange, taken in turn so that none starves.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    keys: BTreeSet<KeyHash>,
    /// The last that was taken.
    last: Option<KeyHash>,
}

/// Owned keys remembered for the next region exchange. Beyond it a key goes through another round.
const REGION_KEYS_MAX: usize = 262_144;

impl SendQueue {
    /// Puts `key` in line; false when the line is full.
    pub(super) fn add(&mut self, key: KeyHash) -> bool {
        let has_room = self.keys.len() < REGION_KEYS_MAX || self.keys.contains(&key);
        if has_room {
            self.keys.insert(key);
        }
        has_room
    }

    /// Takes up to `max` keys, beginning behind the last one that was taken.
    pub(super) fn take(&mut self, max: usize) -> Vec<KeyHash> {
        let behind = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let wrapped = self.last.into_iter().flat_map(|last| self.keys.range(..=last));
        let in_turn = self.keys.range((behind, Bound::Unbounded)).chain(wrapped);
        let taken: Vec<KeyHash> = in_turn.take(max).copied().collect();
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
    fn keys_for_the_regions_are_taken_in_turn_and_once() {
        let key = |tag| KeyHash { token: 1, tag };
        let mut line = SendQueue::default();
        assert!((0..5).all(|tag| line.add(key(tag))));
        assert_eq!(line.take(2), [key(0), key(1)]);
        assert!(line.add(key(0)));
        assert_eq!(line.take(2), [key(2), key(3)], "a busy key does not push others back");
        assert_eq!(line.take(9), [key(4), key(0)]);
        assert_eq!(line.take(9), []);
    }
}

//! A map of bounded size, which forgets what was not used for the longest.

use std::hash::Hash;
use std::num::NonZeroUsize;

use lru::LruCache;

#[derive(Debug)]
pub(crate) struct Recent<K: Hash + Eq, V>(LruCache<K, V>);

impl<K: Hash + Eq, V> Recent<K, V> {
    pub(crate) fn new(size_max: usize) -> Self {
        Self(LruCache::new(NonZeroUsize::new(size_max).unwrap_or(NonZeroUsize::MIN)))
    }

    pub(crate) fn get(&mut self, key: K, create: impl FnOnce() -> V) -> &mut V {
        self.0.get_or_insert_mut(key, create)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_the_longest_is_forgotten() {
        let (mut map, mut created) = (Recent::new(3), 0);
        for key in [1, 2, 3, 1, 4, 1, 5, 1] {
            map.get(key, || created += 1);
        }
        // 2 and 3 made room for 4 and 5.
        assert_eq!(created, 5);
        let mut kept: Vec<_> = map.0.iter().map(|(key, ())| *key).collect();
        kept.sort_unstable();
        assert_eq!(kept, [1, 4, 5]);
    }
}

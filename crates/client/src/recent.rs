//! A map of bounded size, which forgets what was not used for the longest.

use std::collections::BTreeMap;

#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    size_max: usize,
    uses: u64,
    entries: BTreeMap<K, Used<V>>,
}

#[derive(Debug)]
struct Used<V> {
    value: V,
    /// The number of its last use.
    at: u64,
}

impl<K: Ord + Clone, V> Recent<K, V> {
    pub(crate) fn new(size_max: usize) -> Self {
        Self { size_max, uses: 0, entries: BTreeMap::new() }
    }

    pub(crate) fn get(&mut self, key: K, create: impl FnOnce() -> V) -> &mut V {
        self.uses += 1;
        if self.entries.len() >= self.size_max && !self.entries.contains_key(&key) {
            self.forget_oldest();
        }
        let entry = self.entries.entry(key).or_insert_with(|| Used { value: create(), at: 0 });
        entry.at = self.uses;
        &mut entry.value
    }

    /// A scan, and only for each new key of a full map.
    fn forget_oldest(&mut self) {
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.at);
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.entries.remove(&key);
        }
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
        assert_eq!(map.entries.into_keys().collect::<Vec<_>>(), [1, 4, 5]);
    }
}

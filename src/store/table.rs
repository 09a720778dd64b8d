//! A hash table whose slots lie in the order of their keys.
//!
//! Ordered linear probing (Amble and Knuth, "Ordered hash tables", 1974): a key's *home* is
//! `tag × homes / 2^64`, which grows with the tag, and keys that collide stand behind their home in
//! ascending order. So the whole table is one sorted run with gaps. Three things follow:
//!
//! - A search for a missing key stops at the first larger one, so misses cost what hits cost.
//! - Growing or shrinking is one pass that keeps the order, by any factor. Steps of about one
//!   twelfth keep the table between 80 % and 90 % full, where doubling would leave it half empty:
//!   40 bytes a slot become 44 to 50 bytes a key.
//! - A scan that remembers the last key it saw continues at the next larger one whatever was
//!   inserted, removed or rebuilt in between. Handoff and synchronisation read the table that way.
//!
//! **Worked example.** With 8 homes and tags written as fractions of 2^64, the keys .05, .10 and
//! .12 all have home 0 and lie in slots 0, 1, 2. The key .15 has home 1 and lies in slot 3.
//! Removing .05 moves the others one to the left; .15 is then in slot 2, not before its home.
//!
//! **Invariants:** tags are keyed hashes, so nobody outside can make keys collide; were they to
//! collide all the same, the table gets slow, never wrong. No slot between a key's home and the key
//! is vacant. Slots behind the last home take its overflow, so no run wraps around.

use std::ops::Range;

use super::key::KeyHash;
use super::pages::{PAGE_SLOTS, Pages};
use super::prefetch::prefetch;
use super::slot::Slot;

/// Most keys per ten homes. At nine a search looks at 5.5 slots on average (`(1 + 1/(1-load)) /
/// 2`), which lie side by side in some four cache lines.
const LOAD_TENTHS_MAX: usize = 9;
/// What most searches read: 3 to 5.5 slots on average.
const SEARCH_BYTES: usize = 256;
/// Slots behind the last home of a table. When its overflow needs more, it gets a page.
const TAIL: usize = 16;

/// Counters by key. Its owner bounds how many there are.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Pages,
    homes: usize,
    len: usize,
}

impl Table {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Number of slots, vacant ones too. They stand in the order of their keys.
    pub(super) fn slots_len(&self) -> usize {
        self.slots.len()
    }

    /// The slot at an index, vacant or taken.
    pub(super) fn slot(&self, at: usize) -> Option<&Slot> {
        self.slots.get(at)
    }

    /// The keys in a range of slots.
    pub(super) fn taken(&self, range: Range<usize>) -> impl Iterator<Item = &Slot> {
        self.slots.range(range).filter(|slot| !slot.is_vacant())
    }

    /// The keys in a range of slots, to change in place: anything but their key, and never to
    /// vacant.
    pub(super) fn taken_mut(&mut self, range: Range<usize>) -> impl Iterator<Item = &mut Slot> {
        self.slots.range_mut(range).filter(|slot| !slot.is_vacant())
    }

    /// Bytes of the slots. What states keep outside their slot is not in it.
    pub(super) fn bytes(&self) -> usize {
        self.slots.bytes()
    }

    /// The slot of `key`.
    pub(super) fn find(&self, key: KeyHash) -> Option<&Slot> {
        let at = self.first_not_before(key);
        self.slots.get(at).filter(|slot| slot.key == key && !slot.is_vacant())
    }

    /// The slot of `key`.
    pub(super) fn find_mut(&mut self, key: KeyHash) -> Option<&mut Slot> {
        let at = self.first_not_before(key);
        self.slots.get_mut(at).filter(|slot| slot.key == key && !slot.is_vacant())
    }

    /// Has the slots brought near that a search for `key` looks at first.
    pub(super) fn fetch(&self, key: KeyHash) {
        if let Some(slot) = self.slots.get(self.home(key)) {
            prefetch(slot, SEARCH_BYTES);
        }
    }

    /// The next slots, at most `slots_max`, of a scan that has seen every key up to `seen`, and the
    /// name up to which it has seen them all once these are read; `None` at the end of the table.
    pub(super) fn stretch(
        &self,
        seen: Option<KeyHash>,
        slots_max: usize,
    ) -> (Range<usize>, Option<KeyHash>) {
        let start = seen.map_or(0, |key| self.after(key));
        let end = start.saturating_add(slots_max);
        match self.slots.get(end.saturating_sub(1)) {
            None => (start..self.slots.len(), None),
            Some(_) if end == self.slots.len() => (start..end, None),
            // Behind a vacant slot there is no key whose home lies before it.
            Some(last) if last.is_vacant() && end >= self.homes => (start..end, None),
            Some(last) if last.is_vacant() => (start..end, Some(self.last_name_before(end))),
            Some(last) => (start..end, Some(last.key)),
        }
    }

    /// Puts a key into the table that is not in it yet.
    pub(super) fn insert(&mut self, slot: Slot) {
        if (self.len + 1) * 10 > self.homes * LOAD_TENTHS_MAX {
            let pages = homes_pages(self.homes);
            self.rebuild(pages + pages.div_ceil(12).max(1));
        }
        let at = self.first_not_before(slot.key);
        let gap = self.slots.find(at, Slot::is_vacant);
        if gap == self.slots.len() {
            self.slots.grow(self.slots.count() + 1);
        }
        let mut carried = slot;
        for place in self.slots.range_mut(at..gap + 1) {
            std::mem::swap(place, &mut carried);
        }
        self.len += 1;
    }

    /// Takes the slot at `at` out and closes the gap, so that `at` may hold the next key now.
    pub(super) fn remove_at(&mut self, at: usize) -> Slot {
        let taken = self.slots.get_mut(at).map(std::mem::take).unwrap_or_default();
        let homes = self.homes;
        let mut gap = at;
        while let Some(slot) = self.slots.get(gap + 1) {
            // A key at its home stays there, and so does all that stands behind it.
            if slot.is_vacant() || home(slot.key, homes) > gap {
                break;
            }
            self.slots.shift(gap + 1, gap);
            gap += 1;
        }
        self.len -= 1;
        taken
    }

    /// Takes `key` out.
    pub(super) fn remove(&mut self, key: KeyHash) -> Option<Slot> {
        let at = self.first_not_before(key);
        let is_found = self.slots.get(at).is_some_and(|slot| slot.key == key && !slot.is_vacant());
        is_found.then(|| self.remove_at(at))
    }

    /// Gives memory back, by a quarter, once half of it is unused. The distance between both
    /// numbers keeps a table from shrinking and growing in turns.
    pub(super) fn shrink(&mut self) {
        let pages = homes_pages(self.homes);
        if self.len == 0 {
            *self = Self::default();
        } else if self.len * 2 < self.homes && pages > 1 {
            self.rebuild(pages - (pages / 4).max(1));
        }
    }

    /// The first slot that is vacant or holds `key` or a larger one, from the home of `key` on.
    fn first_not_before(&self, key: KeyHash) -> usize {
        self.slots.find(self.home(key), |slot| slot.is_vacant() || rank(slot.key) >= rank(key))
    }

    fn home(&self, key: KeyHash) -> usize {
        home(key, self.homes)
    }

    /// The first slot that may hold a key larger than `last`.
    fn after(&self, last: KeyHash) -> usize {
        let at = self.first_not_before(last);
        at + usize::from(self.slots.get(at).is_some_and(|slot| slot.key == last))
    }

    /// The largest key whose home lies before `at`. A scan that ends at a vacant slot has no key to
    /// remember; behind a vacant slot, though, there is none with a home before it.
    fn last_name_before(&self, at: usize) -> KeyHash {
        let tag = (((at as u128) << 64).saturating_sub(1)) / (self.homes.max(1) as u128);
        KeyHash { place: u64::MAX, tag: u64::try_from(tag).unwrap_or(u64::MAX) }
    }

    /// Lays all keys out anew over the homes of `pages` pages.
    fn rebuild(&mut self, pages: usize) {
        self.homes = pages * PAGE_SLOTS - TAIL;
        let end = self.end_of_layout();
        let pages = pages.max(end.div_ceil(PAGE_SLOTS));
        self.slots.grow(pages);
        // All keys to the right end, then each to its place. That is never behind where the key
        // lies by then: what stands behind it in the new layout takes no less room than now.
        let mut first = self.slots.len();
        for from in (0..self.slots.len()).rev() {
            if self.slots.get(from).is_some_and(|slot| !slot.is_vacant()) {
                first -= 1;
                self.slots.shift(from, first);
            }
        }
        let mut next = 0;
        for from in first..self.slots.len() {
            next = self.slots.get(from).map_or(next, |slot| self.home(slot.key).max(next));
            self.slots.shift(from, next);
            next += 1;
        }
        self.slots.truncate(pages);
    }

    /// Where the last key ends once all are laid out for the present homes.
    fn end_of_layout(&self) -> usize {
        self.taken(0..self.slots.len()).fold(0, |end, slot| self.home(slot.key).max(end) + 1)
    }
}

/// The pages that so many homes were made for.
fn homes_pages(homes: usize) -> usize {
    homes.div_ceil(PAGE_SLOTS)
}

/// Multiplies instead of dividing and takes any number of homes, not only powers of two.
fn home(key: KeyHash, homes: usize) -> usize {
    let product = u128::from(key.tag) * (homes as u128);
    usize::try_from(product >> 64).unwrap_or(usize::MAX)
}

/// The order of the table.
const fn rank(key: KeyHash) -> (u64, u64) {
    (key.tag, key.place)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::State;
    use crate::units::Timestamp;

    fn slot(tag: u64, place: u64, nanos: u64) -> Slot {
        Slot::new(KeyHash { place, tag }, State::Absent, Timestamp::from_nanos(nanos))
    }

    fn check_invariants(table: &Table) {
        let mut last = None;
        for (slot, at) in table.slots.range(0..table.slots_len()).zip(0..) {
            if slot.is_vacant() {
                continue;
            }
            let home = table.home(slot.key);
            assert!(home <= at, "a key lies before its home");
            assert_eq!(table.taken(home..at).count(), at - home, "a gap in a run");
            assert!(last < Some(rank(slot.key)), "keys are out of order");
            last = Some(rank(slot.key));
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Put(u64, u64),
        Remove(u64, u64),
        Shrink,
    }

    /// Few distinct tags in three crowded corners, so that runs, removals inside runs and the
    /// overflow behind the last home all come up.
    fn op() -> impl Strategy<Value = Op> {
        let tag =
            prop_oneof![0..40_u64, Just(u64::MAX / 2), u64::MAX - 40..=u64::MAX, any::<u64>()];
        (0..8_u8, tag, 0..3_u64).prop_map(|(kind, tag, place)| match kind {
            0..=4 => Op::Put(tag, place),
            5..=6 => Op::Remove(tag, place),
            _ => Op::Shrink,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn behaves_like_a_sorted_map(ops in prop::collection::vec(op(), 1..600)) {
            let mut table = Table::default();
            let mut model = BTreeMap::new();
            for (op, n) in ops.into_iter().zip(1_u64..) {
                match op {
                    Op::Put(tag, place) => {
                        let key = KeyHash { place, tag };
                        if model.insert((tag, place), n * 16).is_none() {
                            table.insert(slot(tag, place, n * 16));
                        } else if let Some(found) = table.find_mut(key) {
                            *found = slot(tag, place, n * 16);
                        }
                    }
                    Op::Remove(tag, place) => {
                        let removed = table.remove(KeyHash { place, tag });
                        prop_assert_eq!(removed.is_some(), model.remove(&(tag, place)).is_some());
                    }
                    Op::Shrink => table.shrink(),
                }
                check_invariants(&table);
            }
            let found: Vec<_> = table.taken(0..table.slots_len())
                .map(|slot| (rank(slot.key), slot.stamp.expires().as_nanos())).collect();
            prop_assert_eq!(table.len(), model.len());
            prop_assert_eq!(found, model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_table_stays_nearly_full_while_it_grows() {
        let mut table = Table::default();
        for n in 0..100_000_u64 {
            table.insert(slot(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), n, 8));
            if n > 2_000 {
                assert!(table.bytes() <= table.len() * 51, "{} for {}", table.bytes(), table.len());
            }
        }
    }

    #[test]
    fn memory_returns_when_keys_leave() {
        let mut table = Table::default();
        let key = |n: u64| KeyHash { place: n, tag: n.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
        (0..10_000).for_each(|n| table.insert(slot(key(n).tag, n, 8)));
        let full = table.bytes();
        for n in 100..10_000 {
            assert!(table.remove(key(n)).is_some());
            table.shrink();
        }
        assert!(table.bytes() * 20 < full, "{} of {full}", table.bytes());
        check_invariants(&table);
        for n in 0..100 {
            assert!(table.remove(key(n)).is_some());
        }
        table.shrink();
        assert_eq!(table.bytes(), 0);
    }

    /// Reads the whole table in stretches and lets `meanwhile` change it in between.
    fn scan(
        table: &mut Table,
        slots_max: usize,
        mut meanwhile: impl FnMut(&mut Table),
    ) -> Vec<u64> {
        let (mut found, mut seen) = (Vec::new(), None);
        loop {
            let (range, next) = table.stretch(seen, slots_max);
            found.extend(table.taken(range).map(|slot| slot.key.tag));
            if next.is_none() {
                return found;
            }
            seen = next;
            meanwhile(table);
        }
    }

    #[test]
    fn a_scan_sees_every_key_once_while_others_come_and_go() {
        let mut table = Table::default();
        let steady: Vec<u64> = (0..500).map(|n| n * (u64::MAX / 500)).collect();
        for &tag in &steady {
            table.insert(slot(tag, 0, 8));
        }
        let mut passing = 0_u64;
        let found = scan(&mut table, 16, |table| {
            passing += 1;
            let tag = passing.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            table.insert(slot(tag, 7, 8));
            table.insert(slot(tag, 8, 8));
            table.remove(KeyHash { place: 7, tag });
        });
        let found: Vec<u64> = found.into_iter().filter(|tag| steady.contains(tag)).collect();
        assert_eq!(found, steady);
    }

    #[test]
    fn a_scan_gets_over_long_stretches_of_vacant_slots() {
        let mut table = Table::default();
        (0..2_000).for_each(|n| table.insert(slot(n * (u64::MAX / 2_000), 0, 8)));
        (1..1_999)
            .for_each(|n| drop(table.remove(KeyHash { place: 0, tag: n * (u64::MAX / 2_000) })));
        assert_eq!(scan(&mut table, 2, |_| {}), [0, 1_999 * (u64::MAX / 2_000)]);
    }
}

//! A hash table whose slots are sorted by key.
//!
//! Ordered linear probing (Amble and Knuth, "Ordered hash tables", 1974): a key's *home* is
//! `tag × homes / 2^64`, which grows with the tag, and keys that collide follow their home in
//! ascending order. So the whole table is one sorted run with gaps. It follows:
//!
//! - A search for a missing key stops at the first larger one, so a miss costs as much as a hit.
//! - Growing or shrinking is one pass that keeps the order, by any factor. Steps of about one
//!   twelfth keep the table between 80 % and 90 % full, where doubling would leave it half empty:
//!   40 bytes a slot become 44 to 50 bytes a key.
//! - A scan that stores the last key it saw continues at the next larger one, whatever was
//!   inserted, removed or rebuilt in between. Handoff and synchronisation depend on that.
//!
//! **Worked example.** With 8 homes and tags written as fractions of 2^64, the keys .05, .10 and
//! .12 all have home 0 and are in slots 0, 1, 2. The key .15 has home 1 and is in slot 3. Removing
//! .05 moves the others one to the left; .15 is then in slot 2, not before its home.
//!
//! **Invariants:** no slot between a key's home and the key is vacant. Slots behind the last home
//! take its overflow, so no run wraps around.
//!
//! **Collisions:** tags are keyed hashes, so clients cannot construct collisions; many collisions
//! would make the table slow, never wrong.

use std::ops::Range;
use std::sync::Arc;

use super::key::KeyHash;
use super::pages::{PAGE_SLOTS, PageIndex, Pages, home};
use super::slot::Slot;

/// Most keys per ten homes. At nine a search looks at 5.5 slots on average (`(1 + 1/(1-load)) /
/// 2`), in some four adjacent cache lines.
const LOAD_TENTHS_MAX: usize = 9;
/// Slots behind the last home of a table. When its overflow needs more, a page is added.
const TAIL: usize = 16;

/// Counters by key. The caller bounds their number.
///
/// The fields that a search reads come first, because they share a cache line with the lock of the
/// shard.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Table {
    slots: Pages,
    homes: usize,
    len: usize,
    /// Counts the operations that may have moved a key from behind a position to before it, other
    /// than [`Table::remove_where`], which returns the new position. Wraps.
    pub(super) moves: usize,
    /// The index to which it publishes its layout.
    pub(super) page_index: Arc<PageIndex>,
}

impl Table {
    /// Size of the leading fields that a search reads.
    pub(super) const HOT_BYTES: usize = std::mem::offset_of!(Self, len);

    /// An empty table that publishes its layout for up to `keys_max` keys.
    pub(super) fn new(keys_max: usize) -> Self {
        Self { page_index: Arc::new(PageIndex::new(keys_max)), ..Self::default() }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Number of slots, including vacant ones.
    pub(super) fn slots_len(&self) -> usize {
        self.slots.len()
    }

    /// The occupied slots in a range.
    pub(super) fn occupied(&self, range: Range<usize>) -> impl Iterator<Item = &Slot> {
        self.slots.range(range).filter(|slot| !slot.is_vacant())
    }

    /// The occupied slots in a range. The caller must not change a key or vacate a slot.
    pub(super) fn occupied_mut(&mut self, range: Range<usize>) -> impl Iterator<Item = &mut Slot> {
        self.slots.range_mut(range).filter(|slot| !slot.is_vacant())
    }

    /// Memory of the slots. Excludes the boxed part of a state.
    pub(super) fn bytes(&self) -> usize {
        self.slots.bytes()
    }

    pub(super) fn find(&self, key: KeyHash) -> Option<&Slot> {
        let at = self.first_not_before(key);
        self.slots.get(at).filter(|slot| slot.key == key && !slot.is_vacant())
    }

    pub(super) fn find_mut(&mut self, key: KeyHash) -> Option<&mut Slot> {
        let at = self.first_not_before(key);
        self.slots.get_mut(at).filter(|slot| slot.key == key && !slot.is_vacant())
    }

    /// The next slots, at most `slots_max`, of a scan that has seen every key up to `seen`, and the
    /// key up to which it has seen all once these are read; `None` at the end of the table.
    pub(super) fn next_range(
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
            Some(last) if last.is_vacant() => (start..end, Some(self.largest_key_before(end))),
            Some(last) => (start..end, Some(last.key)),
        }
    }

    /// Inserts a key that is not in the table.
    pub(super) fn insert(&mut self, slot: Slot) {
        self.grow_for_one();
        let at = self.first_not_before(slot.key);
        let gap = self.slots.position(at, Slot::is_vacant);
        if gap == self.slots.len() {
            self.slots.grow(self.slots.len() / PAGE_SLOTS + 1);
            self.publish();
        }
        let mut carried = slot;
        for slot in self.slots.range_mut(at..gap + 1) {
            std::mem::swap(slot, &mut carried);
        }
        self.len += 1;
    }

    /// Removes the keys in a range of slots for which `is_removed` returns true, and closes the
    /// gaps; each key behind them moves at most once. Returns the position of the first key that it
    /// did not pass to `is_removed`.
    pub(super) fn remove_where(
        &mut self,
        range: Range<usize>,
        mut is_removed: impl FnMut(&mut Slot) -> bool,
    ) -> usize {
        // The lowest position for the next key, and the result.
        let (mut next, mut looked) = (range.start, range.start);
        for at in range.start..self.slots.len() {
            let is_in_range = at < range.end;
            match self.slots.get_mut(at) {
                Some(slot) if !slot.is_vacant() => {
                    if is_in_range && is_removed(slot) {
                        *slot = Slot::default();
                        self.len -= 1;
                    } else {
                        let to = home(slot.key, self.homes).max(next);
                        // A key that does not move leaves all behind it in place.
                        if to == at && !is_in_range {
                            break;
                        }
                        self.slots.move_slot(at, to);
                        next = to + 1;
                    }
                }
                _ if is_in_range => next = at + 1,
                _ => break,
            }
            if is_in_range {
                looked = next;
            }
        }
        looked
    }

    pub(super) fn remove(&mut self, key: KeyHash) -> Option<Slot> {
        let at = self.first_not_before(key);
        let mut removed = None;
        self.remove_where(at..at + 1, |slot| {
            let is_it = slot.key == key;
            removed = is_it.then(|| std::mem::take(slot));
            is_it
        });
        self.moves = self.moves.wrapping_add(usize::from(removed.is_some()));
        removed
    }

    /// The first slot that is vacant or holds `key` or a larger one, from the home of `key` on.
    fn first_not_before(&self, key: KeyHash) -> usize {
        self.slots.position(self.home(key), |slot| slot.is_vacant() || rank(slot.key) >= rank(key))
    }

    fn home(&self, key: KeyHash) -> usize {
        home(key, self.homes)
    }

    /// The first slot that may hold a key larger than `last`.
    fn after(&self, last: KeyHash) -> usize {
        let at = self.first_not_before(last);
        at + usize::from(self.slots.get(at).is_some_and(|slot| slot.key == last))
    }

    /// The largest possible key whose home lies before `at`, for a scan that ends at a vacant slot:
    /// no key behind a vacant slot has a home before it.
    fn largest_key_before(&self, at: usize) -> KeyHash {
        let tag = (((at as u128) << 64).saturating_sub(1)) / (self.homes.max(1) as u128);
        KeyHash { token: u64::MAX, tag: u64::try_from(tag).unwrap_or(u64::MAX) }
    }

    fn publish(&self) {
        self.page_index.publish(self.homes, &self.slots);
    }
}

// === growing and shrinking ===

impl Table {
    /// Grows the table by about one twelfth if one more key would exceed the load factor.
    fn grow_for_one(&mut self) {
        if (self.len + 1) * 10 > self.homes * LOAD_TENTHS_MAX {
            let pages = self.homes.div_ceil(PAGE_SLOTS);
            self.rebuild(pages + (pages / 12).max(1));
        }
    }

    /// Shrinks the table by a quarter once half of it is unused. The gap between the two keeps a
    /// table from alternately shrinking and growing.
    pub(super) fn shrink(&mut self) {
        let pages = self.homes.div_ceil(PAGE_SLOTS);
        if self.len == 0 {
            let moves = self.moves.wrapping_add(1);
            *self = Self { page_index: Arc::clone(&self.page_index), moves, ..Self::default() };
            self.publish();
        } else if self.len * 2 < self.homes && pages > 1 {
            self.rebuild(pages - (pages / 4).max(1));
        }
    }

    /// Moves all keys to the homes of `pages` pages.
    fn rebuild(&mut self, pages: usize) {
        let grows = pages * PAGE_SLOTS - TAIL > self.homes;
        self.homes = pages * PAGE_SLOTS - TAIL;
        let first = if grows { self.move_to_end(pages) } else { 0 };
        // Each key moves to its new position, which is never behind its present one: with fewer
        // homes all move to the front; with more they are at the end without gaps, and the keys
        // behind a key take at least as much space in the new layout.
        let mut next = 0;
        for from in first..self.slots.len() {
            if let Some(slot) = self.slots.get(from).filter(|slot| !slot.is_vacant()) {
                let to = self.home(slot.key).max(next);
                self.slots.move_slot(from, to);
                next = to + 1;
            }
        }
        self.slots.truncate(pages.max(next.div_ceil(PAGE_SLOTS)));
        self.moves = self.moves.wrapping_add(1);
        self.publish();
    }

    /// Grows to `pages` pages, or to more if the layout needs more, and moves all keys to the end
    /// without gaps. Returns the position of the first.
    fn move_to_end(&mut self, pages: usize) -> usize {
        self.slots.grow(pages.max(self.end_of_layout().div_ceil(PAGE_SLOTS)));
        let mut first = self.slots.len();
        for from in (0..self.slots.len()).rev() {
            if self.slots.get(from).is_some_and(|slot| !slot.is_vacant()) {
                first -= 1;
                self.slots.move_slot(from, first);
            }
        }
        first
    }

    /// The end of the last key in the layout for the current homes.
    fn end_of_layout(&self) -> usize {
        self.occupied(0..self.slots.len()).fold(0, |end, slot| self.home(slot.key).max(end) + 1)
    }
}

/// The sort order of the table.
const fn rank(key: KeyHash) -> (u64, u64) {
    (key.tag, key.token)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::State;
    use crate::units::Timestamp;

    fn slot(tag: u64, token: u64, nanos: u64) -> Slot {
        Slot::new(KeyHash { token, tag }, State::Absent, Timestamp::from_nanos(nanos))
    }

    fn check_invariants(table: &Table) {
        let mut last = None;
        for (slot, at) in table.slots.range(0..table.slots_len()).zip(0..) {
            if slot.is_vacant() {
                continue;
            }
            let home = table.home(slot.key);
            assert!(home <= at, "a key is before its home");
            assert_eq!(table.occupied(home..at).count(), at - home, "a gap in a run");
            assert!(last < Some(rank(slot.key)), "keys are out of order");
            last = Some(rank(slot.key));
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Put(u64, u64),
        Remove(u64, u64),
        /// A start in hundredths of the table, a length, and which keys are removed.
        RemoveWhere(usize, usize, u64),
        Shrink,
    }

    /// Few distinct tags in three crowded corners, so that runs, removals inside runs and the
    /// overflow behind the last home all come up.
    fn op() -> impl Strategy<Value = Op> {
        let tag =
            prop_oneof![0..40_u64, Just(u64::MAX / 2), u64::MAX - 40..=u64::MAX, any::<u64>()];
        let part = (0..100_usize, 0..80_usize);
        (0..10_u8, tag, 0..3_u64, part).prop_map(|(kind, tag, token, part)| match kind {
            0..=5 => Op::Put(tag, token),
            6..=7 => Op::Remove(tag, token),
            8 => Op::RemoveWhere(part.0, part.1, tag & 3),
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
                    Op::Put(tag, token) => {
                        let key = KeyHash { token, tag };
                        if model.insert((tag, token), n * 16).is_none() {
                            table.insert(slot(tag, token, n * 16));
                        } else if let Some(found) = table.find_mut(key) {
                            *found = slot(tag, token, n * 16);
                        }
                    }
                    Op::Remove(tag, token) => {
                        let removed = table.remove(KeyHash { token, tag });
                        prop_assert_eq!(removed.is_some(), model.remove(&(tag, token)).is_some());
                    }
                    Op::RemoveWhere(start, length, which) => {
                        let start = table.slots_len() * start / 100;
                        let mut last = None;
                        let next = table.remove_where(start..start + length, |slot| {
                            last = Some(rank(slot.key));
                            slot.key.tag & 3 == which && model.remove(&rank(slot.key)).is_some()
                        });
                        // The next to look at is the next larger key.
                        let after = table.occupied(next..table.slots_len()).next();
                        let larger = model.keys().find(|rank| last < Some(**rank)).copied();
                        if last.is_some() {
                            prop_assert_eq!(after.map(|slot| rank(slot.key)), larger);
                        }
                    }
                    Op::Shrink => table.shrink(),
                }
                check_invariants(&table);
            }
            let found: Vec<_> = table.occupied(0..table.slots_len())
                .map(|slot| (rank(slot.key), slot.meta.expires().as_nanos())).collect();
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
    fn memory_is_freed_when_keys_are_removed() {
        let mut table = Table::default();
        let key = |n: u64| KeyHash { token: n, tag: n.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
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

    /// Scans the whole table in steps and lets `meanwhile` change it in between.
    fn scan(
        table: &mut Table,
        slots_max: usize,
        mut meanwhile: impl FnMut(&mut Table),
    ) -> Vec<u64> {
        let (mut found, mut seen) = (Vec::new(), None);
        loop {
            let (range, next) = table.next_range(seen, slots_max);
            found.extend(table.occupied(range).map(|slot| slot.key.tag));
            if next.is_none() {
                return found;
            }
            seen = next;
            meanwhile(table);
        }
    }

    #[test]
    fn a_scan_sees_every_key_once_during_inserts_and_removals() {
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
            table.remove(KeyHash { token: 7, tag });
        });
        let found: Vec<u64> = found.into_iter().filter(|tag| steady.contains(tag)).collect();
        assert_eq!(found, steady);
    }

    #[test]
    fn a_scan_crosses_long_runs_of_vacant_slots() {
        let mut table = Table::default();
        (0..2_000).for_each(|n| table.insert(slot(n * (u64::MAX / 2_000), 0, 8)));
        (1..1_999)
            .for_each(|n| drop(table.remove(KeyHash { token: 0, tag: n * (u64::MAX / 2_000) })));
        assert_eq!(scan(&mut table, 2, |_| {}), [0, 1_999 * (u64::MAX / 2_000)]);
    }
}

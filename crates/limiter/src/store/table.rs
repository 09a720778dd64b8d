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

mod layout;

use std::ops::Range;
use std::sync::Arc;

use super::key::KeyHash;
use super::page_index::PageIndex;
use super::pages::Pages;
use super::slot::Slot;

/// Counters by key. Its owner bounds how many there are.
///
/// What a search reads comes first: see [`Shard`](super::shard::Shard).
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Table {
    slots: Pages,
    homes: usize,
    len: usize,
    moves: usize,
    page_index: Arc<PageIndex>,
}

impl Table {
    /// Bytes at the front that hold what a search reads.
    pub(super) const HOT_BYTES: usize = std::mem::offset_of!(Self, len);

    /// An empty table that will tell where its slots lie, as far as `keys_max` keys need.
    pub(super) fn new(keys_max: usize) -> Self {
        Self { page_index: Arc::new(PageIndex::new(keys_max)), ..Self::default() }
    }

    /// Where its slots lie, from now on.
    pub(super) fn page_index(&self) -> Arc<PageIndex> {
        Arc::clone(&self.page_index)
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Number of slots, vacant ones too. They stand in the order of their keys.
    pub(super) fn slots_len(&self) -> usize {
        self.slots.len()
    }

    /// How often keys were moved so that one which stood behind an index may stand before it now,
    /// other than by [`Table::take_out`], which says so. Wraps.
    pub(super) fn moves(&self) -> usize {
        self.moves
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
        self.make_room();
        let at = self.first_not_before(slot.key);
        let gap = self.slots.find(at, Slot::is_vacant);
        if gap == self.slots.len() {
            self.slots.grow(self.slots.count() + 1);
            self.tell();
        }
        let mut carried = slot;
        for token in self.slots.range_mut(at..gap + 1) {
            std::mem::swap(token, &mut carried);
        }
        self.len += 1;
    }

    /// Takes those keys out of a range of slots that `leaves` names, and closes the gaps; each key
    /// behind them moves at most once. Says where the first key lies now that it did not look at.
    pub(super) fn take_out(
        &mut self,
        range: Range<usize>,
        mut leaves: impl FnMut(&mut Slot) -> bool,
    ) -> usize {
        // Where the next key may stand: not before what stands already.
        let (mut next, mut looked) = (range.start, range.start);
        for at in range.start..self.slots.len() {
            let is_asked = at < range.end;
            match self.slots.get_mut(at) {
                Some(slot) if !slot.is_vacant() => {
                    if is_asked && leaves(slot) {
                        *slot = Slot::default();
                        self.len -= 1;
                    } else {
                        let to = home(slot.key, self.homes).max(next);
                        // A key that stays where it is keeps all behind it where they are.
                        if to == at && !is_asked {
                            break;
                        }
                        self.slots.shift(at, to);
                        next = to + 1;
                    }
                }
                _ if is_asked => next = at + 1,
                _ => break,
            }
            if is_asked {
                looked = next;
            }
        }
        looked
    }

    /// Takes `key` out.
    pub(super) fn remove(&mut self, key: KeyHash) -> Option<Slot> {
        let at = self.first_not_before(key);
        let mut taken = None;
        self.take_out(at..at + 1, |slot| {
            let is_it = slot.key == key;
            taken = is_it.then(|| std::mem::take(slot));
            is_it
        });
        self.moves = self.moves.wrapping_add(usize::from(taken.is_some()));
        taken
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
        KeyHash { token: u64::MAX, tag: u64::try_from(tag).unwrap_or(u64::MAX) }
    }

    fn tell(&self) {
        self.page_index.tell(self.homes, &self.slots);
    }
}

/// Multiplies instead of dividing and takes any number of homes, not only powers of two.
#[inline]
pub(super) fn home(key: KeyHash, homes: usize) -> usize {
    let product = u128::from(key.tag) * (homes as u128);
    usize::try_from(product >> 64).unwrap_or(usize::MAX)
}

/// The order of the table.
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
        /// A start in hundredths of the table, a length, and which keys leave.
        TakeOut(usize, usize, u64),
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
            8 => Op::TakeOut(part.0, part.1, tag & 3),
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
                    Op::TakeOut(start, length, which) => {
                        let start = table.slots_len() * start / 100;
                        let mut last = None;
                        let next = table.take_out(start..start + length, |slot| {
                            last = Some(rank(slot.key));
                            slot.key.tag & 3 == which && model.remove(&rank(slot.key)).is_some()
                        });
                        // The next to look at is the next larger key.
                        let after = table.taken(next..table.slots_len()).next();
                        let larger = model.keys().find(|rank| last < Some(**rank)).copied();
                        if last.is_some() {
                            prop_assert_eq!(after.map(|slot| rank(slot.key)), larger);
                        }
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
            table.remove(KeyHash { token: 7, tag });
        });
        let found: Vec<u64> = found.into_iter().filter(|tag| steady.contains(tag)).collect();
        assert_eq!(found, steady);
    }

    #[test]
    fn a_scan_gets_over_long_stretches_of_vacant_slots() {
        let mut table = Table::default();
        (0..2_000).for_each(|n| table.insert(slot(n * (u64::MAX / 2_000), 0, 8)));
        (1..1_999)
            .for_each(|n| drop(table.remove(KeyHash { token: 0, tag: n * (u64::MAX / 2_000) })));
        assert_eq!(scan(&mut table, 2, |_| {}), [0, 1_999 * (u64::MAX / 2_000)]);
    }
}

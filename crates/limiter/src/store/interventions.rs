//! Orders of operators about single descriptors, given at any node: to begin them anew, or to block
//! them.
//!
//! A descriptor that is *begun anew* counts under other keys from then on
//! ([`DescriptorHash::begun_anew`]): its counts before have no effect any more, wherever copies of
//! them are, and end as those of any unused key do. One that is *blocked* is refused until a time.
//!
//! All nodes have the same set. It is a join semilattice, so nodes may send each other theirs in
//! any order, and again:
//!
//! ```text
//! merge(a, b) = begun_anew  the later of both
//!               block       the one that was set later; of two set at once the one that lasts
//! longer
//! ```
//!
//! *Example*: a key is begun anew at node 1 while node 2 blocks it. Both nodes then have it
//! blocked, and anew when the block ends.
//!
//! **Bound.** The latest [`INTERVENTIONS_MAX`] descriptors are kept. One that was begun anew before
//! those counts under its first keys again, whose counts have mostly ended by then: up to its limit
//! more.

use std::collections::BTreeMap;
use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use super::key::DescriptorHash;
use crate::units::Timestamp;

/// Most descriptors.
pub const INTERVENTIONS_MAX: usize = 4_096;

/// What was done to one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intervention {
    /// Of domain and entries, before it was begun anew.
    pub descriptor: DescriptorHash,
    /// When it was begun anew last; [`Timestamp::EPOCH`] if it never was.
    pub begun_anew: Timestamp,
    pub block: Block,
}

/// Until when a descriptor is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Block {
    /// When the block was set, or lifted.
    pub set_at: Timestamp,
    /// [`Timestamp::EPOCH`] when it was lifted, [`Timestamp::NEVER`] when only that ends it.
    pub until: Timestamp,
}

/// What was done to all descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interventions(BTreeMap<DescriptorHash, Intervention>);

impl Intervention {
    fn none(descriptor: DescriptorHash) -> Self {
        Self { descriptor, begun_anew: Timestamp::EPOCH, block: Block::default() }
    }

    /// The least upper bound of two of one descriptor.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self {
            descriptor: self.descriptor,
            begun_anew: self.begun_anew.max(other.begun_anew),
            block: self.block.max(other.block),
        }
    }

    /// The hash under which the descriptor counts now.
    #[must_use]
    pub fn counts_as(&self) -> DescriptorHash {
        self.counts_part_as(self.descriptor)
    }

    /// The same of a part of what was begun anew, which has a hash of its own.
    #[must_use]
    pub fn counts_part_as(&self, part: DescriptorHash) -> DescriptorHash {
        match self.begun_anew {
            Timestamp::EPOCH => part,
            at => part.begun_anew(at),
        }
    }

    /// Until when it is refused, if it is at `now`.
    pub fn blocked_until(&self, now: Timestamp) -> Option<Timestamp> {
        Some(self.block.until).filter(|until| *until > now)
    }

    fn latest(&self) -> Timestamp {
        self.begun_anew.max(self.block.set_at)
    }
}

impl Interventions {
    pub fn get(&self, descriptor: DescriptorHash) -> Option<&Intervention> {
        self.0.get(&descriptor)
    }

    /// In the order of the descriptors' hashes.
    pub fn iter(&self) -> impl Iterator<Item = &Intervention> {
        self.0.values()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Begins a descriptor anew; returns what is to be merged elsewhere. A second
    /// order within one nanosecond, or after the clock was set back, still gets a later time.
    pub fn begin_anew(&mut self, descriptor: DescriptorHash, now: Timestamp) -> Intervention {
        self.change(descriptor, |it| {
            let before = it.counts_as().beside();
            it.begun_anew = after(it.begun_anew, now);
            // What was reserved is not kept free of the new counters.
            while it.counts_as().beside() == before {
                it.begun_anew = after(it.begun_anew, now);
            }
        })
    }

    /// Refuses a descriptor until a time; [`Timestamp::EPOCH`] lifts the block. Returns what is to
    /// be merged elsewhere.
    pub fn block(
        &mut self,
        descriptor: DescriptorHash,
        until: Timestamp,
        now: Timestamp,
    ) -> Intervention {
        self.change(descriptor, |it| {
            it.block = Block { set_at: after(it.block.set_at, now), until };
        })
    }

    /// Merges one of another node; returns whether that changed anything.
    pub fn merge(&mut self, other: Intervention) -> bool {
        let own = self.0.get(&other.descriptor).copied();
        let merged = own.map_or(other, |own| own.merge(other));
        if own == Some(merged) {
            return false;
        }
        self.0.insert(merged.descriptor, merged);
        self.keep_latest() != Some(merged.descriptor)
    }

    /// Equal for two nodes with equal interventions.
    pub fn digest(&self) -> u64 {
        let mut sip = SipHasher13::new();
        for Intervention { descriptor, begun_anew, block } in self.iter() {
            let (token, base) = descriptor.parts();
            let times = [*begun_anew, block.set_at, block.until].map(Timestamp::as_nanos);
            for part in [token, base].into_iter().chain(times) {
                sip.write(&part.to_le_bytes());
            }
        }
        sip.finish()
    }

    fn change(
        &mut self,
        descriptor: DescriptorHash,
        change: impl FnOnce(&mut Intervention),
    ) -> Intervention {
        let entry = self.0.entry(descriptor);
        let intervention = entry.or_insert_with(|| Intervention::none(descriptor));
        change(intervention);
        let changed = *intervention;
        self.keep_latest();
        changed
    }

    /// Forgets the earliest one if there are too many; returns which. It follows from the set
    /// alone, so that nodes with the same entries forget the same.
    fn keep_latest(&mut self) -> Option<DescriptorHash> {
        if self.0.len() <= INTERVENTIONS_MAX {
            return None;
        }
        let earliest = self.iter().min_by_key(|it| (it.latest(), it.descriptor))?.descriptor;
        self.0.remove(&earliest);
        Some(earliest)
    }
}

/// `now`, or the next instant after `last` if that is not later.
fn after(last: Timestamp, now: Timestamp) -> Timestamp {
    now.max(Timestamp::from_nanos(last.as_nanos().saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::descriptor::Entry;
    use crate::store::KeyHasher;

    fn descriptor(number: u64) -> DescriptorHash {
        let value = number.to_string();
        KeyHasher::new([7; 16]).descriptor("d", &[Entry { key: "k", value: &value }])
    }

    fn any_intervention() -> impl Strategy<Value = Intervention> {
        let time = || (0_u64..4).prop_map(Timestamp::from_nanos);
        (0_u64..3, time(), time(), time()).prop_map(|(number, begun_anew, set_at, until)| {
            let block = Block { set_at, until };
            Intervention { descriptor: descriptor(number), begun_anew, block }
        })
    }

    fn set(entries: &[Intervention]) -> Interventions {
        let mut set = Interventions::default();
        for entry in entries {
            set.merge(*entry);
        }
        set
    }

    proptest! {
        #[test]
        fn nodes_that_heard_the_same_have_the_same(
            entries in prop::collection::vec(any_intervention(), 0..12),
            order in any::<prop::sample::Index>(),
        ) {
            let one = set(&entries);
            let mut turned = entries.clone();
            turned.rotate_left(order.index(entries.len().max(1)).min(entries.len()));
            turned.extend(entries.iter().rev());
            let other = set(&turned);
            prop_assert_eq!(&one, &other);
            prop_assert_eq!(one.digest(), other.digest());
        }

        #[test]
        fn a_merge_tells_whether_it_changed_anything(
            entries in prop::collection::vec(any_intervention(), 0..12),
            next in any_intervention(),
        ) {
            let before = set(&entries);
            let mut after = before.clone();
            prop_assert_eq!(after.merge(next), before != after);
            prop_assert_eq!(before.digest() != after.digest(), before != after);
        }
    }

    #[test]
    fn each_order_is_later_than_those_before_it_also_when_the_clock_is_set_back() {
        let (key, mut set) = (descriptor(1), Interventions::default());
        let first = set.begin_anew(key, Timestamp::from_secs(10));
        let second = set.begin_anew(key, Timestamp::from_secs(5));
        assert!(second.begun_anew > first.begun_anew);
        assert_ne!(first.counts_as(), second.counts_as());
        assert_ne!(first.counts_as(), key);
        set.block(key, Timestamp::NEVER, Timestamp::from_secs(10));
        let lifted = set.block(key, Timestamp::EPOCH, Timestamp::from_secs(5));
        assert_eq!(lifted.blocked_until(Timestamp::EPOCH), None);
        assert_eq!(set.get(key), Some(&lifted));
        assert_eq!(lifted.begun_anew, second.begun_anew, "a block begins nothing anew");
    }

    #[test]
    fn the_latest_are_kept_by_every_node_alike() {
        let max = u64::try_from(INTERVENTIONS_MAX).expect("small");
        let order = |set: &mut Interventions, number| {
            set.begin_anew(descriptor(number), Timestamp::from_secs(1 + number))
        };
        let mut one = Interventions::default();
        let orders: Vec<Intervention> = (0..max + 10).map(|n| order(&mut one, n)).collect();
        assert_eq!(one.len(), INTERVENTIONS_MAX);
        assert!(one.get(descriptor(9)).is_none() && one.get(descriptor(10)).is_some());
        let reversed: Vec<Intervention> = orders.iter().rev().copied().collect();
        assert_eq!(set(&reversed), one);
        assert!(!one.merge(orders[0]), "it is forgotten again");
    }
}

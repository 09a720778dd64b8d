//! The entries of each message, up to the size of a frame.

use std::collections::BTreeMap;

use tidegate_limiter::engine::Delta;
use tidegate_limiter::store::KeyHash;
use tidegate_ownership::identity::NodeId;

use crate::mesh::wire::{SYNC_ENTRIES_MAX, SyncEntry, SyncRole};

/// Most per-actor counters in one message, by [`Delta::weight`]. One takes at most 23 bytes, so a
/// message fills at most half a frame.
pub(super) const ACTORS_PER_MESSAGE_MAX: usize = 20_480;

/// One message to one peer.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) to: NodeId,
    pub(super) role: SyncRole,
    pub(super) entries: Vec<SyncEntry>,
}

/// The messages of one round.
#[derive(Debug, Default)]
pub(super) struct Batches {
    entries: BTreeMap<(NodeId, SyncRole), Vec<SyncEntry>>,
}

impl Batch {
    pub(super) fn keys(&self) -> impl Iterator<Item = KeyHash> {
        self.entries.iter().map(|entry| entry.key)
    }
}

impl Batches {
    /// Nothing if an owner has nothing to say. A node has: it uses the key.
    pub(super) fn add(&mut self, to: &NodeId, role: SyncRole, key: KeyHash, actor_counters: Delta) {
        if role == SyncRole::Owner && actor_counters.is_empty() {
            return;
        }
        let entries = self.entries.entry((to.clone(), role)).or_default();
        entries.push(SyncEntry { key, actor_counters });
    }

    /// Splits the entries for each peer into messages of at most [`SYNC_ENTRIES_MAX`] entries and
    /// [`ACTORS_PER_MESSAGE_MAX`] counters.
    pub(super) fn split(self) -> Vec<Batch> {
        let mut batches: Vec<Batch> = Vec::new();
        for ((to, role), entries) in self.entries {
            let mut room = 0;
            let mut open: Option<Batch> = None;
            for mut entry in entries {
                // Only a key with a thousand actors and dozens of sub-windows is that large.
                entry.actor_counters.keep_newest(ACTORS_PER_MESSAGE_MAX);
                let weight = entry.actor_counters.weight();
                let fits = |batch: &Batch| batch.entries.len() < SYNC_ENTRIES_MAX && weight <= room;
                if !open.as_ref().is_some_and(fits) {
                    batches.extend(open.take());
                    room = ACTORS_PER_MESSAGE_MAX;
                }
                room -= weight;
                let empty = || Batch { to: to.clone(), role, entries: Vec::new() };
                open.get_or_insert_with(empty).entries.push(entry);
            }
            batches.extend(open);
        }
        batches
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use crdts::VClock;
    use tidegate_limiter::engine::ActorId;
    use tidegate_limiter::engine::delta::{ACTOR_COUNT_MAX, DeltaSlice};

    use super::*;
    use crate::mesh::codec;
    use crate::mesh::wire::{Call, Numbered, Sync};

    /// The largest counters of that many actors in that many buckets.
    fn delta(actors: u64, buckets: u8) -> Delta {
        let counters = || {
            (0..actors)
                .map(|n| (ActorId::of_start(u64::MAX - n, u64::MAX), ACTOR_COUNT_MAX))
                .collect()
        };
        let clock = || VClock { dots: counters() };
        let slice = |n| DeltaSlice { index: u64::MAX - n, used: clock(), refunded: clock() };
        let all = (0..u64::from(buckets)).map(slice).collect();
        Delta { slice_ns: u64::MAX, slices_kept: buckets, slices: all }
    }

    #[test]
    fn messages_fit_into_a_frame_and_carry_every_key() {
        for (actors, buckets, keys) in [(1, 2, 1_000), (40, 61, 256), (1_024, 61, 2)] {
            let mut batches = Batches::default();
            let to = NodeId::new("b").expect("valid id");
            for tag in 0..keys {
                let key = KeyHash { token: u64::MAX, tag };
                batches.add(&to, SyncRole::Owner, key, delta(actors, buckets));
            }
            let mut sent = Vec::new();
            for batch in batches.split() {
                sent.extend(batch.keys().map(|key| key.tag));
                assert!(batch.entries.len() <= SYNC_ENTRIES_MAX);
                let sync = Sync { role: batch.role, urgent: true, entries: batch.entries };
                let call = Numbered { id: u64::MAX, body: Call::Sync(sync) };
                codec::encode(&call, codec::VERSION, &mut BytesMut::new()).expect("fits a frame");
            }
            assert_eq!(sent, (0..keys).collect::<Vec<_>>());
        }
    }
}

//! The receiving end: columns that a peer sent, and what it is told in return.

use tidegate_limiter::engine::{ActorId, Delta};
use tidegate_limiter::store::KeyHash;
use tidegate_ownership::identity::node_actor;

use super::actor_authority::{Accepted, ActorAuthority};
use super::batch::ACTORS_PER_MESSAGE_MAX;
use super::{Synchroniser, count};
use crate::mesh::Peer;
use crate::mesh::wire::{Reply, SYNC_ENTRIES_MAX, Sync, SyncEntry, SyncRole};

impl Synchroniser {
    /// Answers columns that a peer sent.
    pub fn answer(&self, from: &Peer, sync: Sync) -> Reply {
        let shared = &self.shared;
        if sync.entries.len() > SYNC_ENTRIES_MAX {
            return Reply::Malformed;
        }
        let topology = shared.topology.load();
        let now = shared.clock.now();
        let actor_authority = ActorAuthority {
            own_actor: shared.incarnation.actor(),
            peer: &from.id,
            peer_actor: node_actor(&from.id, from.generation),
            peer_region: &from.region,
        };
        let mut told = Vec::new();
        let mut room = ACTORS_PER_MESSAGE_MAX;
        let mut has_news = false;
        for mut entry in sync.entries {
            count(&shared.counters.received, 1);
            let key = entry.key;
            let accepted =
                actor_authority.accept(&mut entry.actor_counters, sync.role, key, &topology, now);
            if matches!(accepted, Accepted::Nothing | Accepted::Refused | Accepted::Disputed) {
                count(&shared.counters.rejected, u64::from(accepted != Accepted::Nothing));
            } else if self.join(&entry, now) && sync.role != SyncRole::Owner {
                // The owner passes on what nodes and other regions tell; a node keeps what owners
                // tell.
                if sync.urgent {
                    shared.store.enqueue_urgent_sync(key);
                } else {
                    shared.store.enqueue_sync(key);
                }
                has_news = true;
            }
            let said = match accepted {
                _ if sync.role == SyncRole::Owner => continue,
                // Left out of the answer: to be told again, when the views agree.
                Accepted::Part | Accepted::Disputed => continue,
                // It would be no better the second time.
                Accepted::Refused => None,
                Accepted::Whole | Accepted::Nothing => {
                    self.answer_columns(key, sync.role, actor_authority.peer_actor)
                }
            };
            let actor_counters = match said {
                Some(said) if said.weight() <= room => said,
                Some(_) => {
                    // A round of our own tells the rest.
                    shared.store.enqueue_sync(key);
                    entry.actor_counters.without_slices()
                }
                None => entry.actor_counters.without_slices(),
            };
            room -= actor_counters.weight();
            told.push(SyncEntry { key, actor_counters });
        }
        if sync.urgent && has_news {
            self.hurry();
        }
        match sync.role {
            SyncRole::Owner => Reply::Done,
            SyncRole::Node | SyncRole::Region => Reply::ActorCounters(told),
        }
    }

    /// What is known of a key beyond the peer's own column, which is the peer's alone to write.
    fn answer_columns(&self, key: KeyHash, role: SyncRole, peer: ActorId) -> Option<Delta> {
        self.shared.store.read_actor_counters(key, |actor_counters| match role {
            SyncRole::Region => self.region_column(actor_counters),
            SyncRole::Node | SyncRole::Owner => actor_counters.delta_of(|actor| actor != peer),
        })
    }
}

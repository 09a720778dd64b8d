//! The receiving side: per-actor counters that a peer sent, in a message or in a reply.

use std::collections::BTreeSet;

use tidegate_limiter::store::{KeyHash, MergeOutcome};
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::identity::{NodeId, node_actor};
use tidegate_ownership::route::Admission;

use super::actor_authority::{Accepted, ActorAuthority};
use super::batch::ACTORS_PER_MESSAGE_MAX;
use super::recipients::replica;
use super::synchroniser::{Synchroniser, known_to};
use crate::count;
use crate::mesh::Peer;
use crate::mesh::wire::{Reply, SYNC_ENTRIES_MAX, Sync, SyncEntry, SyncRole};
use crate::pki::Role;

impl Synchroniser {
    /// Merges counters that a peer sent. The reply has an entry for every key except those that the
    /// peer is to send again; an owner needs it only if there are such.
    pub fn receive(&self, from: &Peer, sync: Sync) -> Reply {
        if sync.entries.len() > SYNC_ENTRIES_MAX {
            return Reply::Malformed;
        }
        let topology = self.topology.load();
        let now = self.clock.now();
        let actor_authority = ActorAuthority {
            own_actor: self.incarnation.actor(),
            peer: &from.id,
            peer_actor: node_actor(&from.id, from.generation),
            peer_region: &from.region,
            peer_role: from.role,
            ahead_max: self.options.ahead_max,
        };
        let (mut replies, mut is_disputed) = (Vec::new(), false);
        let mut room = ACTORS_PER_MESSAGE_MAX;
        for mut entry in sync.entries {
            count(&self.counters.received, 1);
            let key = entry.key;
            let accepted =
                actor_authority.accept(&mut entry.actor_counters, sync.role, key, &topology, now);
            if matches!(accepted, Accepted::Nothing | Accepted::Refused | Accepted::Disputed) {
                count(&self.counters.rejected, u64::from(accepted == Accepted::Refused));
            } else if self.merge(&entry, now) && sync.role != SyncRole::Owner {
                // The owner forwards what nodes and other regions send; a node forwards nothing.
                if sync.urgent {
                    self.announce_further(key, &from.id);
                } else {
                    self.store.enqueue_sync(key);
                }
            }
            let known = match accepted {
                Accepted::Disputed if sync.role == SyncRole::Owner => {
                    is_disputed = true;
                    continue;
                }
                // It needs no counters, but to be named if others are left out.
                _ if sync.role == SyncRole::Owner => None,
                // Left out of the reply, so that the peer sends it again when the views agree.
                Accepted::Part | Accepted::Disputed => continue,
                // Named in the reply: it would be refused the second time as well.
                Accepted::Refused => None,
                Accepted::Whole | Accepted::Nothing => {
                    let is_replica = replica(&topology, key) == Some(&from.id);
                    self.store.read_actor_counters(key, |actor_counters| match sync.role {
                        SyncRole::Region => self.region_counter(actor_counters),
                        // Without the peer's own, of which the peer is the only writer.
                        SyncRole::Node | SyncRole::Owner => {
                            let actor = actor_authority.peer_actor;
                            known_to(actor_counters, actor, from.version, is_replica)
                        }
                    })
                }
            };
            let actor_counters = match known {
                Some(known) if known.weight() <= room => known,
                Some(_) => {
                    // Does not fit: this node's next round sends it.
                    self.store.enqueue_sync(key);
                    entry.actor_counters.without_slices()
                }
                None => entry.actor_counters.without_slices(),
            };
            room -= actor_counters.weight();
            replies.push(SyncEntry { key, actor_counters });
        }
        match sync.role {
            SyncRole::Owner if !is_disputed => Reply::Done,
            SyncRole::Owner | SyncRole::Node | SyncRole::Region => {
                let admission = topology.admission();
                let members = admission.map(|own| own.collection.members_at).unwrap_or_default();
                Reply::ActorCounters { members, entries: replies }
            }
        }
    }

    /// Merges an owner's reply to a message about `sent` keys. Keys that it does not name were not
    /// accepted and are sent again. With `collected` it has all counters of earlier starts of this
    /// node, so those are folded.
    pub(super) fn receive_reply(
        &self,
        to: &NodeId,
        role: SyncRole,
        mut sent: BTreeSet<KeyHash>,
        entries: Vec<SyncEntry>,
        collected: Option<Admission>,
    ) {
        let topology = self.topology.load();
        let Some(peer) = topology.view.get(to) else { return self.enqueue_again(sent, role) };
        let now = self.clock.now();
        let collected = collected.filter(|_| topology.admission() == collected);
        let actor_authority = ActorAuthority {
            own_actor: self.incarnation.actor(),
            peer: to,
            peer_actor: node_actor(to, peer.generation),
            peer_region: &peer.region,
            peer_role: Role::Core,
            ahead_max: self.options.ahead_max,
        };
        // The reply to a push comes from the owner, that to a region exchange from the other
        // region.
        let peer_role = match role {
            SyncRole::Node | SyncRole::Owner => SyncRole::Owner,
            SyncRole::Region => SyncRole::Region,
        };
        for mut entry in entries {
            let (key, counters) = (entry.key, &mut entry.actor_counters);
            if role == SyncRole::Owner {
                // Only says that the key was accepted.
                sent.remove(&key);
                continue;
            }
            let accepted = if sent.remove(&key) {
                actor_authority.accept(counters, peer_role, key, &topology, now)
            } else {
                Accepted::Refused
            };
            match accepted {
                Accepted::Whole | Accepted::Part => {
                    if self.merge(&entry, now) && role == SyncRole::Region {
                        self.store.enqueue_sync(key);
                    }
                    if let Some(admission) = collected {
                        self.fold_replied(key, &entry.actor_counters, admission);
                    }
                }
                Accepted::Nothing => {}
                Accepted::Disputed | Accepted::Refused => count(&self.counters.rejected, 1),
            }
        }
        self.enqueue_again(sent, role);
    }

    /// Merges accepted counters into the store. Returns whether they changed it.
    fn merge(&self, entry: &SyncEntry, now: Timestamp) -> bool {
        self.outrun(&entry.actor_counters);
        let merged = self.store.merge_actor_counters(entry.key, &entry.actor_counters, now);
        merged == MergeOutcome::Merged { changed: true }
    }
}

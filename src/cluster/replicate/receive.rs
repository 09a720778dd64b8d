//! The receiving end: states that a peer sent.

use super::Replicator;
use super::counters::count;
use super::plausible::is_plausible;
use crate::cluster::identity::NodeId;
use crate::cluster::mesh::wire::{Reply, STATE_ENTRIES_MAX, StateEntry};
use crate::cluster::route::{Route, Topology};
use crate::config::policy::Scope;
use crate::store::{Counted, KeyHash, Merged};

impl Replicator {
    /// Joins states that a peer sent: copies, or keys that change hands. Answers [`Reply::Done`] when
    /// this node holds all of them now, [`Reply::Unconfirmed`] when it refused some or had no room.
    pub fn join(&self, from: &NodeId, entries: Vec<StateEntry>) -> Reply {
        if entries.len() > STATE_ENTRIES_MAX {
            return Reply::Malformed;
        }
        let shared = &self.shared;
        let topology = shared.topology.load();
        let now = shared.clock.now();
        let mut holds_all = true;
        for StateEntry { key, state, expires } in entries {
            if !may_tell(from, key, &topology) || !is_plausible(key, &state, expires, now) {
                count(&shared.counters.refused, 1);
                holds_all = false;
                continue;
            }
            count(&shared.counters.received, 1);
            match shared.store.merge(Counted { key, state, expires }, now) {
                // What comes to its owner is news for the owner's replicas; a replica passes nothing
                // on.
                Merged::Joined { news: true }
                    if topology.route(key.scope(), key.place) == Route::Local =>
                {
                    shared.store.mark_changed(key);
                }
                Merged::Joined { .. } | Merged::Expired => {}
                Merged::Full | Merged::Foreign => holds_all = false,
            }
        }
        if holds_all { Reply::Done } else { Reply::Unconfirmed }
    }
}

/// Whether `from` may hold this key: it is a member of the key's ring, or was until it began to
/// leave.
fn may_tell(from: &NodeId, key: KeyHash, topology: &Topology) -> bool {
    topology.view.get(from).is_some_and(|member| match key.scope() {
        Scope::Region => member.region == topology.region,
        Scope::Global => true,
    })
}

//! The receiving end: states that a peer sent.

use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::{KeyHash, MergeOutcome, StoredCounter};
use tidegate_ownership::HandoffReply;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::membership::Member;
use tidegate_ownership::route::{Route, Topology};

use super::Replicator;
use super::counters::count;
use super::plausible::is_plausible;
use crate::mesh::wire::{Reply, STATE_ENTRIES_MAX, StateEntry};

impl Replicator {
    /// Joins states that a peer sent: copies, or keys that change hands. Answers [`Reply::Done`]
    /// when this node holds all of them now, [`Reply::Unconfirmed`] when it refused some or had no
    /// room. A peer that is no member is asked to send them again: this node may not have heard of
    /// it yet.
    pub fn join(&self, from: &NodeId, entries: Vec<StateEntry>) -> Reply {
        if entries.len() > STATE_ENTRIES_MAX {
            return Reply::Malformed;
        }
        let shared = &self.shared;
        let topology = shared.topology.load();
        let Some(member) = topology.view.get(from) else {
            count(&shared.counters.refused, entries.len() as u64);
            return Reply::Handoff(HandoffReply::Later);
        };
        let now = shared.clock.now();
        let mut holds_all = true;
        for StateEntry { key, state, expires } in entries {
            if !may_tell(member, key, &topology) || !is_plausible(key, &state, expires, now) {
                count(&shared.counters.refused, 1);
                holds_all = false;
                continue;
            }
            count(&shared.counters.received, 1);
            match shared.store.merge(StoredCounter { key, state, expires }, now) {
                // What comes to its owner is priority for the owner's replicas; a replica passes
                // nothing on.
                MergeOutcome::Merged { changed: true }
                    if topology.route(key.scope(), key.token) == Route::Local =>
                {
                    shared.store.enqueue_replication(key);
                }
                MergeOutcome::Merged { .. } | MergeOutcome::Expired => {}
                MergeOutcome::Full | MergeOutcome::WrongForm => holds_all = false,
            }
        }
        if holds_all { Reply::Done } else { Reply::Unconfirmed }
    }
}

/// Whether a member may hold this key: it is on the key's ring, or was until it began to leave.
fn may_tell(from: &Member, key: KeyHash, topology: &Topology) -> bool {
    match key.scope() {
        Scope::Region => from.region == topology.region,
        Scope::Global => true,
    }
}

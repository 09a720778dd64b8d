//! The owner's side: deciding strict keys, for this node's clients and for peers.
//!
//! Whether this node may decide a key is asked inside the lock of the decision, so that a key that
//! is given away is not decided a moment later. A check that a peer sends again, because it does
//! not know what became of the first, is answered from [`DedupCache`](super::seen) and counts nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_cluster::mesh::StreamClass;
use tidegate_cluster::mesh::wire::{Call, Check, Reply};
use tidegate_cluster::replication;
use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::{KeyHash, Verdicts};
use tidegate_limiter::units::{Hits, Timestamp};
use tidegate_ownership::identity::{Generation, NodeId, node_actor};

use super::Decider;
use super::dedup_cache::Once;

impl Decider {
    /// Decides a check that a peer, `from`, forwarded because this node owns its key.
    pub fn decide_as_owner(&self, from: (&NodeId, Generation), check: &Check) -> Reply {
        let Some(first) = check.counters.first() else { return Reply::Malformed };
        let token = first.key.token;
        let is_one_descriptor = check.counters.iter().all(|counter| counter.key.token == token);
        if !is_one_descriptor {
            return Reply::Malformed;
        }
        let counters = self.counters();
        let now = self.parts().clock.now();
        let asker = node_actor(from.0, from.1);
        match self.seen().once(asker, check.id, || self.decide_if_held(check, now)) {
            Some(Once::First(verdicts)) => {
                counters.served.fetch_add(1, Ordering::Relaxed);
                self.tell_refund(check);
                Reply::Verdicts(verdicts)
            }
            Some(Once::Again(verdicts)) => {
                counters.repeated.fetch_add(1, Ordering::Relaxed);
                Reply::Verdicts(verdicts)
            }
            None => {
                counters.not_owner.fetch_add(1, Ordering::Relaxed);
                let ownership = &self.parts().ownership;
                let epoch = ownership.owned_ranges(check.scope).epoch;
                Reply::NotOwner { epoch, holder: ownership.transferred_to(check.scope, token) }
            }
        }
    }

    /// Hits were given back at `token`: what was refused there may pass now.
    pub fn refunded(&self, token: u64) {
        self.negative_cache().forget(token);
    }

    /// Whether a replica has what `check` counted, or none need have it: a rule that asks for no
    /// replica, hits that were refused or given back.
    pub async fn is_confirmed(&self, check: &Check, verdicts: &Verdicts, within: Duration) -> bool {
        let Some(remote) = &self.parts().remote else { return true };
        if !replication::awaits_confirm(check.durability, check.hits, verdicts) {
            return true;
        }
        let keys: SmallVec<[KeyHash; 1]> =
            check.counters.iter().map(|counter| counter.key).collect();
        remote.replicator.confirm(&keys, within).await
    }

    /// Decides a strict check here, if this node holds its key; counts nothing if it does not.
    pub(super) fn decide_if_held(&self, check: &Check, now: Timestamp) -> Option<Verdicts> {
        let token = check.counters.first().map_or(0, |counter| counter.key.token);
        let owns = || self.parts().ownership.owns(check.scope, token);
        self.parts().store.check_if(&check.counters, check.hits, now, owns)
    }

    /// Tells all who may have been refused at its place that this check gave hits back.
    pub(super) fn tell_refund(&self, check: &Check) {
        if check.hits >= Hits::PEEK {
            return;
        }
        let Some(token) = check.counters.first().map(|counter| counter.key.token) else { return };
        self.refunded(token);
        let Some(remote) = &self.parts().remote else { return };
        let topology = self.parts().topology.load();
        for member in topology.view.members() {
            let is_asker = check.scope == Scope::Global || member.region == topology.region;
            if is_asker && member.id != topology.me {
                // One that is not connected hears nothing and asks again within a minute.
                remote.mesh.notify(&member.id, StreamClass::Checks, Call::Refunded { token });
            }
        }
    }
}

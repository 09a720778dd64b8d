//! The owner's side: deciding strict keys that this node owns, for its own clients and for peers.
//!
//! Ownership is tested under the lock of the decision, so a key that has been handed over is not
//! decided afterwards. A check that a peer sends again, because its connection broke before the
//! reply, is answered from the [`DedupCache`](super::dedup_cache::DedupCache) and counts nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_cluster::mesh::StreamClass;
use tidegate_cluster::mesh::wire::{Call, Check, Reply};
use tidegate_cluster::replication;
use tidegate_limiter::policy::{Durability, Scope};
use tidegate_limiter::store::{Counter, KeyHash, Verdicts};
use tidegate_limiter::units::{Hits, Timestamp};
use tidegate_ownership::identity::{Generation, NodeId, node_actor};

use super::decider::Decider;
use super::dedup_cache::Once;

// === impl Decider: for peers ===

impl Decider {
    /// Decides a check that `from` forwarded because this node owns its key.
    pub fn decide_for_peer(&self, from: (&NodeId, Generation), check: &Check) -> Reply {
        let Check { id, scope, ref counters, hits, .. } = *check;
        let Some(first) = counters.first() else { return Reply::Malformed };
        let token = first.key.token;
        if counters.iter().any(|counter| counter.key.token != token) {
            return Reply::Malformed;
        }
        let shared = &*self.shared;
        let stats = &shared.counters;
        let now = shared.node.clock.now();
        let sender = node_actor(from.0, from.1);
        let decide = || self.decide_if_owned(scope, counters, hits, now);
        match shared.dedup_cache.once(sender, id, decide) {
            Some(Once::First(verdicts)) => {
                stats.served.fetch_add(1, Ordering::Relaxed);
                self.announce_refund(scope, counters, hits);
                Reply::Verdicts(verdicts)
            }
            Some(Once::Again(verdicts)) => {
                stats.deduplicated.fetch_add(1, Ordering::Relaxed);
                Reply::Verdicts(verdicts)
            }
            None => {
                stats.not_owner.fetch_add(1, Ordering::Relaxed);
                let ownership = &shared.node.ownership;
                let epoch = ownership.owned_ranges().epoch;
                Reply::NotOwner { epoch, holder: ownership.transferred_to(token) }
            }
        }
    }

    /// The reply to a check that was decided for a peer, once a replica has confirmed the count;
    /// `None` when no replica needs to.
    pub fn confirmation(
        &self,
        check: &Check,
        verdicts: &Verdicts,
    ) -> Option<impl Future<Output = Reply> + Send + use<>> {
        self.needs_replica(check.durability, check.hits, verdicts).then(|| {
            let (decider, counters) = (self.clone(), check.counters.clone());
            let (deadline, verdicts) = (self.deadline(check.scope), verdicts.clone());
            let hits = check.hits;
            async move {
                let is_confirmed = decider.is_confirmed(&counters, hits, deadline).await;
                if is_confirmed { Reply::Verdicts(verdicts) } else { Reply::Unconfirmed }
            }
        })
    }

    /// A peer gave hits back at `token`: forgets refusals that may not hold any more.
    pub fn refunded(&self, token: u64) {
        self.shared.negative_cache.forget(token);
    }
}

// === impl Decider: for this node ===

impl Decider {
    /// Decides a strict check if this node owns its key; counts nothing otherwise.
    pub(super) fn decide_if_owned(
        &self,
        scope: Scope,
        counters: &[Counter],
        hits: Hits,
        now: Timestamp,
    ) -> Option<Verdicts> {
        let node = &self.shared.node;
        let token = counters.first().map_or(0, |counter| counter.key.token);
        node.store.check_if(counters, hits, now, || node.ownership.decides(scope, token))
    }

    /// Whether the verdicts have to wait for [`Decider::is_confirmed`].
    pub(super) fn needs_replica(
        &self,
        durability: Durability,
        hits: Hits,
        verdicts: &Verdicts,
    ) -> bool {
        self.shared.peers.is_some() && replication::awaits_confirm(durability, hits, verdicts)
    }

    /// Whether a replica has stored the present counts within `deadline`.
    pub(super) async fn is_confirmed(
        &self,
        counters: &[Counter],
        hits: Hits,
        deadline: Duration,
    ) -> bool {
        let Some(peers) = &self.shared.peers else { return true };
        let keys: SmallVec<[KeyHash; 1]> = counters.iter().map(|counter| counter.key).collect();
        peers.replicator.confirm(&keys, hits, deadline).await
    }

    /// After a refund: every node that may have cached a refusal at this token forgets it.
    pub(super) fn announce_refund(&self, scope: Scope, counters: &[Counter], hits: Hits) {
        if hits >= Hits::PEEK {
            return;
        }
        let Some(token) = counters.first().map(|counter| counter.key.token) else { return };
        self.refunded(token);
        let Some(peers) = &self.shared.peers else { return };
        let topology = self.shared.node.topology.load();
        for member in topology.view.members() {
            let may_forward = scope == Scope::Global || member.region == topology.region;
            if may_forward && member.id != topology.me {
                // A node that is not connected misses the notice; its cached refusal ends within
                // a minute.
                peers.mesh.notify(&member.id, StreamClass::Checks, Call::Refunded { token });
            }
        }
    }
}

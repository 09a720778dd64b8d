//! Folding the counters of earlier starts of this node.
//!
//! A restarted node counts under another actor, so the counters of a key would grow with each start
//! in its window. A node therefore folds those of its *own* earlier starts into one total
//! ([`ActorCounters::fold`]), once it has all of them: what it does not have then is dropped later,
//! wherever it arrives.
//!
//! 1. The members change at epoch `e` of the cluster map: a node was admitted, say. Every member
//!    pushes its copies of counters that have no writer any more to the owners of their keys, and
//!    reports `e` once each owner, itself a member at `e`, has answered.
//! 2. All members have reported `e`: the leader notes that in the map ([`Collection`]). An owner
//!    now has all counters of earlier starts of its keys.
//! 3. A node folds the keys that it owns. Of the others it folds those slices that are in the
//!    owner's reply to a push, under the same map as the owner. The total is then pushed as any
//!    other counter.
//!
//! Example: node `a` has counted `{a1: 3}` and `{a2: 4}` and starts again. Node `b` has `a2`, the
//! owner `a1`. After `b` has pushed, the owner replies to `a` with both, and `a` pushes
//! `{total a2: 7}`. The `{a2: 4}` that `b` still has is dropped there when the total arrives.
//!
//! [`ActorCounters::fold`]: tidegate_limiter::engine::ActorCounters::fold
//! [`Collection`]: tidegate_ownership::cluster_map::Collection

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limiter::engine::{ActorCounters, ActorId, Delta};
use tidegate_limiter::store::{Cursor, KeyHash, StoredCounter};
use tidegate_ownership::Epoch;
use tidegate_ownership::cluster_map::ClusterId;
use tidegate_ownership::identity::{Generation, is_node, node_actor};
use tidegate_ownership::route::{Admission, Topology};
use tokio_util::sync::CancellationToken;

use super::batch::{ACTORS_PER_MESSAGE_MAX, Batch, Batches};
use super::synchroniser::{REPLY_TIMEOUT, SCAN_KEYS, Synchroniser};
use crate::count;
use crate::mesh::wire::{Call, Reply, Sync, SyncRole};
use crate::mesh::{Mesh, StreamClass};

/// The pause before copies are pushed again that an owner did not take.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

impl Synchroniser {
    /// The epoch of the members of `cluster` to which this node has pushed its copies of counters
    /// of earlier starts; 0 if it has not.
    pub fn pushed(&self, cluster: ClusterId) -> Epoch {
        let (of, epoch) = *self.pushed.lock();
        if of == cluster { epoch } else { Epoch(0) }
    }

    /// Pushes copies whenever the members change, and folds once they are collected, until `stop`.
    pub(super) async fn run_collection(self: &Arc<Self>, mesh: Arc<Mesh>, stop: CancellationToken) {
        let mut ticks = mesh.ticks.every(self.options.interval);
        let mut folded = (ClusterId::default(), Epoch(0));
        let rounds = async {
            loop {
                ticks.tick().await;
                let topology = self.topology.load_full();
                let Some(admission) = topology.admission() else { continue };
                let members = (admission.cluster, admission.collection.members_at);
                if *self.pushed.lock() != members {
                    if self.push_copies(&topology, admission, &mesh).await {
                        *self.pushed.lock() = members;
                    }
                } else if admission.collection.is_complete && folded != members {
                    self.fold_all(&topology, admission).await;
                    folded = members;
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = rounds => {}
        }
    }

    /// Pushes the copies of all counters without a writer to the owners of their keys. False if
    /// the members changed meanwhile.
    async fn push_copies(
        &self,
        topology: &Topology,
        admission: Admission,
        mesh: &Arc<Mesh>,
    ) -> bool {
        let is_copy =
            |actor: ActorId| is_node(actor) && (actor.is_total() || !topology.has_actor(actor));
        let mut from = Some(Cursor::default());
        while let Some(cursor) = from {
            let mut batches = Batches::default();
            from = self.scan(cursor, |key, actor_counters| {
                self.outrun(&actor_counters.to_delta());
                let owner = topology.region_owner(&topology.region, key.token);
                let Some(owner) = owner.filter(|owner| **owner != topology.me) else { return };
                for part in parts(actor_counters.delta_of(is_copy)) {
                    batches.add(owner, SyncRole::Node, key, part);
                }
            });
            let mut batches = batches.split();
            while !batches.is_empty() {
                let mut refused = Vec::new();
                for batch in batches {
                    if !self.push(&batch, admission, mesh).await {
                        refused.push(batch);
                    }
                }
                batches = refused;
                if self.topology.load().admission().map(members) != Some(members(admission)) {
                    return false;
                }
                if !batches.is_empty() {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
            tokio::task::yield_now().await;
        }
        true
    }

    /// Whether the receiver, a member by the same map, has taken all.
    async fn push(&self, batch: &Batch, admission: Admission, mesh: &Arc<Mesh>) -> bool {
        let mut keys: BTreeSet<KeyHash> = batch.keys().collect();
        count(&self.counters.sent, keys.len() as u64);
        let (role, entries) = (batch.role, batch.entries.clone());
        let call = Call::Sync(Sync { role, urgent: false, entries });
        let reply = mesh.call(&batch.to, StreamClass::Bulk, call, REPLY_TIMEOUT).await;
        let Ok(Reply::ActorCounters { members, entries }) = reply else {
            count(&self.counters.failed, 1);
            return false;
        };
        for entry in &entries {
            keys.remove(&entry.key);
        }
        let named = entries.iter().map(|entry| entry.key).collect();
        self.receive_reply(&batch.to, role, named, entries, None);
        keys.is_empty() && members == admission.collection.members_at
    }

    /// Folds the keys that this node owns, and queues those others whose owners are to reply.
    async fn fold_all(&self, topology: &Topology, admission: Admission) {
        let first_kept = node_actor(&topology.me, admission.generation);
        let is_earlier =
            |actor: &ActorId| actor.writer() == first_kept.writer() && *actor < first_kept;
        let mut from = Some(Cursor::default());
        while let Some(cursor) = from {
            let mut found = Vec::new();
            from = self.scan(cursor, |key, actor_counters| {
                if actor_counters.actors().iter().any(is_earlier) {
                    found.push(key);
                }
            });
            for key in found {
                let owner = topology.region_owner(&topology.region, key.token);
                if owner != Some(&topology.me) || self.store.fold(key, first_kept, |_| true) {
                    self.store.enqueue_sync(key);
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Folds the slices of `key` that are in the reply of its owner.
    pub(super) fn fold_replied(&self, key: KeyHash, reply: &Delta, admission: Admission) {
        let first_kept = node_actor(self.incarnation.node(), admission.generation);
        let is_replied = |index| reply.slices.iter().any(|slice| slice.index == index);
        if self.store.fold(key, first_kept, is_replied) {
            self.store.enqueue_sync(key);
        }
    }

    /// Bumps the generation beyond a total of this node that contains it: the clock was set back
    /// between two starts, and nobody knew. What it counts would be taken for an old copy.
    pub(super) fn outrun(&self, counters: &Delta) {
        let own = self.incarnation.actor();
        if let Some(total) = counters.total_of(own.writer())
            && total > own
        {
            self.incarnation.bump(Generation(total.start()));
        }
    }

    /// One bounded step of a scan over the eventual keys.
    fn scan(&self, from: Cursor, mut visit: impl FnMut(KeyHash, &ActorCounters)) -> Option<Cursor> {
        let (mut found, now) = (Vec::new(), self.clock.now());
        let next = self.store.scan(from, now, SCAN_KEYS, KeyHash::is_eventual, &mut found);
        for StoredCounter { key, state, .. } in &found {
            if let Some(actor_counters) = state.actor_counters() {
                visit(*key, actor_counters);
            }
        }
        next
    }
}

/// The members by a map that admits this node.
fn members(admission: Admission) -> (ClusterId, Epoch) {
    (admission.cluster, admission.collection.members_at)
}

/// What is sent of a key: nothing of an empty delta, and slice by slice one that is too large for a
/// message, of which the rest would be left out.
fn parts(delta: Delta) -> Vec<Delta> {
    if delta.is_empty() {
        return Vec::new();
    }
    if delta.weight() <= ACTORS_PER_MESSAGE_MAX {
        return vec![delta];
    }
    let empty = delta.without_slices();
    let slices = delta.slices.into_iter();
    slices.map(|slice| Delta { slices: vec![slice], ..empty.clone() }).collect()
}

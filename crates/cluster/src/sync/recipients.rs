//! The peers of this region that are sent the counters of a key, by one view of the members.
//!
//! A node that does not own a key sends its own counter to the owner. The owner sends the others'
//! to each node that has counted the key, and all counters to one replica, the node that owns the
//! key when this one is gone. Edges that have counted it are sent them in the rounds only: there
//! may be a thousand of them, and one that counts near the limit announces, and gets them in the
//! reply.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_limiter::engine::{ActorCounters, ActorId};
use tidegate_limiter::store::KeyHash;
use tidegate_ownership::identity::{NodeId, node_actor};
use tidegate_ownership::route::Topology;

use crate::mesh::Edges;
use crate::mesh::wire::SyncRole;

#[derive(Debug)]
pub(super) struct Recipients {
    pub(super) topology: Arc<Topology>,
    pub(super) has_other_regions: bool,
    /// The other nodes of this region.
    nodes: BTreeMap<ActorId, NodeId>,
}

impl Recipients {
    pub(super) fn new(topology: Arc<Topology>) -> Self {
        let has_other_regions = topology.regions().any(|region| region != topology.region);
        let members = topology.view.members().iter();
        let nodes = members
            .filter(|member| member.region == topology.region && member.id != topology.me)
            .map(|member| (node_actor(&member.id, member.generation), member.id.clone()))
            .collect();
        Self { topology, has_other_regions, nodes }
    }

    /// Who is sent a key that this node has counters of, and as what: the owner if that is another
    /// node, else the nodes that use the key.
    pub(super) fn of(&self, key: KeyHash, counters: &ActorCounters) -> (SyncRole, Vec<&NodeId>) {
        let topology = &self.topology;
        match topology.region_owner(&topology.region, key.token) {
            Some(owner) if *owner == topology.me => {
                let actors = counters.actors();
                let users = actors.iter().filter_map(|actor| self.nodes.get(actor)).collect();
                (SyncRole::Owner, users)
            }
            owner => (SyncRole::Node, owner.into_iter().collect()),
        }
    }
}

/// The edges that have counted the key and are connected.
pub(super) fn edges<'a>(
    edges: &'a Edges,
    counters: &ActorCounters,
) -> impl Iterator<Item = &'a NodeId> {
    let actors = if edges.is_empty() { BTreeSet::new() } else { counters.actors() };
    let users = actors.into_iter().filter_map(|actor| edges.by_actor(actor));
    users.filter(|edge| !edge.is_unreachable()).map(|edge| &edge.id)
}

/// The node that owns the key when its owner is gone.
pub(super) fn replica(topology: &Topology, key: KeyHash) -> Option<&NodeId> {
    topology.ring()?.next_owner(key.token)
}

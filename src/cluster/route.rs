//! Where a strict key is decided, as a value that the caller matches once.

use std::collections::{BTreeMap, BTreeSet};

use super::identity::{NodeId, node_actor, region_actor};
use super::membership::{MemberState, View};
use super::ring::Ring;
use crate::config::policy::Scope;
use crate::engine::ActorId;

/// Everything that follows from a view: the rings. Immutable; a request holds one.
#[derive(Clone, Debug)]
pub struct Topology {
    /// This node.
    pub me: NodeId,
    /// The region it is in.
    pub region: String,
    /// The members it follows from.
    pub view: View,
    /// One ring a region.
    regions: BTreeMap<String, Ring>,
    /// One ring over all regions.
    global: Ring,
    /// The columns of all members and regions.
    spoken_for: BTreeSet<ActorId>,
}

/// Where a key is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'a> {
    /// Here: this node owns it.
    Local,
    /// At this peer.
    Forward(&'a NodeId),
    /// Nowhere: the ring is empty, because every node of it drains.
    Nobody,
}

impl Topology {
    /// The rings of `view` as `me` in `region` sees them.
    pub fn new(me: NodeId, region: String, view: View, vnodes: u32) -> Self {
        let mut by_region: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for member in view.owners() {
            by_region.entry(member.region.clone()).or_default().push(member);
        }
        let regions = by_region
            .into_iter()
            .map(|(region, members)| (region, Ring::new(members, vnodes)))
            .collect();
        let global = Ring::new(view.owners(), vnodes);
        let members = view.members().iter();
        let spoken_for = members
            .flat_map(|member| {
                [node_actor(&member.id, member.generation), region_actor(&member.region)]
            })
            .collect();
        Self { me, region, view, regions, global, spoken_for }
    }

    /// Where the key at `place` of a strict rule is decided.
    pub fn route(&self, scope: Scope, place: u64) -> Route<'_> {
        let owner = match scope {
            Scope::Region => self.region_owner(&self.region, place),
            Scope::Global => self.global.owner(place),
        };
        match owner {
            Some(owner) if *owner == self.me => Route::Local,
            Some(owner) => Route::Forward(owner),
            None => Route::Nobody,
        }
    }

    /// Whether this node drains: it owns nothing any more, though peers may not have heard yet.
    pub fn is_leaving(&self) -> bool {
        self.view.get(&self.me).is_some_and(|me| me.state == MemberState::Draining)
    }

    /// The owner of the key at `place` in one region.
    pub fn region_owner(&self, region: &str, place: u64) -> Option<&NodeId> {
        self.regions.get(region).and_then(|ring| ring.owner(place))
    }

    /// Whether a member or a region that is there tells of this column itself.
    pub fn is_spoken_for(&self, actor: ActorId) -> bool {
        self.spoken_for.contains(&actor)
    }

    /// The ring of one region, if it has one.
    pub fn region_ring(&self, region: &str) -> Option<&Ring> {
        self.regions.get(region)
    }

    /// The ring over all regions.
    pub fn global_ring(&self) -> &Ring {
        &self.global
    }

    /// Names of all regions that own keys, sorted.
    pub fn regions(&self) -> impl Iterator<Item = &str> {
        self.regions.keys().map(String::as_str)
    }

    /// This node's whole-number share of `limit` among the nodes that share it: the shares of all
    /// sum to `limit` exactly, the lowest ids get what does not divide.
    ///
    /// Example: 10 over nodes a, b, c is 4, 3, 3.
    pub fn share_of(&self, scope: Scope, limit: u32) -> u32 {
        let ring = match scope {
            Scope::Region => self.region_ring(&self.region),
            Scope::Global => Some(&self.global),
        };
        let Some(ring) = ring else { return limit };
        let count = u32::try_from(ring.nodes().len()).unwrap_or(u32::MAX).max(1);
        // A node that has left the ring is one more than the shares were made for: it takes what it
        // would have had, so that its last clients are not turned away.
        let Some(rank) = ring.nodes().position(|id| *id == self.me) else {
            return limit / count.saturating_add(1);
        };
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        limit / count + u32::from(rank < limit % count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::identity::Generation;
    use crate::cluster::membership::Member;

    fn member(id: &str, region: &str, state: MemberState) -> Member {
        Member {
            id: NodeId::new(id).expect("valid id"),
            generation: Generation(1),
            addr: ([127, 0, 0, 1], 1).into(),
            region: region.into(),
            zone: "z".into(),
            state,
            rule_book: 0,
            http: None,
        }
    }

    fn topology(me: &str, region: &str, members: Vec<Member>) -> Topology {
        Topology::new(NodeId::new(me).expect("id"), region.into(), View::new(members), 64)
    }

    #[test]
    fn all_nodes_agree_on_the_owner() {
        let members: Vec<_> =
            ["a", "b", "c"].iter().map(|id| member(id, "eu", MemberState::Up)).collect();
        let all: Vec<_> =
            ["a", "b", "c"].iter().map(|me| topology(me, "eu", members.clone())).collect();
        for place in (0..1_000u64).map(|n| n << 54) {
            let owners: Vec<_> = all.iter().map(|t| t.region_owner("eu", place)).collect();
            assert!(owners.iter().all(|owner| *owner == owners[0]));
            let local = all.iter().filter(|t| t.route(Scope::Region, place) == Route::Local);
            assert_eq!(local.count(), 1);
        }
    }

    #[test]
    fn a_region_keeps_its_own_keys_and_the_global_ring_does_not() {
        let members = vec![member("a", "eu", MemberState::Up), member("b", "us", MemberState::Up)];
        let a = topology("a", "eu", members);
        let places: Vec<u64> = (0..64u64).map(|n| n << 58).collect();
        assert!(places.iter().all(|&place| a.route(Scope::Region, place) == Route::Local));
        assert!(places.iter().any(|&place| a.route(Scope::Global, place) != Route::Local));
    }

    #[test]
    fn a_draining_node_owns_nothing() {
        let members =
            vec![member("a", "eu", MemberState::Draining), member("b", "eu", MemberState::Up)];
        let a = topology("a", "eu", members);
        let b = NodeId::new("b").expect("id");
        assert_eq!(a.route(Scope::Region, 7), Route::Forward(&b));
        let alone = topology("a", "eu", vec![member("a", "eu", MemberState::Draining)]);
        assert_eq!(alone.route(Scope::Region, 7), Route::Nobody);
    }

    #[test]
    fn shares_sum_to_the_limit() {
        let members: Vec<_> =
            ["a", "b", "c"].iter().map(|id| member(id, "eu", MemberState::Up)).collect();
        for limit in [0, 1, 2, 3, 10, 1_000, u32::MAX] {
            let sum: u64 = ["a", "b", "c"]
                .iter()
                .map(|me| topology(me, "eu", members.clone()).share_of(Scope::Region, limit))
                .map(u64::from)
                .sum();
            assert_eq!(sum, u64::from(limit));
        }
    }
}

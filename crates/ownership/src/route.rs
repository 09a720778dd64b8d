//! The rings that follow from a view, and the owner of each key on them.
//!
//! A [`Topology`] also keeps the rings that it replaced. While a range is handed over, the new
//! owner does not decide it yet and the old owner still does; a request finds the old owner there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tidegate_limiter::engine::ActorId;
use tidegate_limiter::policy::Scope;

use crate::cluster_map::{ClusterId, Collection};
use crate::homes::Homes;
use crate::identity::{Generation, NodeId, node_actor, region_actor};
use crate::membership::{MemberState, View};
use crate::ring::Ring;

/// A view and its rings. Immutable; each request uses one throughout.
#[derive(Clone, Debug)]
pub struct Topology {
    /// This node.
    pub me: NodeId,
    /// This node's region.
    pub region: String,
    pub view: View,
    rings: Arc<Rings>,
    /// The rings that were replaced, newest first; at most [`PREVIOUS_MAX`].
    previous: VecDeque<Arc<Rings>>,
    homes: Homes,
    /// The nodes of this region among which limits are divided while owners are unreachable,
    /// sorted.
    sharing: Vec<NodeId>,
    /// About how many edges the region has, which are no members.
    pub edges: u32,
    /// The actors of all members and regions.
    actors: BTreeSet<ActorId>,
    /// `None` while this node is no member.
    admission: Option<Admission>,
}

/// This node as a member, by the cluster map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    pub cluster: ClusterId,
    /// This node's generation when it was admitted. Counters of earlier ones have no writer any
    /// more.
    pub generation: Generation,
    pub collection: Collection,
}

/// The rings of one view.
#[derive(Debug)]
struct Rings {
    regions: BTreeMap<String, Ring>,
}

/// Replaced rings that a topology keeps. Two are needed when a node joins before the handoff to
/// the previous joiner is complete. Beyond it the oldest is dropped.
const PREVIOUS_MAX: usize = 2;
/// Successors of an owner that may still hold its keys: after two joins at once it is the second.
const SUCCESSORS: usize = 2;

impl Topology {
    /// The rings of `view` as seen by `me` in `region`.
    pub fn new(me: NodeId, region: String, view: View, vnodes: u32) -> Self {
        let mut by_region: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for member in view.owners() {
            by_region.entry(member.region.clone()).or_default().push(member);
        }
        // The map of the own region says who its members are. A region without any lease keeps all
        // of its nodes in its ring, because eventual counts need owners.
        for (_, members) in by_region.iter_mut().filter(|(other, _)| **other != region) {
            if members.iter().any(|member| member.has_lease) {
                members.retain(|member| member.has_lease);
            }
        }
        let regions = by_region
            .into_iter()
            .map(|(region, members)| (region, Ring::new(members, vnodes)))
            .collect();
        let rings = Arc::new(Rings { regions });
        let actors = view.members().iter().flat_map(|member| {
            [node_actor(&member.id, member.generation), region_actor(&member.region)]
        });
        let actors = actors.collect();
        let own = view.owners().filter(|member| member.region == region);
        let sharing = own.map(|member| member.id.clone()).collect();
        let homes = Homes::new(region.clone(), Vec::new());
        let (previous, edges, admission) = (VecDeque::new(), 0, None);
        Self { me, region, view, rings, previous, homes, sharing, edges, actors, admission }
    }

    /// This topology, keeping the rings of `replaced`.
    #[must_use]
    pub fn after(mut self, replaced: &Self) -> Self {
        self.previous.clone_from(&replaced.previous);
        if self.view.fingerprint() != replaced.view.fingerprint() {
            self.previous.push_front(replaced.rings.clone());
            self.previous.truncate(PREVIOUS_MAX);
        }
        self
    }

    /// This topology, with these homes of global keys.
    #[must_use]
    pub fn with_homes(mut self, homes: Homes) -> Self {
        self.homes = homes;
        self
    }

    /// This topology, with this node admitted, or not.
    #[must_use]
    pub fn admitted(mut self, admission: Option<Admission>) -> Self {
        self.admission = admission;
        self
    }

    /// This topology, with about so many edges in the region.
    #[must_use]
    pub fn with_edges(mut self, edges: u32) -> Self {
        self.edges = edges;
        self
    }

    /// This topology, dividing limits among these nodes of the region.
    #[must_use]
    pub fn sharing_among(mut self, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        let nodes: BTreeSet<NodeId> = nodes.into_iter().collect();
        self.sharing = nodes.into_iter().collect();
        self
    }

    /// The region in which the strict key at `token` is decided.
    pub fn deciding_region(&self, scope: Scope, token: u64) -> &str {
        match scope {
            Scope::Region => &self.region,
            Scope::Global => self.homes.home(token),
        }
    }

    /// The owner of the strict key at `token`; `None` when every node of its region drains, or no
    /// node of it is known.
    pub fn owner(&self, scope: Scope, token: u64) -> Option<&NodeId> {
        self.region_owner(self.deciding_region(scope, token), token)
    }

    /// Whether this node owns the strict key at `token`.
    pub fn owns(&self, scope: Scope, token: u64) -> bool {
        self.owner(scope, token) == Some(&self.me)
    }

    /// The owners of that key on the replaced rings, newest first.
    pub fn previous_owners(&self, scope: Scope, token: u64) -> impl Iterator<Item = &NodeId> {
        let region = self.deciding_region(scope, token);
        self.previous.iter().filter_map(move |rings| rings.regions.get(region)?.owner(token))
    }

    /// The nodes after the owner on the current ring. A node that has just joined holds nothing at
    /// first, and the first node after it holds the ranges that it owns now. A node that has just
    /// started itself has no replaced ring to look this up on.
    pub fn successors(&self, scope: Scope, token: u64) -> Vec<&NodeId> {
        let ring = self.region_ring(self.deciding_region(scope, token));
        ring.map(|ring| ring.successors(token, SUCCESSORS)).unwrap_or_default()
    }

    /// Whether this node drains. It owns nothing then, though peers may not have learned it yet.
    pub fn is_leaving(&self) -> bool {
        self.view.get(&self.me).is_some_and(|me| me.state == MemberState::Draining)
    }

    /// Whether this node would own the global key at `token` if its home were lost.
    pub fn is_second_owner(&self, token: u64) -> bool {
        self.homes.fail_over()
            && self.homes.second_home(token) == Some(self.region.as_str())
            && self.region_owner(&self.region, token) == Some(&self.me)
    }

    /// The owner in `region` of the key at `token`.
    pub fn region_owner(&self, region: &str, token: u64) -> Option<&NodeId> {
        self.region_ring(region)?.owner(token)
    }

    /// The number of nodes in `region` that own keys.
    pub fn owners_in(&self, region: &str) -> u32 {
        let owners = self.view.owners().filter(|member| member.region == region);
        u32::try_from(owners.count()).unwrap_or(u32::MAX)
    }

    /// Whether `actor` is a present member or region, which is authoritative for its own counters.
    pub fn has_actor(&self, actor: ActorId) -> bool {
        self.actors.contains(&actor)
    }

    /// The actor of the present member, or region, that is the writer of `actor`.
    pub fn present_actor(&self, actor: ActorId) -> Option<ActorId> {
        let first = ActorId::of_start(actor.writer(), 0);
        let next = self.actors.range(first..).next().copied();
        next.filter(|next| next.writer() == actor.writer())
    }

    /// This node as a member; `None` while it is not.
    pub fn admission(&self) -> Option<Admission> {
        self.admission
    }

    /// The ring of this node's region; `None` while all of its members drain.
    pub fn ring(&self) -> Option<&Ring> {
        self.region_ring(&self.region)
    }

    pub fn region_ring(&self, region: &str) -> Option<&Ring> {
        self.rings.regions.get(region)
    }

    pub fn homes(&self) -> &Homes {
        &self.homes
    }

    /// The regions whose nodes own keys, sorted.
    pub fn regions(&self) -> impl Iterator<Item = &str> {
        self.rings.regions.keys().map(String::as_str)
    }

    /// This node's integer share of `limit`. The shares of all members of a region sum to `limit`
    /// exactly; the lowest ids get the remainder. A limit of `scope: global` is divided among the
    /// regions first, those that are no homes at the moment included. A node that is no member
    /// takes the part that it would have if it and the edges of the region were members; those of
    /// members are not smaller for it.
    ///
    /// Example: 10 over nodes a, b, c is 4, 3, 3. Cut off from a, the others grant 6 together. Each
    /// of two edges has 2, so all together grant at most 14.
    pub fn share_of(&self, scope: Scope, limit: u32) -> u32 {
        let limit = match scope {
            Scope::Region => limit,
            Scope::Global => {
                let (regions, rank) = self.homes.rank();
                part(limit, regions, rank, 1)
            }
        };
        let rank = self.sharing.binary_search(&self.me).ok();
        part(limit, self.sharing.len(), rank, self.edges.max(1))
    }
}

/// Part `rank` of `limit`, divided into `count` integer parts. One of the `others`, which are not
/// among them, takes a part beyond these, so that its last clients are not denied.
fn part(limit: u32, count: usize, rank: Option<usize>, others: u32) -> u32 {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let Some(rank) = rank else { return limit / count.saturating_add(others) };
    let has_remainder = u32::try_from(rank).is_ok_and(|rank| rank < limit % count.max(1));
    limit / count.max(1) + u32::from(has_remainder)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::identity::Generation;
    use crate::membership::Member;

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
            has_lease: true,
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
        for token in (0..1_000u64).map(|n| n << 54) {
            let owners: Vec<_> = all.iter().map(|t| t.region_owner("eu", token)).collect();
            assert!(owners.iter().all(|owner| *owner == owners[0]));
            let local = all.iter().filter(|t| t.owns(Scope::Region, token));
            assert_eq!(local.count(), 1);
        }
    }

    #[test]
    fn a_region_keeps_its_own_keys_and_global_keys_go_to_their_home() {
        let members = vec![member("a", "eu", MemberState::Up), member("b", "us", MemberState::Up)];
        let homes = Homes::new("eu".into(), vec!["eu".into(), "us".into()]);
        let a = topology("a", "eu", members).with_homes(homes.clone());
        let tokens: Vec<u64> = (0..64u64).map(|n| n << 58).collect();
        assert!(tokens.iter().all(|&token| a.owns(Scope::Region, token)));
        assert!(tokens.iter().all(|&token| a.owns(Scope::Global, token) == homes.is_here(token)));
        assert!(tokens.iter().any(|&token| !homes.is_here(token)));
        let alone = topology("a", "eu", vec![member("a", "eu", MemberState::Up)]).with_homes(homes);
        let away = tokens.iter().filter(|token| !alone.homes().is_here(**token));
        assert!(away.copied().all(|token| alone.owner(Scope::Global, token).is_none()));
    }

    #[test]
    fn a_draining_node_owns_nothing() {
        let members =
            vec![member("a", "eu", MemberState::Draining), member("b", "eu", MemberState::Up)];
        let a = topology("a", "eu", members);
        let b = NodeId::new("b").expect("id");
        assert_eq!(a.owner(Scope::Region, 7), Some(&b));
        let alone = topology("a", "eu", vec![member("a", "eu", MemberState::Draining)]);
        assert_eq!(alone.owner(Scope::Region, 7), None);
    }

    /// Its region has evicted it, and cannot tell it so.
    #[test]
    fn a_node_elsewhere_that_has_lost_its_lease_owns_nothing_while_another_has_one() {
        let with_leases = |b: bool, c: bool| {
            let elsewhere = [("b", b), ("c", c)]
                .map(|(id, has_lease)| Member { has_lease, ..member(id, "us", MemberState::Up) });
            let own = Member { has_lease: false, ..member("a", "eu", MemberState::Up) };
            topology("a", "eu", elsewhere.into_iter().chain([own]).collect())
        };
        let owners = |topology: &Topology, region: &str| -> BTreeSet<NodeId> {
            let tokens = (0..1_000_u64).map(|n| n << 54);
            tokens.filter_map(|token| topology.region_owner(region, token).cloned()).collect()
        };
        let ids = |ids: &[&str]| ids.iter().map(|id| NodeId::new(id).expect("an id")).collect();
        assert_eq!(owners(&with_leases(true, true), "us"), ids(&["b", "c"]));
        assert_eq!(owners(&with_leases(false, true), "us"), ids(&["c"]));
        assert_eq!(owners(&with_leases(false, false), "us"), ids(&["b", "c"]), "eventual counts");
        assert_eq!(owners(&with_leases(true, true), "eu"), ids(&["a"]), "the map says who owns");
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

    #[test]
    fn all_edges_together_have_less_than_one_limit() {
        let members: Vec<_> =
            ["a", "b"].iter().map(|id| member(id, "eu", MemberState::Up)).collect();
        for (edges, limit) in [(1_u32, 10_u32), (3, 10), (1_000, 10_000), (1_000, 10)] {
            let edge = topology("edge", "eu", members.clone()).with_edges(edges);
            let share = edge.share_of(Scope::Region, limit);
            assert!(share * edges < limit, "{edges} edges have {share} of {limit} each");
            let core = topology("a", "eu", members.clone()).with_edges(edges);
            assert_eq!(core.share_of(Scope::Region, limit), limit / 2, "as without edges");
        }
        let edge = topology("edge", "eu", members).with_edges(8);
        assert_eq!(edge.share_of(Scope::Region, 1_000), 100);
    }

    #[test]
    fn a_topology_keeps_the_owners_on_replaced_rings() {
        let members = |ids: &[&str]| -> Vec<_> {
            ids.iter().map(|id| member(id, "eu", MemberState::Up)).collect()
        };
        let alone = topology("a", "eu", members(&["a"]));
        let two = topology("a", "eu", members(&["a", "b"])).after(&alone);
        let same = topology("a", "eu", members(&["a", "b"])).after(&two);
        let three = topology("a", "eu", members(&["a", "b", "c"])).after(&same);
        let four = topology("a", "eu", members(&["a", "b", "c", "d"])).after(&three);
        for token in (0..64u64).map(|n| n << 58) {
            let owner = |topology: &Topology| topology.owner(Scope::Region, token).cloned();
            let before: Vec<_> = three.previous_owners(Scope::Region, token).cloned().collect();
            assert_eq!(before, [owner(&two), owner(&alone)].map(|id| id.expect("an owner")));
            let before: Vec<_> = four.previous_owners(Scope::Region, token).cloned().collect();
            assert_eq!(before, [owner(&three), owner(&two)].map(|id| id.expect("an owner")));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        /// However the members of two regions are split, and though each node sees only its own
        /// side, their shares sum to no more than one limit, and to all of it when no node is dead.
        #[test]
        fn the_shares_of_all_sides_sum_to_one_limit(
            sides in proptest::collection::vec(0_u8..4, 2..12), limit: u32,
        ) {
            // Side 0 is dead: a member, and grants nothing.
            let region = |n: usize| if n.is_multiple_of(2) { "eu" } else { "us" };
            let id = |n: usize| NodeId::new(&format!("n{n}")).expect("id");
            let (mut regional, mut global) = (0, 0);
            for (me, mine) in sides.iter().enumerate().filter(|(_, side)| **side != 0) {
                let seen = (0..sides.len()).filter(|n| sides[*n] == *mine);
                let seen = seen.map(|n| member(id(n).as_str(), region(n), MemberState::Up));
                let regions = vec!["eu".to_owned(), "us".to_owned()];
                let topology = topology(id(me).as_str(), region(me), seen.collect())
                    .with_homes(Homes::new(region(me).to_owned(), regions))
                    .sharing_among((0..sides.len()).filter(|n| region(*n) == region(me)).map(id));
                regional += u64::from(topology.share_of(Scope::Region, limit));
                global += u64::from(topology.share_of(Scope::Global, limit));
            }
            prop_assert!(regional <= 2 * u64::from(limit) && global <= u64::from(limit));
            if sides.iter().all(|side| *side != 0) {
                prop_assert_eq!((regional, global), (2 * u64::from(limit), u64::from(limit)));
            }
        }
    }
}

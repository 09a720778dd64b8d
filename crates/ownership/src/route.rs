//! Where a strict key is decided, as a value that the caller matches once.
//!
//! A topology remembers the rings that it took the place of. While a range changes hands, its new
//! owner does not decide yet and its old one still does; whoever asks finds the old one there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tidegate_limiter::engine::ActorId;
use tidegate_limiter::policy::Scope;

use super::identity::{NodeId, node_actor, region_actor};
use super::membership::{KnownMembers, MemberState, View};
use super::ring::Ring;

/// Everything that follows from a view: the rings. Immutable; a request holds one.
#[derive(Clone, Debug)]
pub struct Topology {
    /// This node.
    pub me: NodeId,
    /// The region it is in.
    pub region: String,
    /// The members it follows from.
    pub view: View,
    rings: Arc<Rings>,
    /// The rings that were in force before, the latest first; at most [`BEFORE_MAX`].
    before: VecDeque<Arc<Rings>>,
    /// Whom limits are shared among while owners are out of reach.
    known: KnownMembers,
    /// The columns of all members and regions.
    spoken_for: BTreeSet<ActorId>,
}

/// The rings of one view.
#[derive(Debug)]
struct Rings {
    /// One ring a region.
    regions: BTreeMap<String, Ring>,
    /// One ring over all regions.
    global: Ring,
}

/// Replaced rings that a topology remembers. A join that follows a join before the first handover
/// is over needs two; the oldest goes.
const BEFORE_MAX: usize = 2;
/// Nodes behind an owner that may hold its keys still: after two joins at once it is the second.
const SUCCESSORS: usize = 2;

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
        let rings = Arc::new(Rings { regions, global });
        let known = KnownMembers::of(&view);
        Self { me, region, view, rings, before: VecDeque::new(), known, spoken_for }
    }

    /// This topology, as the one that takes the place of `replaced`: it remembers its rings.
    #[must_use]
    pub fn after(mut self, replaced: &Self) -> Self {
        self.before.clone_from(&replaced.before);
        if self.view.epoch() != replaced.view.epoch() {
            self.before.push_front(replaced.rings.clone());
            self.before.truncate(BEFORE_MAX);
        }
        self
    }

    /// This topology with shares set aside for `known` nodes too, besides those that own keys.
    #[must_use]
    pub fn with_known(mut self, known: KnownMembers) -> Self {
        self.known = KnownMembers::of(&self.view).with(known);
        self
    }

    /// Where the key at `token` of a strict rule is decided.
    pub fn route(&self, scope: Scope, token: u64) -> Route<'_> {
        match self.owner(scope, token) {
            Some(owner) if *owner == self.me => Route::Local,
            Some(owner) => Route::Forward(owner),
            None => Route::Nobody,
        }
    }

    /// The owner of the key at `token` of a strict rule.
    pub fn owner(&self, scope: Scope, token: u64) -> Option<&NodeId> {
        self.rings.owner(scope, &self.region, token)
    }

    /// Who owned that key by the rings that were in force before, the latest first.
    pub fn owners_before(&self, scope: Scope, token: u64) -> impl Iterator<Item = &NodeId> {
        self.before.iter().filter_map(move |rings| rings.owner(scope, &self.region, token))
    }

    /// The next nodes behind the owner on the ring in force. One that came holds nothing at first,
    /// and the first node behind it holds what becomes its own; a node that just came itself knows
    /// no ring before.
    pub fn successors(&self, scope: Scope, token: u64) -> Vec<&NodeId> {
        let ring = match scope {
            Scope::Region => self.region_ring(&self.region),
            Scope::Global => Some(self.global_ring()),
        };
        ring.map(|ring| ring.successors(token, SUCCESSORS)).unwrap_or_default()
    }

    /// Whether this node drains: it owns nothing any more, though peers may not have heard yet.
    pub fn is_leaving(&self) -> bool {
        self.view.get(&self.me).is_some_and(|me| me.state == MemberState::Draining)
    }

    /// The owner of the key at `token` in one region.
    pub fn region_owner(&self, region: &str, token: u64) -> Option<&NodeId> {
        self.rings.regions.get(region).and_then(|ring| ring.owner(token))
    }

    /// Whether a member or a region that is there tells of this column itself.
    pub fn is_spoken_for(&self, actor: ActorId) -> bool {
        self.spoken_for.contains(&actor)
    }

    /// The ring of one region, if it has one.
    pub fn region_ring(&self, region: &str) -> Option<&Ring> {
        self.rings.regions.get(region)
    }

    /// The ring over all regions.
    pub fn global_ring(&self) -> &Ring {
        &self.rings.global
    }

    /// Names of all regions that own keys, sorted.
    pub fn regions(&self) -> impl Iterator<Item = &str> {
        self.rings.regions.keys().map(String::as_str)
    }

    /// This node's whole-number share of `limit` among the known nodes that share it, the dead ones
    /// included: the shares of all sum to `limit` exactly, the lowest ids get what does not divide.
    ///
    /// Example: 10 over nodes a, b, c is 4, 3, 3. Cut off from a, the others hand out 6 together.
    pub fn share_of(&self, scope: Scope, limit: u32) -> u32 {
        let sharing = self.known.nodes().iter().filter(|(_, region)| match scope {
            Scope::Region => *region == self.region,
            Scope::Global => true,
        });
        let (mut count, mut rank) = (0_u32, None);
        for (id, _) in sharing {
            if *id == self.me {
                rank = Some(count);
            }
            count = count.saturating_add(1);
        }
        // A node that has left the ring is one more than the shares were made for: it takes what it
        // would have had, so that its last clients are not turned away.
        let Some(rank) = rank else { return limit / count.saturating_add(1) };
        limit / count + u32::from(rank < limit % count)
    }
}

impl Rings {
    fn owner(&self, scope: Scope, region: &str, token: u64) -> Option<&NodeId> {
        match scope {
            Scope::Region => self.regions.get(region)?.owner(token),
            Scope::Global => self.global.owner(token),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::VoterSet;
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
            voter_set: VoterSet::default(),
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
            let local = all.iter().filter(|t| t.route(Scope::Region, token) == Route::Local);
            assert_eq!(local.count(), 1);
        }
    }

    #[test]
    fn a_region_keeps_its_own_keys_and_the_global_ring_does_not() {
        let members = vec![member("a", "eu", MemberState::Up), member("b", "us", MemberState::Up)];
        let a = topology("a", "eu", members);
        let tokens: Vec<u64> = (0..64u64).map(|n| n << 58).collect();
        assert!(tokens.iter().all(|&token| a.route(Scope::Region, token) == Route::Local));
        assert!(tokens.iter().any(|&token| a.route(Scope::Global, token) != Route::Local));
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

    #[test]
    fn a_topology_remembers_the_owners_of_the_rings_before_it() {
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
            let before: Vec<_> = three.owners_before(Scope::Region, token).cloned().collect();
            assert_eq!(before, [owner(&two), owner(&alone)].map(|id| id.expect("an owner")));
            let before: Vec<_> = four.owners_before(Scope::Region, token).cloned().collect();
            assert_eq!(before, [owner(&three), owner(&two)].map(|id| id.expect("an owner")));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        /// However the known members are split: each node sees its side only, and all of them
        /// together hand out no more than one limit; all of it when nobody is dead.
        #[test]
        fn the_shares_of_all_sides_sum_to_one_limit(
            sides in proptest::collection::vec(0_u8..4, 1..12), limit: u32,
        ) {
            // Side 0 is dead: known, and nobody asks there.
            let nodes: Vec<_> =
                sides.iter().enumerate().map(|(n, side)| (format!("n{n}"), *side)).collect();
            let known = |id: &String| (NodeId::new(id).expect("id"), "eu".to_owned());
            let known = KnownMembers::new(nodes.iter().map(|(id, _)| known(id)));
            let mut sum = 0;
            for (me, mine) in nodes.iter().filter(|(_, side)| *side != 0) {
                let seen = nodes.iter().filter(|(_, side)| side == mine);
                let seen = seen.map(|(id, _)| member(id, "eu", MemberState::Up)).collect();
                let topology = topology(me, "eu", seen).with_known(known.clone());
                for scope in [Scope::Region, Scope::Global] {
                    sum += u64::from(topology.share_of(scope, limit));
                }
            }
            prop_assert!(sum <= 2 * u64::from(limit));
            if sides.iter().all(|side| *side != 0) {
                prop_assert_eq!(sum, 2 * u64::from(limit));
            }
        }
    }
}

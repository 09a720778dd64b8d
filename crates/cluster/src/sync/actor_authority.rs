//! The actors for which a peer is authoritative.
//!
//! | sender | counters accepted from it |
//! |---|---|
//! | a node of this region | its own, and those of nodes and regions that are gone |
//! | an edge of this region | its own |
//! | the key's owner in this region | all but this node's, which has no other writer; its rest |
//! | the key's owner in another region | the counter of its region |
//!
//! The views of two nodes differ for a moment whenever a member joins or leaves. Counters for which
//! the peer may be authoritative in its view but is not in this node's are *disputed*: they are not
//! merged, and the peer sends them again.

use tidegate_limiter::engine::delta::{ACTORS_MAX, Bounds};
use tidegate_limiter::engine::{ActorId, Delta};
use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::{Span, Timestamp};
use tidegate_ownership::identity::{NodeId, region_actor};
use tidegate_ownership::route::Topology;

use crate::mesh::wire::SyncRole;
use crate::pki::Role;

/// The peer that sent some counters, and this node's actor.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActorAuthority<'a> {
    pub(super) own_actor: ActorId,
    pub(super) peer: &'a NodeId,
    pub(super) peer_actor: ActorId,
    pub(super) peer_region: &'a str,
    pub(super) peer_role: Role,
    /// How far ahead of this node's clock the peer's may be.
    pub(super) ahead_max: Span,
}

/// Which of the counters that a peer sent may be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// All of them.
    Whole,
    /// Those that are left; the others are disputed.
    Part,
    /// There are none; the message may only request a reply.
    Nothing,
    /// None: the peer is not authoritative in this node's view, which may be the older one.
    Disputed,
    /// None: the peer is not authoritative in any view, or the counters are implausible.
    Refused,
}

impl ActorAuthority<'_> {
    /// Removes from `actor_counters` those for which the peer is not authoritative.
    pub(super) fn accept(
        &self,
        actor_counters: &mut Delta,
        role: SyncRole,
        key: KeyHash,
        topology: &Topology,
        now: Timestamp,
    ) -> Accepted {
        let bounds = Bounds { now, ahead_max: self.ahead_max, actors_max: ACTORS_MAX };
        let is_same_region = self.peer_region == topology.region;
        let is_wrong_role = is_same_region == (role == SyncRole::Region);
        let is_edge_as_owner = self.peer_role == Role::Edge && role != SyncRole::Node;
        if is_wrong_role || is_edge_as_owner || actor_counters.validate(&bounds).is_err() {
            return Accepted::Refused;
        }
        let owner = topology.region_owner(self.peer_region, key.token);
        if role != SyncRole::Node && owner != Some(self.peer) {
            return Accepted::Disputed;
        }
        let mut is_cut = false;
        let peer_region = region_actor(self.peer_region);
        actor_counters.retain_actors(|actor| match role {
            SyncRole::Region => actor == peer_region,
            // The peer's copy of this node's counter may be older than the counter.
            SyncRole::Owner | SyncRole::Node if actor == self.own_actor => false,
            // A rest is of the owner's making, for one node.
            SyncRole::Owner => !actor.is_rest() || actor == self.own_actor.rest(),
            SyncRole::Node if actor.is_rest() => false,
            SyncRole::Node if self.peer_role == Role::Edge => actor == self.peer_actor,
            SyncRole::Node => {
                let present = topology.present_actor(actor);
                let is_kept = actor == self.peer_actor
                    || if actor.is_total() {
                        // A total of starts that are over; any other would contain the present one.
                        present.is_none_or(|present| actor < present)
                    } else {
                        present != Some(actor)
                    };
                is_cut |= !is_kept;
                is_kept
            }
        });
        match (is_cut, actor_counters.is_empty()) {
            (true, true) => Accepted::Disputed,
            (true, false) => Accepted::Part,
            (false, true) => Accepted::Nothing,
            (false, false) => Accepted::Whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use crdts::VClock;
    use tidegate_limiter::engine::AHEAD_MAX;
    use tidegate_limiter::engine::delta::DeltaSlice;
    use tidegate_ownership::identity::{Generation, node_actor};
    use tidegate_ownership::membership::{Member, MemberState, View};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(600);
    const KEY: KeyHash = KeyHash { token: 7, tag: 7 };

    fn id(id: &str) -> NodeId {
        NodeId::new(id).expect("valid id")
    }

    fn actor(node: &str, generation: u64) -> ActorId {
        node_actor(&id(node), Generation(generation))
    }

    /// `a`, `b` and `c` in eu, `x` in us, as `a` sees them.
    fn topology() -> Topology {
        let member = |node: &str, region: &str| Member {
            id: id(node),
            generation: Generation(2),
            addr: ([127, 0, 0, 1], 7000).into(),
            region: region.into(),
            zone: String::new(),
            state: MemberState::Up,
            rule_book: 0,
            http: None,
            has_lease: true,
        };
        let members = [member("a", "eu"), member("b", "eu"), member("c", "eu"), member("x", "us")];
        Topology::new(id("a"), "eu".into(), View::new(members), 64)
    }

    fn delta(index: u64, actors: &[ActorId]) -> Delta {
        let used = VClock { dots: actors.iter().map(|actor| (*actor, 5)).collect() };
        let bucket = DeltaSlice { index, used, refunded: VClock::new() };
        Delta { slice_ns: 60_000_000_000, slices_kept: 2, slices: vec![bucket] }
    }

    fn accept(peer: &str, region: &str, role: SyncRole, delta: Delta) -> (Accepted, Vec<ActorId>) {
        accept_of(Role::Core, peer, region, role, delta)
    }

    fn accept_of(
        peer_role: Role,
        peer: &str,
        region: &str,
        role: SyncRole,
        mut delta: Delta,
    ) -> (Accepted, Vec<ActorId>) {
        let peer_id = id(peer);
        let actor_authority = ActorAuthority {
            own_actor: actor("a", 2),
            peer: &peer_id,
            peer_actor: actor(peer, 2),
            peer_region: region,
            peer_role,
            ahead_max: AHEAD_MAX,
        };
        let accepted = actor_authority.accept(&mut delta, role, KEY, &topology(), NOW);
        let left = delta.slices.iter().flat_map(|slice| slice.used.dots.keys().copied());
        (accepted, left.collect())
    }

    #[test]
    fn a_node_is_authoritative_for_itself_and_for_actors_that_are_gone() {
        let (own, gone, living) = (actor("b", 2), actor("c", 1), actor("c", 2));
        let region_gone = region_actor("ap");
        for (actors, outcome, left) in [
            (vec![own], Accepted::Whole, vec![own]),
            (vec![own, gone], Accepted::Whole, vec![own, gone]),
            (vec![own, region_gone], Accepted::Whole, vec![own, region_gone]),
            (vec![own, living], Accepted::Part, vec![own]),
            (vec![own, region_actor("us")], Accepted::Part, vec![own]),
            (vec![living], Accepted::Disputed, vec![]),
            (vec![own, actor("a", 2)], Accepted::Whole, vec![own]),
            (vec![actor("a", 2)], Accepted::Nothing, vec![]),
        ] {
            let (accepted, mut accepted_actors) =
                accept("b", "eu", SyncRole::Node, delta(10, &actors));
            accepted_actors.sort_by_key(|actor| left.iter().position(|it| it == actor));
            assert_eq!((accepted, accepted_actors), (outcome, left), "{actors:?}");
        }
    }

    #[test]
    fn totals_are_accepted_of_starts_that_are_over() {
        let own = actor("b", 2);
        for (total, outcome) in [
            (actor("b", 1).total(), Accepted::Whole),
            (actor("c", 1).total(), Accepted::Whole),
            (actor("gone", 9).total(), Accepted::Whole),
            (actor("c", 2).total(), Accepted::Part),
            (actor("c", 3).total(), Accepted::Part),
        ] {
            let (accepted, left) = accept("b", "eu", SyncRole::Node, delta(10, &[own, total]));
            assert_eq!(accepted, outcome, "{total}");
            assert_eq!(left.contains(&total), outcome == Accepted::Whole);
        }
    }

    #[test]
    fn an_edge_is_authoritative_for_itself_alone() {
        let accept = |peer: &str, role, delta| accept_of(Role::Edge, peer, "eu", role, delta);
        let (own, gone) = (actor("edge", 2), actor("c", 1));
        let counters = delta(10, &[own, gone, actor("edge", 1), actor("b", 2)]);
        assert_eq!(accept("edge", SyncRole::Node, counters), (Accepted::Whole, vec![own]));
        let topology = topology();
        let owner = topology.region_owner("eu", KEY.token).expect("an owner").to_string();
        // It is called as the owner is.
        let counters = delta(10, &[actor("c", 2)]);
        assert_eq!(accept(&owner, SyncRole::Owner, counters).0, Accepted::Refused);
    }

    #[test]
    fn an_owner_is_authoritative_for_all_other_actors_of_its_keys_alone() {
        let topology = topology();
        let owner = topology.region_owner("eu", KEY.token).expect("an owner").to_string();
        let others = ["a", "b", "c"].into_iter().find(|node| *node != owner).expect("another");
        let counters = delta(10, &[actor("a", 2), actor("b", 2), actor("c", 1)]);
        let (accepted, left) = accept(&owner, "eu", SyncRole::Owner, counters.clone());
        assert_eq!((accepted, left.len()), (Accepted::Whole, 2));
        assert!(!left.contains(&actor("a", 2)));
        assert_eq!(accept(others, "eu", SyncRole::Owner, counters).0, Accepted::Disputed);
    }

    #[test]
    fn another_regions_owner_is_authoritative_for_its_region_alone() {
        let us = region_actor("us");
        let counters = delta(10, &[us, region_actor("ap"), actor("x", 2)]);
        assert_eq!(accept("x", "us", SyncRole::Region, counters), (Accepted::Whole, vec![us]));
        let nothing = delta(10, &[actor("x", 2)]);
        assert_eq!(accept("x", "us", SyncRole::Region, nothing).0, Accepted::Nothing);
    }

    #[test]
    fn wrong_roles_and_implausible_counters_are_refused() {
        let own = [actor("b", 2)];
        assert_eq!(accept("b", "eu", SyncRole::Region, delta(10, &own)).0, Accepted::Refused);
        assert_eq!(accept("x", "us", SyncRole::Node, delta(10, &own)).0, Accepted::Refused);
        assert_eq!(accept("x", "us", SyncRole::Owner, delta(10, &own)).0, Accepted::Refused);
        assert_eq!(accept("b", "eu", SyncRole::Node, delta(11, &own)).0, Accepted::Refused);
    }
}

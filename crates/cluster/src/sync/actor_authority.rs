//! What a peer may speak for.
//!
//! | says | is taken from it |
//! |---|---|
//! | a node of this region | its own column, and those of nodes and regions that are gone |
//! | the key's owner in this region | all columns but ours, which is ours alone to write |
//! | the key's owner in another region | the column of its region |
//!
//! Two nodes hold different views for a moment whenever somebody comes or goes. What a peer may not
//! say in our view but may in its own is *disputed*: it is not taken, and the peer says it again.

use tidegate_limiter::engine::delta::ACTORS_MAX;
use tidegate_limiter::engine::delta::Bounds;
use tidegate_limiter::engine::{ActorId, Delta};
use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::{Span, Timestamp};
use tidegate_ownership::identity::{NodeId, region_actor};
use tidegate_ownership::route::Topology;

use crate::mesh::wire::SyncRole;

/// The peer that sent some columns, and who we are.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActorAuthority<'a> {
    pub(super) own_actor: ActorId,
    pub(super) peer: &'a NodeId,
    pub(super) peer_actor: ActorId,
    pub(super) peer_region: &'a str,
}

/// What may be taken of what a peer said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// All of it.
    Whole,
    /// What is left of it; the rest is not its to say in our view.
    Part,
    /// There is nothing in it; it may be a question.
    Nothing,
    /// Not its to say in our view, which may be the older one.
    Disputed,
    /// Not its to say in any view, or implausible.
    Refused,
}

/// How far ahead of ours a peer's window may be: clocks differ, and a message takes time.
const AHEAD_MAX: Span = Span::from_secs(5);

impl ActorAuthority<'_> {
    /// Cuts `actor_counters` down to those that the peer may speak for.
    pub(super) fn accept(
        &self,
        actor_counters: &mut Delta,
        role: SyncRole,
        key: KeyHash,
        topology: &Topology,
        now: Timestamp,
    ) -> Accepted {
        let bounds = Bounds { now, ahead_max: AHEAD_MAX, actors_max: ACTORS_MAX };
        let is_neighbour = self.peer_region == topology.region;
        let is_out_of_place = is_neighbour == (role == SyncRole::Region);
        if is_out_of_place || actor_counters.validate(&bounds).is_err() {
            return Accepted::Refused;
        }
        let owner = topology.region_owner(self.peer_region, key.token);
        if role != SyncRole::Node && owner != Some(self.peer) {
            return Accepted::Disputed;
        }
        let mut is_cut = false;
        let theirs = region_actor(self.peer_region);
        actor_counters.retain_actors(|actor| match role {
            SyncRole::Region => actor == theirs,
            // An echo of our own column may be older than it is.
            SyncRole::Owner | SyncRole::Node if actor == self.own_actor => false,
            SyncRole::Owner => true,
            SyncRole::Node => {
                let is_kept = actor == self.peer_actor || !topology.is_spoken_for(actor);
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
    use tidegate_limiter::engine::delta::DeltaSlice;
    use tidegate_ownership::VoterSet;
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
            voter_set: VoterSet::default(),
        };
        let members = [member("a", "eu"), member("b", "eu"), member("c", "eu"), member("x", "us")];
        Topology::new(id("a"), "eu".into(), View::new(members), 64)
    }

    fn said(index: u64, actors: &[ActorId]) -> Delta {
        let used = VClock { dots: actors.iter().map(|actor| (*actor, 5)).collect() };
        let bucket = DeltaSlice { index, used, refunded: VClock::new() };
        Delta { slice_ns: 60_000_000_000, slices_kept: 2, slices: vec![bucket] }
    }

    fn accept(
        peer: &str,
        region: &str,
        role: SyncRole,
        mut said: Delta,
    ) -> (Accepted, Vec<ActorId>) {
        let peer_id = id(peer);
        let actor_authority = ActorAuthority {
            own_actor: actor("a", 2),
            peer: &peer_id,
            peer_actor: actor(peer, 2),
            peer_region: region,
        };
        let accepted = actor_authority.accept(&mut said, role, KEY, &topology(), NOW);
        let left = said.slices.iter().flat_map(|bucket| bucket.used.dots.keys().copied());
        (accepted, left.collect())
    }

    #[test]
    fn a_node_speaks_for_itself_and_for_those_that_are_gone() {
        let (own, gone, living) = (actor("b", 2), actor("c", 1), actor("c", 2));
        let region_gone = region_actor("ap");
        for (said_of, outcome, left) in [
            (vec![own], Accepted::Whole, vec![own]),
            (vec![own, gone], Accepted::Whole, vec![own, gone]),
            (vec![own, region_gone], Accepted::Whole, vec![own, region_gone]),
            (vec![own, living], Accepted::Part, vec![own]),
            (vec![own, region_actor("us")], Accepted::Part, vec![own]),
            (vec![living], Accepted::Disputed, vec![]),
            (vec![own, actor("a", 2)], Accepted::Whole, vec![own]),
            (vec![actor("a", 2)], Accepted::Nothing, vec![]),
        ] {
            let (accepted, mut is_left) = accept("b", "eu", SyncRole::Node, said(10, &said_of));
            is_left.sort_by_key(|actor| left.iter().position(|wanted| wanted == actor));
            assert_eq!((accepted, is_left), (outcome, left), "{said_of:?}");
        }
    }

    #[test]
    fn an_owner_speaks_for_all_but_us_and_only_of_its_keys() {
        let topology = topology();
        let owner = topology.region_owner("eu", KEY.token).expect("an owner").to_string();
        let others = ["a", "b", "c"].into_iter().find(|node| *node != owner).expect("another");
        let words = said(10, &[actor("a", 2), actor("b", 2), actor("c", 1)]);
        let (accepted, left) = accept(&owner, "eu", SyncRole::Owner, words.clone());
        assert_eq!((accepted, left.len()), (Accepted::Whole, 2));
        assert!(!left.contains(&actor("a", 2)));
        assert_eq!(accept(others, "eu", SyncRole::Owner, words).0, Accepted::Disputed);
    }

    #[test]
    fn a_region_speaks_with_its_one_column() {
        let us = region_actor("us");
        let words = said(10, &[us, region_actor("ap"), actor("x", 2)]);
        assert_eq!(accept("x", "us", SyncRole::Region, words), (Accepted::Whole, vec![us]));
        let nothing = said(10, &[actor("x", 2)]);
        assert_eq!(accept("x", "us", SyncRole::Region, nothing).0, Accepted::Nothing);
    }

    #[test]
    fn what_is_out_of_place_or_implausible_is_refused() {
        let own = [actor("b", 2)];
        assert_eq!(accept("b", "eu", SyncRole::Region, said(10, &own)).0, Accepted::Refused);
        assert_eq!(accept("x", "us", SyncRole::Node, said(10, &own)).0, Accepted::Refused);
        assert_eq!(accept("x", "us", SyncRole::Owner, said(10, &own)).0, Accepted::Refused);
        assert_eq!(accept("b", "eu", SyncRole::Node, said(11, &own)).0, Accepted::Refused);
    }
}

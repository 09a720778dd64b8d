//! Which nodes count for a quorum.
//!
//! The *voters* of a region are its members, and nodes that were lost without leaving, the latter
//! for `cluster.forget_after`. A draining member is no voter: it has announced that it leaves.
//!
//! A node becomes a voter only by a decision of the voters. A newcomer counts once a quorum without
//! it has reached an epoch that includes it; from then on every node publishes it as a voter in
//! gossip. So the minority side of a split may admit any number of newcomers and remains a
//! minority. Only at the first boot of a cluster, when no reachable node has a voter set, a node
//! bootstraps one from all members it sees.
//!
//! Example: `a b c | d e`, and `f` and `g` join on the right side. They are recognised there but do
//! not vote: `d e` are two of five.

use std::collections::BTreeMap;

use tidegate_limiter::units::{Span, Timestamp};

use crate::identity::NodeId;
use crate::membership::{KnownMembers, MEMBERS_MAX, View, Voter, VoterSet};
use crate::membership_table::MembershipTable;

/// The voters, and the newcomers that are not yet voters.
#[derive(Debug, Default)]
pub struct Voters {
    nodes: BTreeMap<NodeId, Node>,
}

#[derive(Debug)]
struct Node {
    region: String,
    is_voter: bool,
    is_leaving: bool,
    lost_at: Option<Timestamp>,
}

impl Voters {
    /// Takes in the membership table and the voter sets that the members of `view` publish. Nodes
    /// lost longer ago than `forget_after` are dropped.
    pub fn update(
        &mut self,
        table: &MembershipTable,
        view: &View,
        now: Timestamp,
        forget_after: Span,
    ) {
        for (id, entry) in table.entries() {
            let Some(member) = view.get(id) else { continue };
            let (region, is_leaving) = (member.region.clone(), !entry.is_up);
            // A node that leaves and returns is a newcomer.
            let is_voter = !is_leaving && self.nodes.get(id).is_some_and(|node| node.is_voter);
            self.nodes.insert(id.clone(), Node { region, is_voter, is_leaving, lost_at: None });
        }
        for voter in view.members().iter().flat_map(|member| &member.voter_set.voters) {
            let has_room = self.nodes.len() < MEMBERS_MAX;
            match self.nodes.get_mut(&voter.id) {
                Some(node) => node.is_voter |= !node.is_leaving,
                // A voter that was lost before this node started. A peer that still lists an
                // unknown node as a live member is no reason to add it: the node may just have
                // left.
                None if voter.lost_at.is_some() && has_room => {
                    let (region, lost_at) = (voter.region.clone(), voter.lost_at);
                    let node = Node { region, is_voter: true, is_leaving: false, lost_at };
                    self.nodes.insert(voter.id.clone(), node);
                }
                None => {}
            }
        }
        for (id, node) in &mut self.nodes {
            if !table.entries().contains_key(id) {
                node.lost_at.get_or_insert(now);
            }
        }
        self.nodes.retain(|_, node| match node.lost_at {
            Some(at) => node.is_voter && !node.is_leaving && now < at.plus(forget_after),
            None => true,
        });
    }

    /// Makes all members of `region` voters, unless it has voters already. For the first boot of a
    /// cluster.
    pub fn bootstrap(&mut self, region: &str) {
        if !self.nodes.values().any(|node| node.is_voter && node.region == region) {
            self.admit(region);
        }
    }

    /// Makes the newcomers of `region` voters; call it when a quorum recognises them. Returns
    /// whether there were any.
    pub fn admit(&mut self, region: &str) -> bool {
        let mut has_any = false;
        for node in self.nodes.values_mut() {
            if !node.is_voter && !node.is_leaving && node.region == region {
                (node.is_voter, has_any) = (true, true);
            }
        }
        has_any
    }

    /// The voter set that this node publishes.
    pub fn voter_set(&self) -> VoterSet {
        let voter = |(id, node): (&NodeId, &Node)| Voter {
            id: id.clone(),
            region: node.region.clone(),
            lost_at: node.lost_at,
        };
        let voters = self.nodes.iter().filter(|(_, node)| node.is_voter);
        VoterSet { voters: voters.map(voter).collect() }
    }

    /// The voters with their regions, sorted by id.
    pub fn known_members(&self) -> KnownMembers {
        let voters = self.nodes.iter().filter(|(_, node)| node.is_voter);
        KnownMembers::new(voters.map(|(id, node)| (id.clone(), node.region.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Generation;
    use crate::membership::{Member, MemberState};
    use crate::{LiveMember, Monotonic};

    const FORGET: Span = Span::from_secs(3_600);

    fn id(id: &str) -> NodeId {
        NodeId::new(id).expect("a valid id")
    }

    /// A member that publishes these voters, each with whether it is lost.
    fn member(node: &str, state: MemberState, voters: &[(&str, bool)]) -> Member {
        let voter = |(node, is_lost): &(&str, bool)| Voter {
            id: id(node),
            region: "eu".to_owned(),
            lost_at: is_lost.then_some(Timestamp::from_secs(1_000)),
        };
        Member {
            id: id(node),
            generation: Generation(1),
            addr: ([127, 0, 0, 1], 7000).into(),
            region: "eu".into(),
            zone: String::new(),
            state,
            rule_book: 0,
            http: None,
            voter_set: VoterSet { voters: voters.iter().map(voter).collect() },
        }
    }

    struct Fixture {
        table: MembershipTable,
        voters: Voters,
    }

    impl Fixture {
        fn new() -> Self {
            let table = MembershipTable::new(id("a"), Span::from_millis(1));
            Self { table, voters: Voters::default() }
        }

        /// Takes in at second `now` that these are alive; returns the voters.
        fn update(&mut self, now: u64, members: Vec<Member>) -> Vec<String> {
            let view = View::new(members);
            let alive = |member: &Member| LiveMember {
                id: member.id.clone(),
                generation: member.generation,
                is_up: member.state == MemberState::Up,
            };
            let alive: Vec<LiveMember> = view.members().iter().map(alive).collect();
            self.table.update(Monotonic::from_secs(now), &alive);
            self.voters.update(&self.table, &view, Timestamp::from_secs(now), FORGET);
            self.ids()
        }

        fn ids(&self) -> Vec<String> {
            self.voters.known_members().nodes().iter().map(|(id, _)| id.to_string()).collect()
        }
    }

    fn up(node: &str) -> Member {
        member(node, MemberState::Up, &[])
    }

    #[test]
    fn the_first_members_are_voters_and_later_ones_are_admitted() {
        let mut a = Fixture::new();
        assert!(a.update(1, vec![up("a"), up("b")]).is_empty(), "not bootstrapped");
        a.voters.bootstrap("eu");
        assert_eq!(a.ids(), ["a", "b"]);
        assert_eq!(a.update(2, vec![up("a"), up("b"), up("c")]), ["a", "b"]);
        a.voters.bootstrap("eu");
        assert_eq!(a.ids(), ["a", "b"], "there are voters already");
        assert!(a.voters.admit("eu") && !a.voters.admit("eu"));
        assert_eq!(a.ids(), ["a", "b", "c"]);
    }

    #[test]
    fn a_newcomer_takes_over_the_voters_including_lost_ones() {
        let mut a = Fixture::new();
        let b = member("b", MemberState::Up, &[("b", false), ("c", true), ("x", false)]);
        assert_eq!(a.update(1_001, vec![up("a"), b.clone()]), ["b", "c"]);
        a.voters.bootstrap("eu");
        assert_eq!(a.ids(), ["b", "c"], "a newcomer does not count itself");
        let b = member("b", MemberState::Up, &[("a", false), ("b", false), ("c", true)]);
        assert_eq!(a.update(1_002, vec![up("a"), b]), ["a", "b", "c"]);
    }

    #[test]
    fn a_leaving_voter_is_dropped_and_a_lost_one_counts_until_it_is_forgotten() {
        let mut a = Fixture::new();
        a.update(1, vec![up("a"), up("b"), up("c")]);
        a.voters.bootstrap("eu");
        let draining = member("b", MemberState::Draining, &[]);
        assert_eq!(a.update(2, vec![up("a"), draining, up("c")]), ["a", "c"]);
        assert_eq!(a.update(3, vec![up("a")]), ["a", "c"], "c was lost");
        assert_eq!(a.update(3_602, vec![up("a")]), ["a", "c"]);
        assert_eq!(a.update(3_603, vec![up("a")]), ["a"]);
    }
}

//! Whom this node knows, and who of them counts.
//!
//! Who counts for a quorum, and shares limits, is the *electorate*: members that are there, and
//! members that were lost without leaving, for `cluster.forget_after`. A member that drains does
//! not count any more: it has said that it goes.
//!
//! Nobody joins the electorate but through it. A newcomer counts once a quorum without it stands at
//! an epoch with it, and from then on every node tells so in gossip. A side of a split that is no
//! quorum can so take in as many newcomers as it likes: it stays none. Only a node that meets
//! nobody who knows of an electorate, at the first boot of a cluster, founds one of all it sees.
//!
//! Example: `a b c | d e`, and `f` and `g` join the right side. They are recognised there, and do
//! not count: `d e` are two of five.

use std::collections::BTreeMap;

use tidegate_limiter::units::{Span, Timestamp};

use super::MembershipTable;
use crate::identity::NodeId;
use crate::membership::{KnownMembers, MEMBERS_MAX, View};

/// Who counts, as a member tells it in gossip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VoterSet {
    /// Id, region, and when it was lost, if it was, by the wall clock of whoever lost it.
    pub members: Vec<(NodeId, String, Option<Timestamp>)>,
}

/// Everybody this node knows.
#[derive(Debug, Default)]
pub struct Voters {
    members: BTreeMap<NodeId, FormerMember>,
}

#[derive(Debug)]
struct FormerMember {
    region: String,
    counts: bool,
    /// It has said that it goes.
    is_leaving: bool,
    lost: Option<Timestamp>,
}

impl Voters {
    /// Follows the roll and what others tell.
    pub fn follow(&mut self, table: &MembershipTable, view: &View, now: Timestamp, forget: Span) {
        for (id, seat) in table.entries() {
            let Some(member) = view.get(id) else { continue };
            let counts = self.members.get(id).is_some_and(|past| past.counts);
            let (region, is_leaving) = (member.region.clone(), !seat.is_up);
            // Whoever leaves and comes back is a newcomer.
            let counts = counts && !is_leaving;
            self.members
                .insert(id.clone(), FormerMember { region, counts, is_leaving, lost: None });
        }
        let told = view.members().iter().flat_map(|member| &member.voter_set.members);
        for (id, region, lost) in told {
            let has_room = self.members.len() < MEMBERS_MAX;
            match self.members.get_mut(id) {
                Some(past) => past.counts |= !past.is_leaving,
                // Somebody whom this node never met. That a peer still sees it is no reason: it may
                // just have left.
                None if lost.is_some() && has_room => {
                    let (region, lost) = (region.clone(), *lost);
                    let past = FormerMember { region, counts: true, is_leaving: false, lost };
                    self.members.insert(id.clone(), past);
                }
                None => {}
            }
        }
        for (id, past) in &mut self.members {
            if !table.entries().contains_key(id) && past.lost.is_none() {
                past.lost = Some(now);
            }
        }
        self.members.retain(|_, past| match past.lost {
            Some(lost) => past.counts && !past.is_leaving && now < lost.plus(forget),
            None => true,
        });
    }

    /// Nobody told of an electorate of `region`: all that are there and up are its first members.
    pub fn found(&mut self, region: &str) {
        let has_one = self.members.values().any(|past| past.counts && past.region == region);
        if !has_one {
            self.admit(region);
        }
    }

    /// Newcomers of `region` count from now on: a quorum recognises them. Returns whether there
    /// were any.
    pub fn admit(&mut self, region: &str) -> bool {
        let is_new =
            |past: &&mut FormerMember| !past.counts && !past.is_leaving && past.region == region;
        let mut newcomers = self.members.values_mut().filter(is_new).peekable();
        let has_any = newcomers.peek().is_some();
        newcomers.for_each(|past| past.counts = true);
        has_any
    }

    /// What this node tells of it.
    pub fn voter_set(&self) -> VoterSet {
        let counts = self.members.iter().filter(|(_, past)| past.counts);
        let told = counts.map(|(id, past)| (id.clone(), past.region.clone(), past.lost));
        VoterSet { members: told.collect() }
    }

    /// Who counts, with their regions, sorted by id.
    pub fn known(&self) -> KnownMembers {
        let counts = self.members.iter().filter(|(_, past)| past.counts);
        KnownMembers::new(counts.map(|(id, past)| (id.clone(), past.region.clone())))
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

    /// A member that tells of `voter_set`, each with whether it was lost.
    fn member(node: &str, state: MemberState, voter_set: &[(&str, bool)]) -> Member {
        let told = |(node, lost): &(&str, bool)| {
            (id(node), "eu".to_owned(), lost.then_some(Timestamp::from_secs(1_000)))
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
            voter_set: VoterSet { members: voter_set.iter().map(told).collect() },
        }
    }

    struct Node {
        table: MembershipTable,
        known: Voters,
    }

    impl Node {
        fn new() -> Self {
            let table = MembershipTable::new(id("a"), Span::from_millis(1));
            Self { table, known: Voters::default() }
        }

        /// Hears at second `now` that these are there; returns who counts.
        fn hears(&mut self, now: u64, members: Vec<Member>) -> Vec<String> {
            let view = View::new(members);
            let alive = |member: &Member| LiveMember {
                id: member.id.clone(),
                generation: member.generation,
                is_up: member.state == MemberState::Up,
            };
            let alive: Vec<LiveMember> = view.members().iter().map(alive).collect();
            self.table.hear(Monotonic::from_secs(now), &alive);
            self.known.follow(&self.table, &view, Timestamp::from_secs(now), FORGET);
            self.counted()
        }

        fn counted(&self) -> Vec<String> {
            self.known.known().nodes().iter().map(|(id, _)| id.to_string()).collect()
        }
    }

    fn up(node: &str) -> Member {
        member(node, MemberState::Up, &[])
    }

    #[test]
    fn the_first_nodes_found_an_electorate_and_later_ones_are_admitted() {
        let mut a = Node::new();
        assert!(a.hears(1, vec![up("a"), up("b")]).is_empty(), "nobody has said so");
        a.known.found("eu");
        assert_eq!(a.counted(), ["a", "b"]);
        assert_eq!(a.hears(2, vec![up("a"), up("b"), up("c")]), ["a", "b"]);
        a.known.found("eu");
        assert_eq!(a.counted(), ["a", "b"], "there is one already");
        assert!(a.known.admit("eu") && !a.known.admit("eu"));
        assert_eq!(a.counted(), ["a", "b", "c"]);
    }

    #[test]
    fn a_newcomer_learns_who_counts_the_lost_ones_too() {
        let mut a = Node::new();
        let b = member("b", MemberState::Up, &[("b", false), ("c", true), ("x", false)]);
        assert_eq!(a.hears(1_001, vec![up("a"), b.clone()]), ["b", "c"]);
        a.known.found("eu");
        assert_eq!(a.counted(), ["b", "c"], "it does not count itself");
        let b = member("b", MemberState::Up, &[("a", false), ("b", false), ("c", true)]);
        assert_eq!(a.hears(1_002, vec![up("a"), b]), ["a", "b", "c"]);
    }

    #[test]
    fn who_leaves_counts_no_more_and_who_is_lost_counts_for_a_while() {
        let mut a = Node::new();
        a.hears(1, vec![up("a"), up("b"), up("c")]);
        a.known.found("eu");
        let draining = member("b", MemberState::Draining, &[]);
        assert_eq!(a.hears(2, vec![up("a"), draining, up("c")]), ["a", "c"]);
        assert_eq!(a.hears(3, vec![up("a")]), ["a", "c"], "c was lost");
        assert_eq!(a.hears(3_602, vec![up("a")]), ["a", "c"]);
        assert_eq!(a.hears(3_603, vec![up("a")]), ["a"]);
    }
}

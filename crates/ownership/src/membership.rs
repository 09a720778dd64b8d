//! Who is a member right now, as one immutable value.
//!
//! Gossip delivers facts about incarnations (node id and generation); a [`View`] keeps the newest
//! incarnation of each node, sorted by id, so that two nodes with the same facts hold equal views.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use super::identity::{Generation, NodeId};
use super::voters::VoterSet;

/// What a node says about itself in gossip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Stable name.
    pub id: NodeId,
    /// Which start of it.
    pub generation: Generation,
    /// Where its mesh is reached.
    pub addr: SocketAddr,
    /// Nodes of one region share strict limits.
    pub region: String,
    /// Replicas go to another zone where there is one.
    pub zone: String,
    /// Whether it takes keys.
    pub state: MemberState,
    /// Fingerprint of the rule book it holds.
    pub rule_book: u64,
    /// Where its HTTP door listens, for people.
    pub http: Option<SocketAddr>,
    /// Who counts for a majority, in its eyes.
    pub voter_set: VoterSet,
}

/// What a member is ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// Owns keys.
    Up,
    /// Still answers, owns nothing any more: it is about to leave.
    Draining,
}

/// The members, sorted by id; immutable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    members: Vec<Member>,
    epoch: u64,
}

/// The most members a view holds. Beyond it the highest ids are left out, on every node alike, and
/// the caller counts them.
pub const MEMBERS_MAX: usize = 1_024;

/// The nodes that a share of a limit is set aside for, each with its region: the members, and those
/// that are away but neither left nor were forgotten. Sorted by id; immutable.
///
/// A side of a split cluster sees its own members only. If it shared a limit among them, the sides
/// would hand it out once each; shared among the known, they hand out parts of one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownMembers {
    nodes: Vec<(NodeId, String)>,
}

impl KnownMembers {
    /// These nodes; of two with one id the later region counts. Beyond [`MEMBERS_MAX`] the highest
    /// ids are left out, on every node alike.
    pub fn new(nodes: impl IntoIterator<Item = (NodeId, String)>) -> Self {
        let by_id: BTreeMap<NodeId, String> = nodes.into_iter().collect();
        Self { nodes: by_id.into_iter().take(MEMBERS_MAX).collect() }
    }

    /// Those that own keys in `view`.
    pub fn of(view: &View) -> Self {
        Self::new(view.owners().map(|member| (member.id.clone(), member.region.clone())))
    }

    /// What is in either; where both name a node, the region that `self` says.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self::new(other.nodes.into_iter().chain(self.nodes))
    }

    /// All of them with their regions, sorted by id.
    pub fn nodes(&self) -> &[(NodeId, String)] {
        &self.nodes
    }
}

impl View {
    /// The view of `node_metadata`: the highest generation of each node.
    pub fn new(node_metadata: impl IntoIterator<Item = Member>) -> Self {
        let mut newest: BTreeMap<NodeId, Member> = BTreeMap::new();
        for fact in node_metadata {
            let is_newer =
                newest.get(&fact.id).is_none_or(|known| known.generation < fact.generation);
            if is_newer {
                newest.insert(fact.id.clone(), fact);
            }
        }
        let members: Vec<Member> = newest.into_values().take(MEMBERS_MAX).collect();
        let epoch = ring_epoch(&members);
        Self { members, epoch }
    }

    /// All members, sorted by id.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The member of that id.
    pub fn get(&self, id: &NodeId) -> Option<&Member> {
        let index = self.members.binary_search_by(|member| member.id.cmp(id)).ok()?;
        self.members.get(index)
    }

    /// Those that own keys, sorted by id.
    pub fn owners(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.state == MemberState::Up)
    }

    /// Equal on two nodes exactly when the same nodes own keys in the same regions, whatever their
    /// generations and addresses: the name of a ring.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

fn ring_epoch(members: &[Member]) -> u64 {
    let mut sip = SipHasher13::new_with_key(b"tidegate r epoch");
    for member in members.iter().filter(|member| member.state == MemberState::Up) {
        for part in [member.id.as_str(), &member.region, &member.zone] {
            sip.write_u64(part.len() as u64);
            sip.write(part.as_bytes());
        }
    }
    sip.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: &str, generation: u64, state: MemberState) -> Member {
        Member {
            id: NodeId::new(id).expect("valid id"),
            generation: Generation(generation),
            addr: ([127, 0, 0, 1], 7000).into(),
            region: "eu".into(),
            zone: "a".into(),
            state,
            rule_book: 0,
            http: None,
            voter_set: VoterSet::default(),
        }
    }

    #[test]
    fn only_the_newest_incarnation_is_seen() {
        let view = View::new([
            member("b", 1, MemberState::Up),
            member("a", 7, MemberState::Up),
            member("a", 3, MemberState::Draining),
        ]);
        let ids: Vec<_> = view.members().iter().map(|m| (m.id.as_str(), m.generation.0)).collect();
        assert_eq!(ids, [("a", 7), ("b", 1)]);
    }

    #[test]
    fn the_epoch_names_the_ring_and_nothing_else() {
        let one = View::new([member("a", 1, MemberState::Up), member("b", 1, MemberState::Up)]);
        let restarted =
            View::new([member("b", 9, MemberState::Up), member("a", 1, MemberState::Up)]);
        let draining =
            View::new([member("a", 1, MemberState::Up), member("b", 1, MemberState::Draining)]);
        assert_eq!(one.epoch(), restarted.epoch());
        assert_ne!(one.epoch(), draining.epoch());
    }
}

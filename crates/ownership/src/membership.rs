//! Cluster membership as immutable values.
//!
//! Gossip delivers the metadata of incarnations (node id and generation); a [`View`] keeps the
//! newest incarnation of each node, sorted by id, so two nodes that received the same metadata have
//! equal views.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use tidegate_limiter::units::Timestamp;

use crate::identity::{Generation, NodeId};

/// A member, as it publishes itself in gossip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub id: NodeId,
    pub generation: Generation,
    /// The advertised mesh address (UDP).
    pub addr: SocketAddr,
    /// Nodes of one region share strict limits.
    pub region: String,
    /// Replicas are placed in another zone where there is one.
    pub zone: String,
    pub state: MemberState,
    /// Fingerprint of the rule book it uses.
    pub rule_book: u64,
    /// Its HTTP listener, for operators.
    pub http: Option<SocketAddr>,
    /// The voters that it counts.
    pub voter_set: VoterSet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// Owns keys.
    Up,
    /// Owns no keys and still answers calls: it is about to leave.
    Draining,
}

/// The voters that a member counts, as it publishes them in gossip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VoterSet {
    pub voters: Vec<Voter>,
}

/// A node that counts for a quorum of its region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voter {
    pub id: NodeId,
    pub region: String,
    /// When the node was lost, by the wall clock of the member that lost it; `None` while it is a
    /// member.
    pub lost_at: Option<Timestamp>,
}

/// The live members, sorted by id; immutable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    members: Vec<Member>,
    fingerprint: u64,
}

/// The most members in a view. Beyond it the highest ids are left out, alike on every node.
pub const MEMBERS_MAX: usize = 1_024;

/// The nodes among which a limit is divided while owners are unreachable, with their regions: the
/// members, and nodes that were lost without leaving and are not yet forgotten. Sorted by id;
/// immutable.
///
/// Each side of a split cluster sees only its own members. If it divided a limit among those, every
/// side would grant the whole limit; divided among the known members, all sides together grant it
/// once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownMembers {
    nodes: Vec<(NodeId, String)>,
}

impl KnownMembers {
    /// For an id that occurs twice the later region is kept. Beyond [`MEMBERS_MAX`] the highest ids
    /// are left out, alike on every node.
    pub fn new(nodes: impl IntoIterator<Item = (NodeId, String)>) -> Self {
        let by_id: BTreeMap<NodeId, String> = nodes.into_iter().collect();
        Self { nodes: by_id.into_iter().take(MEMBERS_MAX).collect() }
    }

    /// The members that own keys in `view`.
    pub fn of(view: &View) -> Self {
        Self::new(view.owners().map(|member| (member.id.clone(), member.region.clone())))
    }

    /// The union; where both contain a node, its region is taken from `self`.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self::new(other.nodes.into_iter().chain(self.nodes))
    }

    /// Ids with regions, sorted by id.
    pub fn nodes(&self) -> &[(NodeId, String)] {
        &self.nodes
    }
}

impl View {
    /// The newest incarnation of each node in `members`.
    pub fn new(members: impl IntoIterator<Item = Member>) -> Self {
        let mut newest: BTreeMap<NodeId, Member> = BTreeMap::new();
        for member in members {
            let is_newer =
                newest.get(&member.id).is_none_or(|other| other.generation < member.generation);
            if is_newer {
                newest.insert(member.id.clone(), member);
            }
        }
        let members: Vec<Member> = newest.into_values().take(MEMBERS_MAX).collect();
        let fingerprint = fingerprint_of(&members);
        Self { members, fingerprint }
    }

    /// Sorted by id.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    pub fn get(&self, id: &NodeId) -> Option<&Member> {
        let index = self.members.binary_search_by(|member| member.id.cmp(id)).ok()?;
        self.members.get(index)
    }

    /// The members that own keys, sorted by id.
    pub fn owners(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.state == MemberState::Up)
    }

    /// A fingerprint of the ring: equal on two nodes exactly when the same nodes own keys in the
    /// same regions and zones, whatever their generations and addresses.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

fn fingerprint_of(members: &[Member]) -> u64 {
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
    fn a_view_keeps_the_newest_incarnation() {
        let view = View::new([
            member("b", 1, MemberState::Up),
            member("a", 7, MemberState::Up),
            member("a", 3, MemberState::Draining),
        ]);
        let ids: Vec<_> = view.members().iter().map(|m| (m.id.as_str(), m.generation.0)).collect();
        assert_eq!(ids, [("a", 7), ("b", 1)]);
    }

    #[test]
    fn the_epoch_depends_on_the_ring_only() {
        let one = View::new([member("a", 1, MemberState::Up), member("b", 1, MemberState::Up)]);
        let restarted =
            View::new([member("b", 9, MemberState::Up), member("a", 1, MemberState::Up)]);
        let draining =
            View::new([member("a", 1, MemberState::Up), member("b", 1, MemberState::Draining)]);
        assert_eq!(one.fingerprint(), restarted.fingerprint());
        assert_ne!(one.fingerprint(), draining.fingerprint());
    }
}

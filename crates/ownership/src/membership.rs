//! What is known about the members of all regions, as immutable values.
//!
//! Who is a member of the own region is agreed ([`ClusterMap`](crate::cluster_map::ClusterMap));
//! gossip adds what need not be: addresses, rule books, and the members of other regions. A
//! [`View`] keeps the newest incarnation (node id and generation) of each node, sorted by id, so
//! two nodes that received the same metadata have equal views.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use crate::identity::{Generation, NodeId};

/// A member with its metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Fingerprint of the rule book it uses, or [`UNKNOWN_RULES`].
    pub rule_book: u64,
    /// Its HTTP listener, for operators.
    pub http: Option<SocketAddr>,
    /// Whether it has a lease, or has lost it within the last second. Other regions learn by this
    /// that a node decides nothing, though they reach it: those of its region may have evicted it.
    pub has_lease: bool,
}

/// The fingerprint of rules that are not known: of a member of which there is no gossip yet.
pub const UNKNOWN_RULES: u64 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// Owns keys.
    Up,
    /// Owns no keys and still answers calls: it is about to leave.
    Draining,
}

/// Members, sorted by id; immutable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    members: Vec<Member>,
    fingerprint: u64,
}

/// The most members in a view. Beyond it the highest ids are left out, alike on every node.
pub const MEMBERS_MAX: usize = 512;

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

    /// Whether the same starts of the same nodes are members of `other`, in the same states and
    /// places. What else they publish about themselves may differ.
    pub fn has_members_of(&self, other: &Self) -> bool {
        let memberships = self.members.iter().map(Member::membership);
        memberships.eq(other.members.iter().map(Member::membership))
    }
}

impl Member {
    /// All but what changes while it is a member: its rules, its listener, its lease.
    fn membership(&self) -> (&NodeId, Generation, SocketAddr, &str, &str, MemberState) {
        let Self { id, generation, addr, region, zone, state, .. } = self;
        (id, *generation, *addr, region, zone, *state)
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
            has_lease: true,
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

    #[test]
    fn what_members_publish_of_themselves_is_no_other_membership() {
        let a = member("a", 1, MemberState::Up);
        let one = View::new([a.clone(), member("b", 1, MemberState::Up)]);
        let with = |other: Member| View::new([a.clone(), other]);
        let b = member("b", 1, MemberState::Up);
        let others = Member { rule_book: 7, has_lease: false, ..b.clone() };
        let published = with(Member { http: Some(([127, 0, 0, 1], 8080).into()), ..others });
        assert_ne!(published, one);
        assert!(published.has_members_of(&one) && one.has_members_of(&published));
        for other in [
            View::new([a.clone()]),
            with(member("b", 2, MemberState::Up)),
            with(member("b", 1, MemberState::Draining)),
            with(member("c", 1, MemberState::Up)),
            with(Member { zone: "b".into(), ..b.clone() }),
            with(Member { addr: ([127, 0, 0, 1], 7001).into(), ..b }),
        ] {
            assert!(!other.has_members_of(&one) && !one.has_members_of(&other), "{other:?}");
        }
    }
}

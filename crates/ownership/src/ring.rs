//! Consistent hashing over virtual nodes, as an immutable table.
//!
//! The ring has 2^64 tokens. Each node has `vnodes` points on it; a key belongs to the node of the
//! first point at or after the key's token. When a node joins, about 1/n of the keys move to it,
//! and no key moves between two other nodes.
//!
//! The points depend on node ids only; if they depended on addresses or generations, keys would
//! move on a restart. The `hashring` crate places and sorts the points once per view. Lookups walk
//! our sorted table, because the crate's replica lookup clones the ring and returns a node several
//! times.
//!
//! Source: Karger et al., "Consistent Hashing and Random Trees", STOC 1997; virtual nodes as in
//! `DeCandia` et al., "Dynamo", SOSP 2007.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash, Hasher};

use hashring::{DefaultHashBuilder, HashRing};

use crate::identity::NodeId;
use crate::membership::Member;
use crate::ranges::{Range, Ranges};

#[derive(Clone, Debug, Default)]
pub struct Ring {
    /// Sorted by id.
    nodes: Box<[RingNode]>,
    /// Sorted tokens; the second part indexes `nodes`.
    points: Box<[(u64, u16)]>,
}

#[derive(Clone, Debug)]
struct RingNode {
    id: NodeId,
    zone: String,
}

impl Ring {
    /// The ring of `members`, each with `vnodes` points. The order of `members` does not matter.
    pub fn new<'a>(members: impl IntoIterator<Item = &'a Member>, vnodes: u32) -> Self {
        let mut nodes: Vec<RingNode> = members
            .into_iter()
            .map(|member| RingNode { id: member.id.clone(), zone: member.zone.clone() })
            .collect();
        nodes.sort_by(|a, b| a.id.cmp(&b.id));
        nodes.dedup_by(|a, b| a.id == b.id);
        nodes.truncate(usize::from(u16::MAX));

        let mut vnode_list = Vec::with_capacity(nodes.len() * vnodes as usize);
        for (node, index) in nodes.iter().zip(0_u16..) {
            for number in 0..vnodes {
                vnode_list.push(Vnode { id: node.id.clone(), number, index });
            }
        }
        let mut ring = HashRing::new();
        ring.batch_add(vnode_list);
        let mut points: Vec<(u64, u16)> = ring
            .into_iter()
            .map(|vnode| (DefaultHashBuilder.hash_one(&vnode), vnode.index))
            .collect();
        // Two vnodes on one token (once in 2^64) must have the same order on every node.
        points.sort_unstable();
        Self { nodes: nodes.into(), points: points.into() }
    }

    /// `None` on an empty ring.
    pub fn owner(&self, token: u64) -> Option<&NodeId> {
        self.walk(token).next().map(|node| &node.id)
    }

    /// The node that owns `token` when its owner is gone.
    pub fn next_owner(&self, token: u64) -> Option<&NodeId> {
        let owner = self.owner(token)?;
        self.walk(token).map(|node| &node.id).find(|id| *id != owner)
    }

    /// The owner, then up to `count` other nodes that follow it on the ring. Nodes of zones not yet
    /// chosen come first, so that losing a zone loses one copy.
    pub fn replicas(&self, token: u64, count: usize) -> Vec<&NodeId> {
        let needed = count.saturating_add(1).min(self.nodes.len());
        let mut distinct: Vec<&RingNode> = Vec::with_capacity(self.nodes.len());
        for node in self.walk(token) {
            if distinct.iter().all(|seen| seen.id != node.id) {
                distinct.push(node);
            }
            if distinct.len() == self.nodes.len() {
                break;
            }
        }
        let mut chosen: Vec<&RingNode> = Vec::with_capacity(needed);
        while chosen.len() < needed && !distinct.is_empty() {
            let is_new_zone = |node: &&RingNode| chosen.iter().all(|one| one.zone != node.zone);
            let index = distinct.iter().position(is_new_zone).unwrap_or(0);
            chosen.push(distinct.remove(index));
        }
        chosen.into_iter().map(|node| &node.id).collect()
    }

    /// The `count` distinct nodes that follow the owner. If the owner has just joined, the first of
    /// them owned its keys before.
    pub fn successors(&self, token: u64, count: usize) -> Vec<&NodeId> {
        let needed = count.saturating_add(1).min(self.nodes.len());
        let mut found: Vec<&NodeId> = Vec::with_capacity(needed);
        for node in self.walk(token) {
            if found.len() == needed {
                break;
            }
            if !found.contains(&&node.id) {
                found.push(&node.id);
            }
        }
        found.split_off(found.len().min(1))
    }

    /// The index of the arc that contains `token`. All tokens of an arc have the same owner and
    /// replicas.
    pub fn arc(&self, token: u64) -> usize {
        let after = self.points.partition_point(|(point, _)| *point < token);
        if after == self.points.len() { 0 } else { after }
    }

    /// Sorted by id.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &NodeId> {
        self.nodes.iter().map(|node| &node.id)
    }

    /// The tokens that `id` owns.
    pub fn arcs(&self, id: &NodeId) -> Ranges {
        let own = self.nodes.binary_search_by(|node| node.id.cmp(id)).ok();
        Ranges::of(self.all().filter(|(index, _)| Some(*index) == own).map(|(_, range)| range))
    }

    /// The tokens that each node owns, in one pass over the ring.
    pub fn all_arcs(&self) -> BTreeMap<NodeId, Ranges> {
        let mut arcs = vec![Vec::new(); self.nodes.len()];
        for (index, range) in self.all() {
            arcs[index].push(range);
        }
        self.nodes().cloned().zip(arcs.into_iter().map(Ranges::of)).collect()
    }

    /// The ranges between the points, each with the index of its owner. Of two points on one token
    /// the second one has an empty range.
    fn all(&self) -> impl Iterator<Item = (usize, Range)> {
        let arcs = self.points.iter().scan(0, |first, (last, index)| {
            let range = Range { first: *first, last: *last };
            *first = last.saturating_add(1);
            Some((usize::from(*index), range))
        });
        // Tokens after the last point belong to the first one.
        let wrapped = self.points.first().zip(self.points.last()).and_then(|(low, high)| {
            let range = Range { first: high.0.checked_add(1)?, last: u64::MAX };
            Some((usize::from(low.1), range))
        });
        arcs.chain(wrapped)
    }

    /// The share of the ring that `id` owns, in parts per million.
    pub fn share_ppm(&self, id: &NodeId) -> u32 {
        self.arcs(id).share_ppm()
    }

    /// The nodes of the points from `token` on, once around the ring.
    fn walk(&self, token: u64) -> impl Iterator<Item = &RingNode> {
        let start = self.points.partition_point(|(point, _)| *point < token);
        let (before, after) = self.points.split_at(start);
        after.iter().chain(before).map(|(_, index)| &self.nodes[usize::from(*index)])
    }
}

#[derive(Clone, Debug)]
struct Vnode {
    id: NodeId,
    number: u32,
    index: u16,
}

impl Hash for Vnode {
    /// Byte by byte, so that no release of the standard library moves a key.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.id.as_str().as_bytes());
        state.write(&[0]);
        state.write(&self.number.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::identity::Generation;
    use crate::membership::MemberState;

    fn member(id: &str, zone: &str) -> Member {
        Member {
            id: NodeId::new(id).expect("valid id"),
            generation: Generation(1),
            addr: ([127, 0, 0, 1], 1).into(),
            region: "eu".into(),
            zone: zone.into(),
            state: MemberState::Up,
            rule_book: 0,
            http: None,
            has_lease: true,
        }
    }

    fn ring(ids: &[&str]) -> Ring {
        Ring::new(&ids.iter().map(|id| member(id, "a")).collect::<Vec<_>>(), 128)
    }

    /// 10,000 tokens, spread evenly.
    fn tokens() -> impl Iterator<Item = u64> {
        (0..10_000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    #[test]
    fn an_empty_ring_has_no_owner() {
        assert_eq!(Ring::default().owner(7), None);
        assert!(Ring::default().replicas(7, 2).is_empty());
    }

    #[test]
    fn the_next_owner_owns_the_token_once_the_owner_is_gone() {
        let all = ["a", "b", "c"];
        let three = ring(&all);
        for token in tokens().take(200) {
            let owner = three.owner(token).expect("an owner");
            let others: Vec<&str> = all.into_iter().filter(|id| *id != owner.as_str()).collect();
            assert_eq!(three.next_owner(token), ring(&others).owner(token));
        }
        assert_eq!(ring(&["a"]).next_owner(7), None);
    }

    #[test]
    fn each_token_is_in_the_arcs_of_its_owner_only() {
        let ring = ring(&["a", "b", "c"]);
        let arcs = ring.all_arcs();
        for token in tokens().chain([0, u64::MAX]) {
            let owners = arcs.iter().filter(|(_, arcs)| arcs.contains(token));
            assert_eq!(
                owners.map(|(id, _)| id).collect::<Vec<_>>(),
                [ring.owner(token).expect("an owner")]
            );
        }
        for (id, of) in &arcs {
            assert_eq!(ring.arcs(id), *of);
        }
    }

    #[test]
    fn a_join_moves_only_keys_to_the_joining_node() {
        let (before, after) = (ring(&["a", "b", "c"]), ring(&["a", "b", "c", "d"]));
        let mut moved = 0;
        for token in tokens() {
            let (old, new) = (before.owner(token), after.owner(token));
            if old != new {
                assert_eq!(new.map(NodeId::as_str), Some("d"));
                moved += 1;
            }
        }
        assert!((1_500..3_500).contains(&moved), "about a quarter moves, {moved} of 10000 did");
    }

    #[test]
    fn the_order_of_members_does_not_matter() {
        let (one, two) = (ring(&["a", "b", "c"]), ring(&["c", "a", "b"]));
        assert!(tokens().all(|token| one.owner(token) == two.owner(token)));
    }

    /// Placement is part of the protocol: nodes of two versions in one cluster must agree.
    #[test]
    fn placement_is_pinned() {
        let ring = ring(&["n1", "n2", "n3"]);
        let owners: Vec<_> = (0..12u64)
            .map(|n| ring.owner(n.wrapping_mul(0x1555_5555_5555_5555)).map_or("", NodeId::as_str))
            .collect();
        assert_eq!(owners.join(" "), "n2 n3 n1 n3 n3 n1 n2 n1 n2 n1 n2 n3");
    }

    #[test]
    fn shares_add_up_and_are_near_fair() {
        let alone = ring(&["a"]);
        assert_eq!(alone.share_ppm(&NodeId::new("a").expect("id")), 1_000_000);
        let ring = ring(&["a", "b", "c"]);
        let shares: Vec<u32> = ring.nodes().map(|id| ring.share_ppm(id)).collect();
        assert!((999_990..=1_000_000).contains(&shares.iter().sum::<u32>()), "{shares:?}");
        assert!(shares.iter().all(|ppm| (230_000..430_000).contains(ppm)), "{shares:?}");
    }

    #[test]
    fn replicas_prefer_other_zones() {
        let members = [member("a", "z1"), member("b", "z1"), member("c", "z1"), member("d", "z2")];
        let ring = Ring::new(&members, 64);
        for token in tokens().take(500) {
            let replicas = ring.replicas(token, 1);
            let zones: Vec<_> = replicas.iter().map(|id| id.as_str() == "d").collect();
            assert_eq!(zones.iter().filter(|is_d| **is_d).count(), 1, "{replicas:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn replicas_are_distinct_and_start_with_the_owner(
            nodes in 1_usize..9, token: u64, count in 0_usize..9,
        ) {
            let members: Vec<_> =
                (0..nodes).map(|n| member(&format!("n{n}"), &format!("z{}", n % 3))).collect();
            let ring = Ring::new(&members, 16);
            let replicas = ring.replicas(token, count);
            prop_assert_eq!(replicas.len(), (count + 1).min(nodes));
            prop_assert_eq!(replicas.first().copied(), ring.owner(token));
            let mut unique = replicas.clone();
            unique.sort();
            unique.dedup();
            prop_assert_eq!(unique.len(), replicas.len());
        }
    }
}

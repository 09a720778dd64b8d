//! Who holds copies of a key: the next nodes on its ring, in other zones where there are any.
//!
//! A peer that is silent or not connected is passed over for the next one, so that a replica that
//! died leaves no key without a copy while gossip has not noticed. Without that, one more crash
//! within a second would lose what was counted.
//!
//! **Example.** Ring a (zone 1), b (zone 1), c (zone 2), one replica: the owner a copies to c;
//! while c is silent to b.
//!
//! **Bound:** one remembered answer for each stretch of the rings, members × vnodes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::KeyHash;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ring::Ring;
use tidegate_ownership::route::Topology;

/// Who holds copies of what, by one view of the cluster; immutable but for what it remembers.
#[derive(Debug)]
pub(super) struct Targets {
    topology: Arc<Topology>,
    reachable: BTreeSet<NodeId>,
    replicas: usize,
    to_tell: Memo,
    by_ring: Memo,
}

/// Answers by ring and stretch of it.
type Memo = Mutex<BTreeMap<(bool, usize), Arc<[NodeId]>>>;

impl Targets {
    pub(super) fn new(
        topology: Arc<Topology>,
        reachable: BTreeSet<NodeId>,
        replicas: usize,
    ) -> Self {
        Self { topology, reachable, replicas, to_tell: Memo::default(), by_ring: Memo::default() }
    }

    /// Whether it is what these say.
    pub(super) fn is_of(&self, topology: &Arc<Topology>, reachable: &BTreeSet<NodeId>) -> bool {
        Arc::ptr_eq(&self.topology, topology) && self.reachable == *reachable
    }

    /// Whom this node tells of a key that it decides: the first reachable others on the ring, be
    /// this node its owner or about to hand it over.
    pub(super) fn of(&self, key: KeyHash) -> Arc<[NodeId]> {
        self.remember(&self.to_tell, key, |ring| {
            self.others(ring, key).take(self.replicas).cloned().collect()
        })
    }

    /// Whom this node asks to confirm a key that it decides: those that it tells, and at least one,
    /// also where no copies are kept.
    pub(super) fn to_confirm(&self, key: KeyHash) -> Arc<[NodeId]> {
        if self.replicas > 0 {
            return self.of(key);
        }
        let Some(ring) = self.ring(key.scope()) else { return Arc::default() };
        self.others(ring, key).take(1).cloned().collect()
    }

    /// The key's owner by the ring, and behind it those that hold copies while all are well. Nodes
    /// with equal views answer alike.
    pub(super) fn by_ring(&self, key: KeyHash) -> Arc<[NodeId]> {
        self.remember(&self.by_ring, key, |ring| {
            ring.replicas(key.token, self.replicas).into_iter().cloned().collect()
        })
    }

    /// Whether there is any other node on the key's ring.
    pub(super) fn has_others(&self, key: KeyHash) -> bool {
        self.ring(key.scope()).is_some_and(|ring| ring.nodes().any(|id| *id != self.topology.me))
    }

    pub(super) fn is_reachable(&self, id: &NodeId) -> bool {
        self.reachable.contains(id)
    }

    /// Whether nobody can be reached.
    pub(super) fn is_alone(&self) -> bool {
        self.reachable.is_empty()
    }

    pub(super) fn me(&self) -> &NodeId {
        &self.topology.me
    }

    fn remember(
        &self,
        memo: &Memo,
        key: KeyHash,
        answer: impl FnOnce(&Ring) -> Arc<[NodeId]>,
    ) -> Arc<[NodeId]> {
        let Some(ring) = self.ring(key.scope()) else { return Arc::default() };
        let stretch = (key.scope() == Scope::Global, ring.arc(key.token));
        memo.lock().entry(stretch).or_insert_with(|| answer(ring)).clone()
    }

    /// The reachable others on the ring, those that should hold a copy first.
    fn others<'a>(&self, ring: &'a Ring, key: KeyHash) -> impl Iterator<Item = &'a NodeId> {
        let all = ring.replicas(key.token, ring.nodes().len()).into_iter();
        all.filter(|id| **id != self.topology.me && self.is_reachable(id))
    }

    fn ring(&self, scope: Scope) -> Option<&Ring> {
        match scope {
            Scope::Region => self.topology.region_ring(&self.topology.region),
            Scope::Global => Some(self.topology.global_ring()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_ownership::VoterSet;
    use tidegate_ownership::identity::Generation;
    use tidegate_ownership::membership::{Member, MemberState, View};

    use super::*;

    fn id(id: &str) -> NodeId {
        NodeId::new(id).expect("a valid id")
    }

    /// Of node `me` in a cluster of (id, region, zone).
    fn targets(
        me: &str,
        nodes: &[(&str, &str, &str)],
        silent: &[&str],
        replicas: usize,
    ) -> Targets {
        let member = |(node, region, zone): &(&str, &str, &str)| Member {
            id: id(node),
            generation: Generation(1),
            addr: ([127, 0, 0, 1], 1).into(),
            region: (*region).into(),
            zone: (*zone).into(),
            state: MemberState::Up,
            rule_book: 0,
            http: None,
            voter_set: VoterSet::default(),
        };
        let view = View::new(nodes.iter().map(member));
        let region = view.get(&id(me)).expect("a member").region.clone();
        let reachable = nodes.iter().map(|node| node.0).filter(|node| !silent.contains(node));
        let reachable = reachable.filter(|node| *node != me).map(id).collect();
        Targets::new(Arc::new(Topology::new(id(me), region, view, 64)), reachable, replicas)
    }

    fn keys() -> impl Iterator<Item = KeyHash> {
        (0..200_u64).map(|n| KeyHash { token: n.wrapping_mul(0x9e37_79b9_7f4a_7c15), tag: 16 })
    }

    const GLOBAL: u64 = 0b10;
    const THREE: [(&str, &str, &str); 3] = [("a", "eu", "1"), ("b", "eu", "1"), ("c", "eu", "2")];

    #[test]
    fn a_copy_is_in_another_zone_while_that_zone_is_there() {
        let well = targets("a", &THREE, &[], 1);
        assert!(keys().all(|key| *well.of(key) == [id("c")] || well.by_ring(key)[0] != id("a")));
        let silent = targets("a", &THREE, &["c"], 1);
        assert!(keys().all(|key| *silent.of(key) == [id("b")]));
        assert!(keys().all(|key| targets("a", &THREE, &["b", "c"], 1).of(key).is_empty()));
    }

    #[test]
    fn nobody_is_told_twice_and_a_node_never_tells_itself() {
        let all = targets("a", &THREE, &[], 3);
        for key in keys() {
            let told: BTreeSet<_> = all.of(key).iter().cloned().collect();
            assert_eq!(told, BTreeSet::from([id("b"), id("c")]));
        }
        let none = targets("a", &THREE, &[], 0);
        assert!(keys().all(|key| none.of(key).is_empty() && none.has_others(key)));
    }

    #[test]
    fn copies_stay_in_the_region_unless_the_rule_is_global() {
        let nodes = [("a", "eu", "1"), ("b", "eu", "1"), ("c", "us", "2")];
        let targets = targets("a", &nodes, &[], 1);
        for key in keys() {
            assert_eq!(*targets.of(key), [id("b")]);
        }
        let global = keys().map(|key| KeyHash { tag: key.tag | GLOBAL, ..key });
        assert!(global.into_iter().any(|key| *targets.of(key) == [id("c")]));
        let alone = [("a", "eu", "1"), ("c", "us", "2")];
        let alone = self::targets("a", &alone, &[], 1);
        assert!(keys().all(|key| alone.of(key).is_empty() && !alone.has_others(key)));
    }

    #[test]
    fn who_should_hold_a_copy_does_not_depend_on_who_asks() {
        let all: Vec<_> = ["a", "b", "c"].map(|me| targets(me, &THREE, &[], 1)).into();
        for key in keys() {
            assert!(all.iter().all(|one| one.by_ring(key) == all[0].by_ring(key)));
            assert_eq!(all[0].by_ring(key).len(), 2);
        }
    }
}

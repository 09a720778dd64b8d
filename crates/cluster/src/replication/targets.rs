//! The nodes that hold copies of a key: the next ones on its ring, in other zones if there are any.
//!
//! An unreachable peer is skipped for the next one, so that a dead replica leaves no key without a
//! copy until gossip detects the failure. Otherwise one more crash within that second would lose
//! counts.
//!
//! **Example.** Ring a (zone 1), b (zone 1), c (zone 2), one replica: the owner a copies to c, and
//! to b while c is unreachable.
//!
//! **Bound:** one cached list per arc of the rings, of which there are members × vnodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::{Monotonic, Span};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;
use tidegate_ownership::ring::Ring;
use tidegate_ownership::route::Topology;

/// The replicas of every key for one topology and one set of reachable peers. Immutable but for its
/// caches.
#[derive(Debug)]
pub(super) struct Targets {
    pub(super) topology: Arc<Topology>,
    pub(super) reachable: BTreeSet<NodeId>,
    replicas: usize,
    /// When it was found last that these peers are reachable, nanoseconds.
    checked_ns: AtomicU64,
    reachable_cache: Cache,
    ring_cache: Cache,
}

/// Lists by ring (whether it is the global one) and arc.
type Cache = Mutex<BTreeMap<usize, Arc<[NodeId]>>>;

impl Targets {
    pub(super) fn new(
        topology: Arc<Topology>,
        reachable: BTreeSet<NodeId>,
        replicas: usize,
    ) -> Self {
        let (reachable_cache, ring_cache) = (Cache::default(), Cache::default());
        let checked_ns = AtomicU64::new(0);
        Self { topology, reachable, replicas, checked_ns, reachable_cache, ring_cache }
    }

    /// These peers are the reachable ones at `now`.
    pub(super) fn checked(&self, now: Monotonic) {
        let since_start = now.since(Monotonic::START).as_nanos();
        self.checked_ns.store(since_start, Ordering::Relaxed);
    }

    /// Whether that was more than `age` before `now`.
    pub(super) fn is_older(&self, now: Monotonic, age: Span) -> bool {
        let checked =
            Monotonic::START.plus(Span::from_nanos(self.checked_ns.load(Ordering::Relaxed)));
        now > checked.plus(age)
    }

    /// Whether these targets are still current.
    pub(super) fn is_for(&self, topology: &Arc<Topology>, reachable: &BTreeSet<NodeId>) -> bool {
        Arc::ptr_eq(&self.topology, topology) && self.reachable == *reachable
    }

    /// The nodes to which this node copies a key that it decides: the replicas, and of a global key
    /// its owners in the region that is its home if this one is lost, in those that may return and
    /// would be its first or second home, and in the one to which it has just moved.
    pub(super) fn copies(&self, key: KeyHash) -> Arc<[NodeId]> {
        let replicas = self.replicas(key);
        let homes = self.topology.homes();
        if key.scope() != Scope::Global || !homes.fail_over() {
            return replicas;
        }
        let token = key.token;
        let is_here = homes.is_here(token);
        let next = homes.heirs(token).filter(|_| is_here).chain(homes.moved_to(token));
        let next = next.filter_map(|region| self.topology.region_owner(region, token));
        let mut others = self
            .second_owner(key)
            .into_iter()
            .chain(next)
            .filter(|id| self.reachable.contains(*id))
            .peekable();
        if others.peek().is_none() {
            return replicas;
        }
        replicas.iter().chain(others).cloned().collect()
    }

    /// The owner of a global key that is at home here, in the region that is its home if this one
    /// is lost.
    pub(super) fn second_owner(&self, key: KeyHash) -> Option<&NodeId> {
        let homes = self.topology.homes();
        let moves = key.scope() == Scope::Global && homes.fail_over() && homes.is_here(key.token);
        let second = homes.second_home(key.token).filter(|_| moves)?;
        self.topology.region_owner(second, key.token)
    }

    /// The owner of a global key in its home, if this node would own it in its second one.
    pub(super) fn first_owner(&self, key: KeyHash) -> Option<&NodeId> {
        let topology = &self.topology;
        let is_second = key.scope() == Scope::Global && topology.is_second_owner(key.token);
        is_second.then(|| topology.owner(Scope::Global, key.token)).flatten()
    }

    /// The first reachable others on the ring, whether this node is the owner or about to hand the
    /// key off.
    pub(super) fn replicas(&self, key: KeyHash) -> Arc<[NodeId]> {
        self.cached(&self.reachable_cache, key, |ring| {
            self.others(ring, key).take(self.replicas).cloned().collect()
        })
    }

    /// The nodes that may confirm a copy: the replicas, or the next node if no copies are kept.
    pub(super) fn confirming(&self, key: KeyHash) -> Arc<[NodeId]> {
        if self.replicas > 0 {
            return self.replicas(key);
        }
        let Some(ring) = self.topology.ring() else { return Arc::default() };
        self.others(ring, key).take(1).cloned().collect()
    }

    /// The key's owner by the ring, then its replicas if all nodes are reachable. Equal on all
    /// nodes with the same view.
    pub(super) fn by_ring(&self, key: KeyHash) -> Arc<[NodeId]> {
        self.cached(&self.ring_cache, key, |ring| {
            ring.replicas(key.token, self.replicas).into_iter().cloned().collect()
        })
    }

    /// Whether this node owns the key and a replica of it by the ring was none by the targets of
    /// `before`, or has restarted since.
    pub(super) fn has_new_replica(&self, before: &Self, key: KeyHash) -> bool {
        let (now, known) = (self.by_ring(key), before.by_ring(key));
        let Some((owner, replicas)) = now.split_first() else { return false };
        let start =
            |targets: &Self, id: &NodeId| targets.topology.view.get(id).map(|it| it.generation);
        let had_copies = |id: &NodeId| known.contains(id) && start(self, id) == start(before, id);
        *owner == self.topology.me && !replicas.iter().all(had_copies)
    }

    /// Whether this node is neither the owner of the key by the ring of its region nor a replica.
    /// It is no second owner of a global key then either, nor one that may have to be. Without
    /// replicas no node can tell: any may have confirmed a count, and no other one gets it.
    pub(super) fn is_stray(&self, key: KeyHash) -> bool {
        self.replicas > 0 && !self.by_ring(key).contains(&self.topology.me)
    }

    /// Whether every other node of the ring is reachable, so that none has a stand-in.
    pub(super) fn reach_all(&self) -> bool {
        let is_near = |id: &NodeId| *id == self.topology.me || self.reachable.contains(id);
        self.topology.ring().is_some_and(|ring| ring.nodes().all(is_near))
    }

    /// Whether the key's ring has any node beside this one.
    pub(super) fn has_others(&self) -> bool {
        self.topology.ring().is_some_and(|ring| ring.nodes().any(|id| *id != self.topology.me))
    }

    fn cached(
        &self,
        cache: &Cache,
        key: KeyHash,
        list: impl FnOnce(&Ring) -> Arc<[NodeId]>,
    ) -> Arc<[NodeId]> {
        let Some(ring) = self.topology.ring() else { return Arc::default() };
        cache.lock().entry(ring.arc(key.token)).or_insert_with(|| list(ring)).clone()
    }

    /// The reachable other nodes on the ring, in the order in which they should hold copies.
    fn others<'a>(&self, ring: &'a Ring, key: KeyHash) -> impl Iterator<Item = &'a NodeId> {
        let all = ring.replicas(key.token, ring.nodes().len()).into_iter();
        all.filter(|id| **id != self.topology.me && self.reachable.contains(*id))
    }
}

/// Peers that receive every change of some ranges: their next owners, during a handoff.
///
/// **Bound:** one subscription per member.
#[derive(Debug, Default)]
pub(super) struct Subscribers(pub(super) BTreeMap<NodeId, Subscription>);

#[derive(Debug, Default)]
pub(super) struct Subscription {
    pub(super) ranges: Ranges,
    /// The subscriber did not merge a state of these ranges.
    pub(super) has_refused: bool,
}

impl Subscribers {
    /// The subscribers of a key.
    pub(super) fn of(&self, key: KeyHash) -> impl Iterator<Item = &NodeId> {
        let is_subscribed =
            move |(_, subscription): &(_, &Subscription)| subscription.ranges.contains(key.token);
        self.0.iter().filter(is_subscribed).map(|(to, _)| to)
    }

    /// Whether `to` subscribes to any range.
    pub(super) fn has(&self, to: &NodeId) -> bool {
        self.0.contains_key(to)
    }

    /// `to` did not merge some of the states of these keys.
    pub(super) fn refused(&mut self, to: &NodeId, keys: &[KeyHash]) {
        if let Some(Subscription { ranges, has_refused }) = self.0.get_mut(to) {
            *has_refused |= keys.iter().any(|key| ranges.contains(key.token));
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_ownership::homes::Homes;
    use tidegate_ownership::identity::Generation;
    use tidegate_ownership::membership::{Member, MemberState, View};
    use tidegate_ownership::ranges::Range;

    use super::super::receive::will_own;
    use super::*;

    fn id(id: &str) -> NodeId {
        NodeId::new(id).expect("a valid id")
    }

    /// The targets of node `me` in a cluster of (id, region, zone).
    fn targets(
        me: &str,
        nodes: &[(&str, &str, &str)],
        unreachable: &[&str],
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
            has_lease: true,
        };
        let view = View::new(nodes.iter().map(member));
        let region = view.get(&id(me)).expect("a member").region.clone();
        let reachable = nodes.iter().map(|node| node.0).filter(|node| !unreachable.contains(node));
        let reachable = reachable.filter(|node| *node != me).map(id).collect();
        Targets::new(Arc::new(Topology::new(id(me), region, view, 64)), reachable, replicas)
    }

    fn keys() -> impl Iterator<Item = KeyHash> {
        (0..200_u64).map(|n| KeyHash { token: n.wrapping_mul(0x9e37_79b9_7f4a_7c15), tag: 16 })
    }

    const GLOBAL: u64 = 0b10;
    const THREE: [(&str, &str, &str); 3] = [("a", "eu", "1"), ("b", "eu", "1"), ("c", "eu", "2")];

    #[test]
    fn a_copy_is_in_another_zone_while_that_zone_is_reachable() {
        let all = targets("a", &THREE, &[], 1);
        assert!(
            keys().all(|key| *all.replicas(key) == [id("c")] || all.by_ring(key)[0] != id("a"))
        );
        let without_c = targets("a", &THREE, &["c"], 1);
        assert!(keys().all(|key| *without_c.replicas(key) == [id("b")]));
        assert!(keys().all(|key| targets("a", &THREE, &["b", "c"], 1).replicas(key).is_empty()));
    }

    #[test]
    fn replicas_are_distinct_and_never_the_node_itself() {
        let all = targets("a", &THREE, &[], 3);
        for key in keys() {
            let mut replicas = all.replicas(key).to_vec();
            replicas.sort();
            assert_eq!(replicas, [id("b"), id("c")]);
        }
        let none = targets("a", &THREE, &[], 0);
        assert!(keys().all(|key| none.replicas(key).is_empty()) && none.has_others());
    }

    #[test]
    fn copies_stay_in_the_region() {
        let nodes = [("a", "eu", "1"), ("b", "eu", "1"), ("c", "us", "2")];
        let targets = targets("a", &nodes, &[], 1);
        let global = keys().map(|key| KeyHash { tag: key.tag | GLOBAL, ..key });
        for key in keys().chain(global) {
            assert_eq!(*targets.copies(key), [id("b")]);
        }
        let alone = [("a", "eu", "1"), ("c", "us", "2")];
        let alone = self::targets("a", &alone, &[], 1);
        assert!(keys().all(|key| alone.replicas(key).is_empty()) && !alone.has_others());
    }

    #[test]
    fn a_global_key_has_a_copy_in_its_second_home_where_regions_fail_over() {
        use tidegate_ownership::homes::Gained;
        let nodes = [("a", "eu", "1"), ("b", "eu", "1"), ("c", "us", "2"), ("d", "ap", "2")];
        let mut targets = targets("a", &nodes, &[], 1);
        let regions = ["ap", "eu", "us"].map(str::to_owned).to_vec();
        let homes = Homes::new("eu".into(), regions).agreed(Gained::All);
        targets.topology = Arc::new(Topology::clone(&targets.topology).with_homes(homes.clone()));
        for key in keys() {
            assert_eq!(*targets.copies(key), [id("b")]);
            let global = KeyHash { tag: key.tag | GLOBAL, ..key };
            match homes.second_home(key.token).filter(|_| homes.is_here(key.token)) {
                Some("us") => assert_eq!(*targets.copies(global), [id("b"), id("c")]),
                Some(_) => assert_eq!(*targets.copies(global), [id("b"), id("d")]),
                None => assert_eq!(*targets.copies(global), [id("b")]),
            }
        }
    }

    /// With one copy in a second home, a node that dies there just before the home is lost would
    /// take it along.
    #[test]
    fn a_second_home_keeps_replicas_of_global_keys_where_regions_fail_over() {
        use tidegate_ownership::homes::Gained;
        let nodes = [("a", "eu", "1"), ("b", "us", "1"), ("c", "us", "1"), ("d", "ap", "1")];
        let b = Topology::clone(&targets("b", &nodes, &[], 1).topology);
        let fixed = Homes::new("us".into(), ["ap", "eu", "us"].map(str::to_owned).to_vec());
        let homes = fixed.clone().agreed(Gained::All);
        let (fixed, b) = (b.clone().with_homes(fixed), b.with_homes(homes.clone()));
        let mut replicated = 0;
        for token in (0..300_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let (region, global) =
                (KeyHash { token, tag: 16 }, KeyHash { token, tag: 16 | GLOBAL });
            let is_owner = b.region_owner("us", token) == Some(&b.me);
            let is_home = homes.home(token) == "us";
            let is_second = homes.second_home(token) == Some("us");
            assert_eq!(will_own(region, &b), is_owner);
            assert_eq!(will_own(global, &b), is_owner && (is_home || is_second));
            assert_eq!(will_own(global, &fixed), is_owner && is_home);
            replicated += usize::from(is_owner && is_second);
        }
        assert!(replicated > 30, "{replicated}");
    }

    #[test]
    fn a_node_is_a_new_replica_when_another_one_is_gone_or_it_restarts() {
        let all = [("a", "eu", "1"), ("b", "eu", "1"), ("c", "eu", "1"), ("d", "eu", "1")];
        let without_b: Vec<_> = all.iter().copied().filter(|(id, ..)| *id != "b").collect();
        let before = targets("a", &all, &[], 1);
        let gone = targets("a", &without_b, &[], 1);
        let far = targets("a", &all, &["b"], 1);
        let mut restarted = targets("a", &all, &[], 1);
        let started = |member: &Member| Member {
            generation: Generation(member.generation.0 + u64::from(member.id == id("b"))),
            ..member.clone()
        };
        let view = View::new(before.topology.view.members().iter().map(started));
        restarted.topology = Arc::new(Topology::new(id("a"), "eu".into(), view, 64));
        let mut own = 0;
        for key in keys() {
            let is_own = *before.by_ring(key).first().expect("an owner") == id("a");
            let has_lost = is_own && before.replicas(key).contains(&id("b"));
            assert!(!before.has_new_replica(&before, key));
            assert!(!far.has_new_replica(&before, key), "out of reach for a moment");
            assert!(!before.has_new_replica(&far, key), "it has copies");
            assert!(!is_own || gone.has_new_replica(&before, key) == has_lost);
            assert_eq!(restarted.has_new_replica(&before, key), has_lost);
            own += usize::from(has_lost);
        }
        assert!(own > 0);
    }

    /// Both sides of a digest sum the same keys.
    #[test]
    fn the_owners_of_a_global_key_in_both_homes_name_each_other() {
        use tidegate_ownership::homes::Gained;
        let nodes = [("a", "eu", "1"), ("b", "eu", "1"), ("c", "us", "2"), ("d", "ap", "2")];
        let regions = ["ap", "eu", "us"].map(str::to_owned).to_vec();
        let of = |me: &str, region: &str| {
            let mut targets = targets(me, &nodes, &[], 1);
            let homes = Homes::new(region.into(), regions.clone()).agreed(Gained::All);
            targets.topology = Arc::new(Topology::clone(&targets.topology).with_homes(homes));
            targets
        };
        let all = nodes.map(|(me, region, _)| of(me, region));
        let mut pairs = 0;
        for key in keys() {
            let global = KeyHash { tag: key.tag | GLOBAL, ..key };
            for (one, other) in all.iter().flat_map(|one| all.iter().map(move |it| (one, it))) {
                let owner = one.topology.owner(Scope::Global, key.token);
                let is_owner = owner == Some(&one.topology.me);
                let sends = is_owner && one.second_owner(global) == Some(&other.topology.me);
                assert_eq!(sends, other.first_owner(global) == Some(&one.topology.me));
                assert_eq!(one.second_owner(key).or_else(|| one.first_owner(key)), None);
                pairs += usize::from(sends);
            }
        }
        assert_eq!(pairs, keys().count());
    }

    #[test]
    fn all_nodes_compute_the_same_replicas() {
        let all: Vec<_> = ["a", "b", "c"].map(|me| targets(me, &THREE, &[], 1)).into();
        for key in keys() {
            assert!(all.iter().all(|one| one.by_ring(key) == all[0].by_ring(key)));
            assert_eq!(all[0].by_ring(key).len(), 2);
        }
    }

    #[test]
    fn a_subscription_covers_its_ranges_of_its_ring_until_it_ends() {
        let subscription = |first, last| {
            let ranges = Ranges::of([Range { first, last }]);
            Subscription { ranges, has_refused: false }
        };
        let key = |token| KeyHash { token, tag: 16 };
        let mut subscribers = Subscribers::default();
        subscribers.0.insert(id("b"), subscription(0, 5));
        subscribers.0.insert(id("b"), subscription(10, 20));
        subscribers.0.insert(id("c"), subscription(18, 30));
        let of = |subscribers: &Subscribers, token| -> Vec<NodeId> {
            subscribers.of(key(token)).cloned().collect()
        };
        assert_eq!(of(&subscribers, 15), [id("b")]);
        assert_eq!(of(&subscribers, 18), [id("b"), id("c")]);
        assert!(of(&subscribers, 3).is_empty(), "the second call replaced the first");
        let has_refused = |subscribers: &Subscribers, to: &str| subscribers.0[&id(to)].has_refused;
        subscribers.refused(&id("b"), &[key(3)]);
        assert!(!has_refused(&subscribers, "b"), "a key of another range");
        subscribers.refused(&id("b"), &[3, 15].map(key));
        assert!(has_refused(&subscribers, "b") && !has_refused(&subscribers, "c"));
        subscribers.0.remove(&id("b"));
        assert!(of(&subscribers, 15).is_empty() && subscribers.has(&id("c")));
    }
}

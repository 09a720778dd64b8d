//! What has been copied of global keys to regions that become their homes.
//!
//! While a region that is no home has nodes in sight, every node of a home sends it the counts of
//! the keys of which it would be the first or the second home: all of them once, to each node those
//! that it would own, and from then on each change ([`Homes::heirs`]). Only when every node of
//! every home has done so the region becomes a home
//! ([`Autopilot::regions_copied`](tidegate_ownership::autopilot::Autopilot::regions_copied)). So
//! counts move first, however many there are, and the keys are decided where they were meanwhile.
//! The keys that stay have their copies in the new home too: the old one may be lost at once.
//!
//! The nodes of a region are those that gossip shows with a lease, so it is complete only when they
//! have been the same for [`SEEN_FOR`].
//!
//! Nor may the clocks differ by more than either accepts of the other's counts: a region whose
//! clocks are wrong is no home before they agree.
//!
//! A node has all counts until the nodes of either region change, one of them restarts, or what was
//! sent to it may be lost, or was not merged because its store is full: then it gets them again.
//! That goes on for a while after the region has become a home, for its nodes that take over from
//! another one, and in a region that was struck off, for what it admitted last.
//!
//! **Example.** `us` decides all keys when `eu` returns with n1 and n2. Each node of `us` copies to
//! both; n2 dies, so n1 owns more keys, and each copies to n1 again. Then all of them say so to the
//! global voters, and `eu` is a home.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::{Monotonic, Span};
use tidegate_ownership::homes::Homes;
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::ring::Ring;
use tidegate_ownership::route::Topology;

/// How long after a change of the homes nodes that come into sight, or own more keys, get counts.
const COPY_FOR: Span = Span::from_secs(60);

/// How long the nodes of a region that returns, as seen from here, have to be the same before it is
/// complete. Its nodes get their leases one after the other, and gossip tells of each some rounds
/// later: one that is not seen yet has no counts.
const SEEN_FOR: Span = Span::from_secs(2);

/// One node's part. **Bound:** one entry per region.
#[derive(Debug, Default)]
pub(crate) struct HomeCopies {
    regions: BTreeMap<String, Region>,
    rounds: u64,
    /// The homes before this region was struck off.
    left: Option<Homes>,
}

#[derive(Debug)]
struct Region {
    /// The keys that were at home here by the first, and have this region as their home or their
    /// second one by the second.
    was: Homes,
    now: Homes,
    /// `None` while it is no home.
    until: Option<Monotonic>,
    /// Of this region and of that one.
    nodes: [Vec<(NodeId, Generation)>; 2],
    /// When they changed last.
    changed: Monotonic,
    /// Another one once what was copied does not count any more.
    round: u64,
    running: BTreeSet<NodeId>,
    /// Nodes that have all counts, with how often they had missed counts before.
    done: BTreeMap<NodeId, u64>,
}

/// A node that is to get the counts of keys that move to it.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) to: NodeId,
    region: String,
    round: u64,
    /// How often the node had missed counts before this copy.
    pub(crate) missed: u64,
    was: Homes,
    now: Homes,
    topology: Arc<Topology>,
}

impl HomeCopies {
    /// The homes have changed at `at`, as seen from this region.
    pub(crate) fn homes_changed(&mut self, at: Monotonic, before: &Homes, after: &Homes) {
        self.regions.retain(|region, _| after.regions().contains(region));
        let is_struck_off = !after.has_own();
        if !is_struck_off {
            self.left = None;
        } else if before.has_own() {
            self.left = Some(before.clone());
        }
        // The next homes may be lost in turn before they have what this one admitted.
        let was = &self.left.clone().unwrap_or_else(|| before.clone());
        let others = after.regions().iter().filter(|region| *region != after.own());
        for region in others.filter(|it| is_struck_off || !before.regions().contains(it)) {
            let until = Some(at.plus(COPY_FOR));
            let entry = self.entry(region, was, after);
            if entry.now.regions() != after.regions() {
                // More keys may move there; the next round begins with the nodes as they are.
                entry.nodes = Default::default();
            }
            (entry.now, entry.until) = (after.clone(), until);
        }
    }

    /// The nodes that are to get counts now. `missed` is how often a node that is reachable and
    /// accepts this one's counts has missed some until now. Each of them is
    /// [`HomeCopies::finished`] once.
    pub(crate) fn due(
        &mut self,
        at: Monotonic,
        topology: &Arc<Topology>,
        mut missed: impl FnMut(&NodeId) -> Option<u64>,
    ) -> Vec<Due> {
        let homes = topology.homes();
        let is_absent = |region: &String| homes.has_own() && homes.absent().contains(region);
        self.regions.retain(|region, entry| match entry.until {
            Some(until) => at < until,
            None => is_absent(region) && topology.region_ring(region).is_some(),
        });
        for region in homes.absent().iter().filter(|region| is_absent(region)) {
            if topology.region_ring(region).is_some() {
                self.entry(region, homes, &homes.and(region));
            }
        }
        let mut due = Vec::new();
        for (region, entry) in &mut self.regions {
            let nodes = [homes.own(), region].map(|region| nodes(topology, region));
            if entry.nodes != nodes {
                self.rounds += 1;
                (entry.nodes, entry.round, entry.changed) = (nodes, self.rounds, at);
                entry.running.clear();
                entry.done.clear();
            }
            for (node, _) in &entry.nodes[1] {
                let missed = missed(node);
                if entry.done.get(node).copied() != missed {
                    entry.done.remove(node);
                }
                let Some(missed) = missed else { continue };
                if !entry.done.contains_key(node) && entry.running.insert(node.clone()) {
                    due.push(Due {
                        to: node.clone(),
                        region: region.clone(),
                        round: entry.round,
                        missed,
                        was: entry.was.clone(),
                        now: entry.now.clone(),
                        topology: topology.clone(),
                    });
                }
            }
        }
        due
    }

    /// A copy has ended.
    pub(crate) fn finished(&mut self, due: &Due, is_done: bool) {
        let Some(entry) = self.regions.get_mut(&due.region) else { return };
        if entry.round == due.round && entry.running.remove(&due.to) && is_done {
            entry.done.insert(due.to.clone(), due.missed);
        }
    }

    /// The regions, no homes, of which every node has all counts of this one.
    pub(crate) fn complete(&self, at: Monotonic) -> impl Iterator<Item = &str> {
        let has_all = move |entry: &Region| {
            let nodes = &entry.nodes[1];
            at >= entry.changed.plus(SEEN_FOR)
                && !nodes.is_empty()
                && nodes.iter().all(|(node, _)| entry.done.contains_key(node))
        };
        let absent = self.regions.iter().filter(|(_, entry)| entry.until.is_none());
        absent.filter(move |(_, entry)| has_all(entry)).map(|(region, _)| region.as_str())
    }

    /// The entry of a region for keys that move from the homes `was`; a new one if others did.
    fn entry(&mut self, region: &str, was: &Homes, now: &Homes) -> &mut Region {
        let of_others = |entry: &Region| entry.was.regions() != was.regions();
        if self.regions.get(region).is_some_and(of_others) {
            self.regions.remove(region);
        }
        self.regions.entry(region.to_owned()).or_insert_with(|| Region {
            was: was.clone(),
            now: now.clone(),
            until: None,
            // A round begins when the nodes are known.
            nodes: Default::default(),
            changed: Monotonic::START,
            round: 0,
            running: BTreeSet::new(),
            done: BTreeMap::new(),
        })
    }
}

impl Due {
    /// Whether the key moves to the node, or its second copy does.
    pub(crate) fn includes(&self, key: KeyHash) -> bool {
        let (token, now) = (key.token, &self.now);
        let next = if now.is_here(token) { now.second_home(token) } else { Some(now.home(token)) };
        key.scope() == Scope::Global
            && self.was.is_here(token)
            && next == Some(&self.region)
            && self.topology.region_owner(&self.region, token) == Some(&self.to)
    }
}

fn nodes(topology: &Topology, region: &str) -> Vec<(NodeId, Generation)> {
    let ring = topology.region_ring(region).into_iter();
    let known = |id: &NodeId| Some((id.clone(), topology.view.get(id)?.generation));
    ring.flat_map(Ring::nodes).filter_map(known).collect()
}

#[cfg(test)]
mod tests {
    use tidegate_ownership::homes::Gained;
    use tidegate_ownership::membership::{Member, MemberState, View};

    use super::*;

    const START: Monotonic = Monotonic::START;

    fn id(id: &str) -> NodeId {
        NodeId::new(id).expect("a valid id")
    }

    fn homes(regions: &[&str]) -> Homes {
        let all = ["eu", "us"].map(str::to_owned);
        let regions = regions.iter().map(|&region| region.to_owned()).collect();
        Homes::new("us".into(), regions).agreed(Gained::All).among(&all)
    }

    /// As m1 of us sees it: nodes by name, where those of eu begin with n, and generation.
    fn topology(nodes: &[(&str, u64)], regions: &[&str]) -> Arc<Topology> {
        let member = |(node, generation): &(&str, u64)| Member {
            id: id(node),
            generation: Generation(*generation),
            addr: ([127, 0, 0, 1], 1).into(),
            region: if node.starts_with('n') { "eu".into() } else { "us".into() },
            zone: String::new(),
            state: MemberState::Up,
            rule_book: 0,
            http: None,
            has_lease: true,
        };
        let view = View::new(nodes.iter().map(member));
        let topology = Topology::new(id("m1"), "us".into(), view, 64);
        Arc::new(topology.with_homes(homes(regions)))
    }

    fn names(due: &[Due]) -> Vec<&str> {
        due.iter().map(|due| due.to.as_str()).collect()
    }

    fn complete(copies: &HomeCopies, at: Monotonic) -> Vec<&str> {
        copies.complete(at).collect()
    }

    #[test]
    fn a_region_is_complete_when_all_of_its_nodes_have_all_counts() {
        let mut copies = HomeCopies::default();
        assert!(copies.due(START, &topology(&[("m1", 1)], &["us"]), |_| Some(0)).is_empty());
        assert!(complete(&copies, START.plus(SEEN_FOR)).is_empty(), "no node of eu is in sight");

        let two = topology(&[("m1", 1), ("n1", 1), ("n2", 1)], &["us"]);
        let due = copies.due(START, &two, |_| Some(0));
        assert_eq!(names(&due), ["n1", "n2"]);
        assert!(copies.due(START, &two, |_| Some(0)).is_empty(), "both run");
        copies.finished(&due[0], true);
        copies.finished(&due[1], false);
        assert!(complete(&copies, START.plus(SEEN_FOR)).is_empty());
        let again = copies.due(START, &two, |_| Some(0));
        assert_eq!(names(&again), ["n2"], "it failed");
        copies.finished(&again[0], true);
        assert!(copies.due(START, &two, |_| Some(0)).is_empty());
        assert!(
            complete(&copies, START).is_empty(),
            "another node may be about to come into sight"
        );
        assert!(copies.due(START.plus(SEEN_FOR), &two, |_| Some(0)).is_empty());
        assert_eq!(complete(&copies, START.plus(SEEN_FOR)), ["eu"]);

        let three = topology(&[("m1", 1), ("n1", 1), ("n2", 1), ("n3", 1)], &["us"]);
        for due in copies.due(START.plus(SEEN_FOR), &three, |_| Some(0)) {
            copies.finished(&due, true);
        }
        assert!(complete(&copies, START.plus(SEEN_FOR)).is_empty());
    }

    /// What may be missing is copied again: after a restart, when a node owns more, when messages
    /// may be lost.
    #[test]
    fn what_may_be_missing_is_copied_again() {
        let mut copies = HomeCopies::default();
        let mut at = START;
        let mut copied = |nodes: &[(&str, u64)], missed: Option<u64>| {
            let nodes = topology(nodes, &["us"]);
            let due = copies.due(at, &nodes, |_| missed);
            for due in &due {
                copies.finished(due, true);
            }
            at = at.plus(SEEN_FOR);
            assert!(copies.due(at, &nodes, |_| missed).is_empty());
            let names: Vec<String> = due.iter().map(|due| due.to.to_string()).collect();
            (names.join(" "), complete(&copies, at).len())
        };
        let two = [("m1", 1), ("n1", 1), ("n2", 1)];
        assert_eq!(copied(&two, Some(0)), ("n1 n2".into(), 1));
        assert_eq!(copied(&two, Some(0)), (String::new(), 1));
        assert_eq!(copied(&two[..2], Some(0)), ("n1".into(), 1), "it owns what n2 did");
        assert_eq!(copied(&[("m1", 1), ("n1", 2)], Some(0)), ("n1".into(), 1), "it restarted");
        assert_eq!(copied(&[("m1", 1), ("n1", 2)], Some(1)), ("n1".into(), 1), "it had a stall");
        assert_eq!(copied(&[("m1", 1), ("n1", 2)], None), (String::new(), 0), "out of reach");
        assert_eq!(copied(&[("m1", 1), ("n1", 2)], Some(1)), ("n1".into(), 1));
        let more = [("m1", 1), ("m2", 1), ("n1", 2)];
        assert_eq!(copied(&more, Some(1)), ("n1".into(), 1), "this node may own more");
    }

    /// `us` is struck off for `ap` and `eu`, and `ap` is lost before it has anything.
    #[test]
    fn what_was_admitted_last_goes_to_the_homes_that_follow() {
        let of = |regions: &[&str]| {
            let regions = regions.iter().map(|&region| region.to_owned()).collect();
            Homes::new("us".into(), regions)
        };
        let mut copies = HomeCopies::default();
        let (all, two, one) = (of(&["ap", "eu", "us"]), of(&["ap", "eu"]), of(&["eu"]));
        copies.homes_changed(START, &all, &two);
        let nodes = topology(&[("m1", 1), ("n1", 1)], &["eu"]);
        let due = copies.due(START, &nodes, |_| Some(0));
        copies.finished(&due[0], true);
        assert!(copies.due(START, &nodes, |_| Some(0)).is_empty(), "it has what moved to eu");
        copies.homes_changed(START, &two, &one);
        let entry = &copies.regions["eu"];
        assert_eq!((&entry.was, &entry.now), (&all, &one));
        assert!(!copies.regions.contains_key("ap"));
        let due = copies.due(START, &nodes, |_| Some(0));
        assert_eq!(names(&due), ["n1"], "what moved to ap moves there as well");
    }

    #[test]
    fn an_old_copy_does_not_count() {
        let mut copies = HomeCopies::default();
        let due = copies.due(START, &topology(&[("m1", 1), ("n1", 1)], &["us"]), |_| Some(0));
        let restarted = topology(&[("m1", 1), ("n1", 2)], &["us"]);
        assert_eq!(names(&copies.due(START, &restarted, |_| Some(0))), ["n1"]);
        copies.finished(&due[0], true);
        assert!(complete(&copies, START.plus(SEEN_FOR)).is_empty());
    }

    #[test]
    fn a_region_that_is_a_home_again_is_followed_for_a_while() {
        let mut copies = HomeCopies::default();
        let one = [("m1", 1), ("n1", 1)];
        let due = copies.due(START, &topology(&one, &["us"]), |_| Some(0));
        copies.finished(&due[0], true);
        copies.homes_changed(START, &homes(&["us"]), &homes(&["eu", "us"]));
        let both = &["eu", "us"];
        assert!(copies.due(START, &topology(&one, both), |_| Some(0)).is_empty(), "it has all");
        assert!(complete(&copies, START.plus(SEEN_FOR)).is_empty(), "it is a home");
        let other = topology(&[("m1", 1), ("n2", 1)], both);
        let due = copies.due(START, &other, |_| Some(0));
        assert_eq!(names(&due), ["n2"], "it has taken over");
        let global = |n: u64| KeyHash { token: n << 57, tag: 0b10 };
        assert!((0..128).map(global).all(|key| due[0].includes(key)), "eu is a home of each");
        assert!(!due[0].includes(KeyHash { token: 0, tag: 0 }), "no global key");
        let later = START.plus(COPY_FOR);
        assert!(
            copies.due(later, &topology(&[("m1", 1), ("n3", 1)], both), |_| Some(0)).is_empty()
        );
    }

    /// Of three regions: a key that stays and has its second copy elsewhere is not for `eu`.
    #[test]
    fn a_region_gets_the_keys_of_which_it_is_a_home() {
        let of = |regions: &[&str]| {
            let regions = regions.iter().map(|&region| region.to_owned()).collect();
            Homes::new("us".into(), regions)
        };
        let (was, now) = (of(&["ap", "us"]), of(&["ap", "eu", "us"]));
        let due = Due {
            to: id("n1"),
            region: "eu".into(),
            round: 0,
            missed: 0,
            was: was.clone(),
            now: now.clone(),
            topology: topology(&[("m1", 1), ("n1", 1)], &["us"]),
        };
        let (mut moved, mut second, mut others) = (0, 0, 0);
        for key in (0..128).map(|n: u64| KeyHash { token: n << 57, tag: 0b10 }) {
            let moves = now.home(key.token) == "eu";
            let is_second = now.is_here(key.token) && now.second_home(key.token) == Some("eu");
            let is_due = was.is_here(key.token) && (moves || is_second);
            assert_eq!(due.includes(key), is_due, "{key:?}");
            moved += u32::from(is_due && moves);
            second += u32::from(is_due && is_second);
            others += u32::from(!is_due);
        }
        assert!(moved > 0 && second > 0 && others > 0, "{moved} {second} {others}");
    }

    #[test]
    fn a_region_that_was_struck_off_sends_what_it_admitted_last() {
        let mut copies = HomeCopies::default();
        let seen_from_us = |regions: &[&str]| homes(regions);
        copies.homes_changed(START, &seen_from_us(&["eu", "us"]), &seen_from_us(&["eu"]));
        let due = copies.due(START, &topology(&[("m1", 1), ("n1", 1)], &["eu"]), |_| Some(0));
        assert_eq!(names(&due), ["n1"]);
    }
}

//! When a node founds a cluster, and with whom. Pure.
//!
//! A node never founds because it gets no answer. It founds when the configuration says who founds,
//! and a majority of these is there and knows no cluster:
//!
//! | configuration | founds | voters |
//! |---|---|---|
//! | `cluster.founders = [names]` | the first voter, with a majority | the first 1, 3, 5 or 7 |
//! | `cluster.bootstrap_expect = n` | the first of `n` nodes | the first 1, 3, 5 or 7 of them |
//! | `tidegate bootstrap` | the node that gets the command | that node |
//!
//! The founder proposes the first map to the others, and each takes part in one founding only. The
//! cluster exists once a majority of the voters in that map has elected a leader. All possible
//! majorities of the same founders share one, also when two of them propose at once. A founder that
//! is not there yet is a placeholder among the voters: it counts for the majority without voting.
//!
//! The first members, also after a recovery, are admitted together: the leader waits until the
//! voters, and all nodes that are there and know no other cluster, have asked, for two seconds at
//! most. One of these may have the counts of the cluster before, and a node takes ranges only with
//! the counts of all members.
//!
//! With `bootstrap_expect` two clusters can arise only if twice as many nodes start at once as are
//! expected, in two groups that do not reach each other.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_ownership::cluster_map::{
    ClusterId, ClusterMap, Epoch, HomeRegions, Identity, VOTERS_MAX, Voters,
};
use tidegate_ownership::identity::NodeId;

/// Who founds the cluster of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Founders {
    /// No node: this one joins a cluster that exists.
    #[default]
    None,
    /// These.
    Named(BTreeSet<NodeId>),
    /// The first so many that know no cluster.
    Expected(usize),
    /// This node, by an operator's command.
    This,
}

/// The voters of the first map, if `me` is to propose it. `fresh` are the other nodes of the region
/// that are there and know no cluster.
pub fn voters_to_found(
    founders: &Founders,
    me: &Identity,
    fresh: &BTreeMap<NodeId, Identity>,
) -> Option<BTreeSet<Identity>> {
    let known = |name: &NodeId| {
        if *name == me.node { Some(me.clone()) } else { fresh.get(name).cloned() }
    };
    let voters: BTreeSet<Identity> = match founders {
        Founders::None => return None,
        Founders::This => [me.clone()].into(),
        Founders::Named(names) => {
            let unknown =
                |name: &NodeId| Identity { node: name.clone(), birth: Identity::UNKNOWN_BIRTH };
            let names = voters_among(names);
            names.map(|name| known(name).unwrap_or_else(|| unknown(name))).collect()
        }
        Founders::Expected(count) => {
            let all: BTreeSet<&NodeId> = fresh.keys().chain([&me.node]).collect();
            if all.len() < *count {
                return None;
            }
            all.into_iter().take(voter_count(*count)).filter_map(known).collect()
        }
    };
    let is_there = |voter: &&Identity| voter.birth != Identity::UNKNOWN_BIRTH;
    let first = voters.iter().find(is_there)?;
    let there = voters.iter().filter(is_there).count();
    (first == me && 2 * there > voters.len()).then_some(voters)
}

/// The first map of a cluster. It has no members: the founders join it as every node does.
pub fn first_map(cluster: ClusterId, voters: BTreeSet<Identity>, homes: HomeRegions) -> ClusterMap {
    ClusterMap {
        cluster,
        epoch: Epoch(1),
        voters: Voters::of(voters),
        homes,
        ..ClusterMap::default()
    }
}

/// Whether `me` may take part in founding the cluster of `map`, as another node proposes.
pub fn accepts(founders: &Founders, me: &Identity, map: &ClusterMap) -> bool {
    let names: BTreeSet<&NodeId> = map.voters.current.iter().map(|voter| &voter.node).collect();
    let is_agreed = match founders {
        Founders::None | Founders::This => false,
        Founders::Named(own) => names == voters_among(own).collect::<BTreeSet<_>>(),
        Founders::Expected(count) => names.len() == voter_count(*count),
    };
    is_agreed && map.epoch == Epoch(1) && map.voters.current.contains(me)
}

/// Those of the founders that vote: the first 1, 3, 5 or 7.
pub fn voters_among(founders: &BTreeSet<NodeId>) -> impl Iterator<Item = &NodeId> {
    founders.iter().take(voter_count(founders.len()))
}

/// The largest odd number of voters among `nodes`.
fn voter_count(nodes: usize) -> usize {
    (nodes.clamp(1, VOTERS_MAX) - 1) / 2 * 2 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str) -> Identity {
        Identity { node: NodeId::new(name).expect("a valid name"), birth: 7 }
    }

    fn named(names: &[&str]) -> Founders {
        Founders::Named(names.iter().map(|name| one(name).node).collect())
    }

    /// The voters that `me` would found with, `!` for a placeholder.
    fn founds(founders: &Founders, me: &str, fresh: &[&str]) -> Option<String> {
        let fresh = fresh.iter().map(|name| (one(name).node, one(name))).collect();
        let voters = voters_to_found(founders, &one(me), &fresh)?;
        let name = |voter: &Identity| {
            let placeholder = if voter.birth == Identity::UNKNOWN_BIRTH { "!" } else { "" };
            format!("{}{placeholder}", voter.node)
        };
        Some(voters.iter().map(name).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn named_founders_found_with_a_majority() {
        let three = named(&["a", "b", "c"]);
        assert_eq!(founds(&three, "a", &[]), None);
        assert_eq!(founds(&three, "a", &["b"]).as_deref(), Some("a b c!"));
        assert_eq!(founds(&three, "b", &["c"]).as_deref(), Some("a! b c"));
        assert_eq!(founds(&three, "b", &["a", "c"]), None, "a is to propose it");
        assert_eq!(founds(&three, "d", &["a", "b", "c"]), None, "no founder");
        let pair = named(&["a", "b"]);
        assert_eq!(founds(&pair, "a", &[]).as_deref(), Some("a"));
        assert_eq!(founds(&pair, "b", &[]), None, "does not vote");
        assert_eq!(founds(&named(&["a"]), "a", &[]).as_deref(), Some("a"));
        assert_eq!(founds(&Founders::None, "a", &["b", "c"]), None);
    }

    #[test]
    fn expected_nodes_found_when_all_are_there() {
        let three = Founders::Expected(3);
        assert_eq!(founds(&three, "a", &["b"]), None);
        assert_eq!(founds(&three, "a", &["b", "c", "d"]).as_deref(), Some("a b c"));
        assert_eq!(founds(&three, "b", &["a", "c"]), None);
        assert_eq!(founds(&Founders::Expected(4), "a", &["b", "c", "d"]).as_deref(), Some("a b c"));
    }

    #[test]
    fn two_foundings_of_the_same_founders_share_a_voter_in_every_majority() {
        let five = ["a", "b", "c", "d", "e"];
        let maps = |seen: &[&str]| {
            let me = seen.iter().min().expect("somebody");
            founds(&named(&five), me, seen).map(|_| {
                let fresh = seen.iter().map(|name| (one(name).node, one(name))).collect();
                voters_to_found(&named(&five), &one(me), &fresh).expect("voters")
            })
        };
        let one_map = maps(&["a", "b", "c"]).expect("a majority");
        let other_map = maps(&["c", "d", "e"]).expect("a majority");
        let majorities = |voters: &BTreeSet<Identity>| -> Vec<BTreeSet<NodeId>> {
            let alive: Vec<_> =
                voters.iter().filter(|one| one.birth != 0).map(|one| one.node.clone()).collect();
            (0..1_u32 << alive.len())
                .map(|set| {
                    let chosen = (0..alive.len()).filter(|at| set & 1 << at != 0);
                    chosen.map(|at| alive[at].clone()).collect::<BTreeSet<_>>()
                })
                .filter(|set| 2 * set.len() > voters.len())
                .collect()
        };
        for one in majorities(&one_map) {
            for other in majorities(&other_map) {
                assert!(!one.is_disjoint(&other));
            }
        }
    }

    #[test]
    fn only_a_founding_of_the_own_founders_is_accepted() {
        let map = |names: &[&str]| {
            first_map(
                ClusterId(1),
                names.iter().map(|name| one(name)).collect(),
                HomeRegions::default(),
            )
        };
        let three = named(&["a", "b", "c"]);
        assert!(accepts(&three, &one("b"), &map(&["a", "b", "c"])));
        assert!(!accepts(&three, &one("b"), &map(&["a", "b", "d"])));
        assert!(!accepts(&Founders::None, &one("b"), &map(&["a", "b", "c"])));
        let reborn = Identity { birth: 8, ..one("b") };
        assert!(!accepts(&three, &reborn, &map(&["a", "b", "c"])));
    }
}

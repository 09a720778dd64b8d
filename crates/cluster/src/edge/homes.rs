//! Which cores an edge follows. Pure.
//!
//! The cores of its region, in an order of its own (rendezvous hashing of its name with theirs):
//! the first [`HOMES`] that it can use. So edges spread over the cores, and one that is gone leaves
//! its edges to all others.
//!
//! A core without a lease may be cut off from the others, and its map may be old: it is taken only
//! where no other one can be.
//!
//! **Example.** An edge prefers c, a, b. It follows c and a. While c is down it follows a and b,
//! and dials c; when that is back it follows c and a again.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidegate_ownership::identity::NodeId;

/// How many cores an edge follows: one may be lost without a gap.
pub const HOMES: usize = 2;
/// In every so many choices further cores are dialed, if those before them do not answer.
const FURTHER_EVERY: usize = 10;

/// What an edge can do with a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// It is connected, and has a lease as far as the edge knows.
    Usable,
    /// It is connected, and says that it has no lease.
    WithoutLease,
    /// It is not connected, or does not answer.
    None,
}

/// What to do about the homes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// To follow; at most [`HOMES`].
    pub(super) homes: Vec<NodeId>,
    /// To dial; at most twice [`HOMES`].
    pub(super) dial: Vec<NodeId>,
}

/// `cores` in the order in which `edge` prefers them.
pub(super) fn preferred(edge: &NodeId, cores: impl Iterator<Item = NodeId>) -> Vec<NodeId> {
    let mut cores: Vec<NodeId> = cores.collect();
    cores.sort_by_cached_key(|core| {
        let mut hasher = DefaultHasher::new();
        (edge, core).hash(&mut hasher);
        hasher.finish()
    });
    cores
}

/// The homes of an edge that prefers the cores in this order. `round` counts the choices, so that
/// all cores are dialed in turn where the first ones are gone.
pub(super) fn choose(
    preferred: &[NodeId],
    round: usize,
    reach: impl Fn(&NodeId) -> Reach,
) -> Choice {
    let mut choice = Choice::default();
    let mut without_lease = Vec::new();
    for core in preferred {
        match reach(core) {
            Reach::Usable => choice.homes.push(core.clone()),
            Reach::WithoutLease => without_lease.push(core.clone()),
            Reach::None if choice.dial.len() < HOMES => choice.dial.push(core.clone()),
            Reach::None => {}
        }
        if choice.homes.len() == HOMES {
            return choice;
        }
    }
    if round.is_multiple_of(FURTHER_EVERY) && !preferred.is_empty() {
        let from = round / FURTHER_EVERY * HOMES % preferred.len();
        let further = preferred.iter().cycle().skip(from).take(HOMES.min(preferred.len()));
        let is_missing = |core: &&NodeId| reach(core) == Reach::None && !choice.dial.contains(core);
        let missing: Vec<NodeId> = further.filter(is_missing).cloned().collect();
        choice.dial.extend(missing);
    }
    without_lease.truncate(HOMES - choice.homes.len());
    choice.homes.extend(without_lease);
    choice
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn id(name: &str) -> NodeId {
        NodeId::new(name).expect("a valid name")
    }

    fn cores(count: usize) -> Vec<NodeId> {
        (0..count).map(|n| id(&format!("core-{n}"))).collect()
    }

    #[test]
    fn edges_spread_over_the_cores() {
        let (cores, edges) = (cores(32), 1_000);
        let mut followed: BTreeMap<NodeId, usize> = BTreeMap::new();
        for edge in 0..edges {
            let order = preferred(&id(&format!("edge-{edge}")), cores.iter().cloned());
            for home in choose(&order, 0, |_| Reach::Usable).homes {
                *followed.entry(home).or_default() += 1;
            }
        }
        assert_eq!(followed.values().sum::<usize>(), edges * HOMES);
        let mean = edges * HOMES / cores.len();
        assert!(followed.len() == 32 && followed.values().all(|it| *it < 2 * mean), "{followed:?}");
    }

    #[test]
    fn the_first_that_are_usable_are_followed_and_missing_ones_are_dialed() {
        let order = cores(6);
        let choice = |down: &[usize], no_lease: &[usize]| {
            let at = |core: &NodeId| order.iter().position(|it| it == core).expect("one of them");
            choose(&order, 1, |core| match at(core) {
                it if down.contains(&it) => Reach::None,
                it if no_lease.contains(&it) => Reach::WithoutLease,
                _ => Reach::Usable,
            })
        };
        let of = |at: &[usize]| -> Vec<NodeId> { at.iter().map(|at| order[*at].clone()).collect() };
        let chosen = |homes: &[usize], dial: &[usize]| Choice { homes: of(homes), dial: of(dial) };
        assert_eq!(choice(&[], &[]), chosen(&[0, 1], &[]));
        assert_eq!(choice(&[0], &[]), chosen(&[1, 2], &[0]));
        assert_eq!(choice(&[], &[0]), chosen(&[1, 2], &[]), "it may be cut off");
        assert_eq!(choice(&[], &[0, 1, 2, 3, 4, 5]), chosen(&[0, 1], &[]), "all are");
        assert_eq!(choice(&[0, 1, 2, 3, 4], &[]), chosen(&[5], &[0, 1]));
    }

    #[test]
    fn all_cores_are_dialed_in_turn_where_the_first_are_gone() {
        let order = cores(40);
        let dialed = |round| choose(&order, round, |_| Reach::None).dial;
        let all: BTreeSet<NodeId> = (0..210).flat_map(dialed).collect();
        assert_eq!(all.len(), order.len(), "within 21 seconds");
        assert!((0..210).all(|round| dialed(round).len() <= 2 * HOMES));
        assert_eq!(dialed(7), order[..HOMES], "those that are preferred have time to answer");
        assert_eq!(choose(&[], 0, |_| Reach::None), Choice::default());
    }
}

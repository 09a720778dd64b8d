//! At no moment two nodes decide one place: every order of events that three nodes can see within
//! stated bounds, and long random walks beyond them.
//!
//! The machines under test are those of `docs/adr/0001-who-owns-a-key.md`, driven as a node drives
//! them. Time is counted in ticks that pass for all nodes together, because the protocol compares
//! spans of time and never instants of two nodes. A ping that arrives late is a ping sent earlier,
//! which is believed for a shorter time: only answers are delayed. A node that is paused is one that
//! nobody reaches.
//!
//! `TIDEGATE_MODEL_DEEPER=1` walks orders of one more event, `TIDEGATE_MODEL_SEEDS=20000` that many
//! random walks.

#[path = "model/cluster.rs"]
mod cluster;
#[path = "model/moves.rs"]
mod moves;
#[path = "model/walk.rs"]
mod walk;

use std::collections::BTreeSet;

use cluster::{Cluster, LEASE};
use moves::{Bounds, Move, World};
use stateright::{Checker, Model, Property};
use tidegate_ownership::{LeaseState, Ring};
use walk::Walk;

/// Random walks for each size of a cluster.
const SEEDS: u64 = 1_000;
/// Events of one walk.
const WALK_STEPS: usize = 1_500;

/// How many events in a row, from each beginning, within which bounds: few with every fault there
/// is, more with some.
const QUESTIONS: [(usize, Bounds); 3] = [(3, EVERYTHING), (7, CRASH), (6, DOUBT)];

const EVERYTHING: Bounds = Bounds {
    ticks: 4,
    lies: 2,
    cuts: 1,
    crashes: 1,
    drains: 1,
    late: 2,
    doubled: 1,
    pings: 2,
    is_fine: true,
};

const CRASH: Bounds =
    Bounds { lies: 0, cuts: 0, drains: 0, pings: 0, is_fine: false, late: 0, ..EVERYTHING };

const DOUBT: Bounds = Bounds { lies: 1, crashes: 0, late: 1, ..CRASH };

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

/// What some order has to lead to, or nothing was shown.
const SEEN: [&str; 5] = [
    "the dead node's arc is claimed",
    "it is handed back to its next start",
    "a tenure breaks",
    "a release is refused",
    "two epochs at once",
];

/// Every order of moves from some beginnings.
struct Orders {
    beginnings: Vec<World>,
}

impl Model for Orders {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        self.beginnings.clone()
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        moves.extend(world.moves());
    }

    fn next_state(&self, world: &World, next: Move) -> Option<World> {
        let after = world.after(next);
        (after != *world).then_some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one owner", |_, world: &World| has_one_owner(&world.cluster)),
            Property::sometimes(SEEN[0], |_, world: &World| {
                let cluster = &world.cluster;
                !cluster.is_up(A) && !cluster.deciders(A).is_empty()
            }),
            Property::sometimes(SEEN[1], |_, world: &World| {
                world.cluster.nodes[A].generation == 2 && world.cluster.deciders(A) == [A]
            }),
            Property::sometimes(SEEN[2], |_, world: &World| {
                rings(&world.cluster)
                    .any(|ring| matches!(ring.lease_state(), LeaseState::Broken(_)))
            }),
            Property::sometimes(SEEN[3], |_, world: &World| world.cluster.has_thawed),
            Property::sometimes(SEEN[4], |_, world: &World| {
                let epochs: BTreeSet<_> = rings(&world.cluster).map(Ring::epoch).collect();
                epochs.len() > 1
            }),
        ]
    }
}

#[test]
#[allow(clippy::print_stderr)]
fn no_order_of_events_gives_a_place_two_owners() {
    let deeper = usize::try_from(wanted("TIDEGATE_MODEL_DEEPER", 0)).expect("a small number");
    let mut unseen: BTreeSet<&str> = SEEN.into();
    for (depth, left) in QUESTIONS {
        let depth = depth + deeper;
        let beginnings = beginnings().map(|cluster| World { cluster, left });
        let model = Orders { beginnings: beginnings.into() };
        let checker = model.checker().threads(2).target_max_depth(depth + 1).spawn_bfs().join();
        eprintln!(
            "{} unique states: all that {depth} events lead to from 5 beginnings within {left:?}",
            checker.unique_state_count()
        );
        checker.assert_no_discovery("one owner");
        unseen.retain(|name| checker.discovery(name).is_none());
    }
    assert!(unseen.is_empty(), "no order led to this: {unseen:?}");
}

#[test]
fn no_random_walk_gives_a_place_two_owners_and_each_place_finds_its_own() {
    for nodes in [3, 4] {
        let arcs = nodes + 1;
        let start = Cluster::settled(nodes, arcs);
        for seed in 1..=wanted("TIDEGATE_MODEL_SEEDS", SEEDS) {
            let mut walk = Walk::new(start.clone(), seed);
            for _ in 0..WALK_STEPS {
                walk.step();
                let last = walk.steps.len().saturating_sub(90);
                assert!(
                    has_one_owner(&walk.cluster),
                    "two owners; {nodes} nodes, seed {seed}, after {:#?}",
                    &walk.steps[last..]
                );
            }
            walk.calm_down();
            let is_up = |node: usize| walk.cluster.fact(node).is_some_and(|fact| fact.is_up);
            for arc in 0..arcs {
                if let Some(owner) = walk.cluster.owner(arc, is_up) {
                    let deciders = walk.cluster.deciders(arc);
                    assert_eq!(deciders, [owner], "{nodes} nodes, seed {seed}, arc {arc}");
                }
            }
        }
    }
}

/// Places from which the rest of a story is short.
fn beginnings() -> [Cluster; 5] {
    let settled = Cluster::settled(3, 3);
    for arc in [A, B, C] {
        assert_eq!(settled.deciders(arc), [arc]);
    }
    let mut dead = settled.clone();
    dead.crash(A);
    for node in [B, C] {
        dead.hear(node, A, None);
    }
    for _ in 0..LEASE {
        dead.pass(|_, _| true);
    }
    let mut back = dead.clone();
    back.settle();
    back.rejoin(A);
    let mut handover = back.clone();
    for node in [B, C] {
        handover.hear(node, A, handover.fact(A));
    }
    for _ in 0..=LEASE {
        handover.pass(|_, _| true);
    }
    let mut doubted = settled.clone();
    for node in [B, C] {
        doubted.hear(node, A, None);
    }
    doubted.pass(|_, _| true);
    [settled, dead, back, handover, doubted]
}

fn has_one_owner(cluster: &Cluster) -> bool {
    (0..cluster.arcs).all(|arc| cluster.deciders(arc).len() <= 1)
}

fn rings(cluster: &Cluster) -> impl Iterator<Item = &Ring> {
    (0..cluster.nodes.len()).filter_map(|node| cluster.ring(node))
}

/// A number from the environment, for a longer run.
fn wanted(name: &str, usual: u64) -> u64 {
    let text = std::env::var_os(name).and_then(|text| text.into_string().ok());
    text.map_or(usual, |text| text.parse().expect("a number"))
}

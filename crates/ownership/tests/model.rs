//! No two nodes decide one token at the same time: checked for every order of events of three nodes
//! within stated bounds, and for long random walks beyond them.
//!
//! The state machines of `docs/adr/0001-who-owns-a-key.md` are driven as a node drives them. Time
//! is counted in ticks that are common to all nodes, because the protocol compares spans of time
//! and never instants of two nodes. Only answers to pings are delayed: a ping that arrives late is
//! equivalent to a ping sent earlier, whose grant is valid for a shorter time. A paused node is one
//! that no other node reaches.
//!
//! `TIDEGATE_MODEL_DEEPER=1` explores one more event, `TIDEGATE_MODEL_SEEDS=20000` that many random
//! walks.

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
use tidegate_ownership::{LeaseState, RingOwnership};
use walk::Walk;

/// Random walks per cluster size.
const SEEDS: u64 = 1_000;
/// Events per walk.
const WALK_STEPS: usize = 1_500;

/// How many events are explored from each initial state within which bounds: few with every fault,
/// more with some.
const SEARCHES: [(usize, Bounds); 3] = [(3, EVERYTHING), (7, CRASH), (6, FALSE_ALARM)];

const EVERYTHING: Bounds = Bounds {
    ticks: 4,
    false_alarms: 2,
    cuts: 1,
    crashes: 1,
    drains: 1,
    late: 2,
    doubled: 1,
    pings: 2,
    is_fine: true,
};

const CRASH: Bounds =
    Bounds { false_alarms: 0, cuts: 0, drains: 0, pings: 0, is_fine: false, late: 0, ..EVERYTHING };

const FALSE_ALARM: Bounds = Bounds { false_alarms: 1, crashes: 0, late: 1, ..CRASH };

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

/// States that the search has to reach; otherwise it proves nothing.
const REACHED: [&str; 5] = [
    "the arc of a crashed node is claimed",
    "the arc is handed back after its restart",
    "a lease is interrupted",
    "a release is refused",
    "two epochs at once",
];

/// Every order of moves from some initial states.
struct Orders {
    initial_states: Vec<World>,
}

impl Model for Orders {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        self.initial_states.clone()
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
            Property::sometimes(REACHED[0], |_, world: &World| {
                let cluster = &world.cluster;
                !cluster.is_up(A) && !cluster.deciders(A).is_empty()
            }),
            Property::sometimes(REACHED[1], |_, world: &World| {
                world.cluster.nodes[A].generation == 2 && world.cluster.deciders(A) == [A]
            }),
            Property::sometimes(REACHED[2], |_, world: &World| {
                rings(&world.cluster)
                    .any(|ring| matches!(ring.lease_state(), LeaseState::Interrupted(_)))
            }),
            Property::sometimes(REACHED[3], |_, world: &World| world.cluster.has_rolled_back),
            Property::sometimes(REACHED[4], |_, world: &World| {
                let epochs: BTreeSet<_> = rings(&world.cluster).map(RingOwnership::epoch).collect();
                epochs.len() > 1
            }),
        ]
    }
}

#[test]
#[allow(clippy::print_stderr)]
fn no_order_of_events_gives_a_token_two_owners() {
    let deeper =
        usize::try_from(number_from_env("TIDEGATE_MODEL_DEEPER", 0)).expect("a small number");
    let mut unreached: BTreeSet<&str> = REACHED.into();
    for (depth, left) in SEARCHES {
        let depth = depth + deeper;
        let initial_states = initial_states().map(|cluster| World { cluster, left });
        let model = Orders { initial_states: initial_states.into() };
        let checker = model.checker().threads(2).target_max_depth(depth + 1).spawn_bfs().join();
        eprintln!(
            "{} unique states within {depth} events of 5 initial states and {left:?}",
            checker.unique_state_count()
        );
        checker.assert_no_discovery("one owner");
        unreached.retain(|name| checker.discovery(name).is_none());
    }
    assert!(unreached.is_empty(), "never reached: {unreached:?}");
}

#[test]
fn no_random_walk_gives_a_token_two_owners_and_each_token_reaches_its_owner() {
    for nodes in [3, 4] {
        let arcs = nodes + 1;
        let start = Cluster::settled(nodes, arcs);
        for seed in 1..=number_from_env("TIDEGATE_MODEL_SEEDS", SEEDS) {
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
            walk.heal_all();
            let is_up =
                |node: usize| walk.cluster.metadata(node).is_some_and(|metadata| metadata.is_up);
            for arc in 0..arcs {
                if let Some(owner) = walk.cluster.owner(arc, is_up) {
                    let deciders = walk.cluster.deciders(arc);
                    assert_eq!(deciders, [owner], "{nodes} nodes, seed {seed}, arc {arc}");
                }
            }
        }
    }
}

/// States from which interesting histories are short.
fn initial_states() -> [Cluster; 5] {
    let settled = Cluster::settled(3, 3);
    for arc in [A, B, C] {
        assert_eq!(settled.deciders(arc), [arc]);
    }
    let mut crashed = settled.clone();
    crashed.crash(A);
    for node in [B, C] {
        crashed.gossip(node, A, None);
    }
    for _ in 0..LEASE {
        crashed.pass(|_, _| true);
    }
    let mut back = crashed.clone();
    back.settle();
    back.rejoin(A);
    let mut handover = back.clone();
    for node in [B, C] {
        handover.gossip(node, A, handover.metadata(A));
    }
    for _ in 0..=LEASE {
        handover.pass(|_, _| true);
    }
    let mut suspected = settled.clone();
    for node in [B, C] {
        suspected.gossip(node, A, None);
    }
    suspected.pass(|_, _| true);
    [settled, crashed, back, handover, suspected]
}

fn has_one_owner(cluster: &Cluster) -> bool {
    (0..cluster.arcs).all(|arc| cluster.deciders(arc).len() <= 1)
}

fn rings(cluster: &Cluster) -> impl Iterator<Item = &RingOwnership> {
    (0..cluster.nodes.len()).filter_map(|node| cluster.ring(node))
}

/// Reads a number from the environment.
fn number_from_env(name: &str, default: u64) -> u64 {
    let text = std::env::var_os(name).and_then(|text| text.into_string().ok());
    text.map_or(default, |text| text.parse().expect("a number"))
}

//! At no moment two nodes decide one place: every order of events that three nodes can see within
//! stated bounds, and long random walks of four beyond them.
//!
//! The machines under test are those of `docs/adr/0001-who-owns-a-key.md`, driven as a node drives
//! them. Time is counted in ticks that pass for all nodes together, because the protocol compares
//! spans of time and never instants of two nodes. A ping that arrives late is a ping sent earlier,
//! which is believed for a shorter time: only answers are delayed. A node that is paused is one that
//! nobody reaches.

#[path = "tenure_model/cluster.rs"]
mod cluster;
#[path = "tenure_model/moves.rs"]
mod moves;

use cluster::Cluster;
use moves::{Bounds, Move, World};
use stateright::{Checker, Model, Property};

struct Orders {
    from: World,
}

impl Model for Orders {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        vec![self.from.clone()]
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        moves.extend(world.moves());
    }

    fn next_state(&self, world: &World, next: Move) -> Option<World> {
        let after = world.after(next);
        (after != *world).then_some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("one owner", |_, world: &World| has_one_owner(&world.cluster))]
    }
}

fn has_one_owner(cluster: &Cluster) -> bool {
    (0..cluster.arcs).all(|arc| cluster.deciders(arc).len() <= 1)
}

fn check(name: &str, bounds: Bounds) {
    let world = World { cluster: Cluster::settled(3, 3), left: bounds };
    for arc in 0..3 {
        assert_eq!(world.cluster.deciders(arc), [arc]);
    }
    let started = std::time::Instant::now();
    let checker = Orders { from: world }.checker().threads(2).spawn_bfs().join();
    eprintln!(
        "{name}: {bounds:?}: {} states, {} unique, depth {} in {:?}",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        started.elapsed()
    );
    if let Some(path) = checker.discoveries().remove("one owner") {
        let actions: Vec<_> = path.into_actions();
        panic!("two owners: {actions:#?}");
    }
}

const NONE: Bounds = Bounds {
    ticks: 4,
    lies: 0,
    cuts: 0,
    crashes: 0,
    drains: 0,
    late: 0,
    doubled: 0,
    pings: 0,
    is_fine: false,
};

#[test]
fn lies() {
    check("lies", Bounds { lies: 1, cuts: 1, ..NONE });
}
#[test]
fn crash() {
    check("crash", Bounds { crashes: 1, ..NONE });
}
#[test]
fn late() {
    check("late", Bounds { lies: 1, late: 1, ..NONE });
}

#[path = "tenure_model/walk.rs"]
mod walk;
#[test]
fn walks() {
    let mut reached = 0;
    for nodes in [3, 4] {
        for seed in 1..6000 {
            let mut walk = walk::Walk::new(Cluster::settled(nodes, nodes + 1), seed);
            for _ in 0..1500 {
                walk.step();
                reached += usize::from(!walk.cluster.deciders(0).is_empty());
                if !has_one_owner(&walk.cluster) {
                    let last = walk.steps.len().saturating_sub(90);
                    for node in 0..nodes {
                        eprintln!("{node}: {:#?}", walk.cluster.ring(node));
                    }
                    panic!(
                        "nodes {nodes} seed {seed} after {}: {:#?}",
                        walk.steps.len(),
                        &walk.steps[last..]
                    );
                }
            }
            walk.calm_down();
            for arc in 0..nodes + 1 {
                let is_up = |node: usize| walk.cluster.fact(node).is_some_and(|fact| fact.is_up);
                let owner = walk.cluster.owner(arc, is_up);
                if owner.is_none() {
                    continue;
                }
                assert_eq!(
                    walk.cluster.deciders(arc),
                    owner.into_iter().collect::<Vec<_>>(),
                    "nodes {nodes} seed {seed} arc {arc}"
                );
            }
        }
        eprintln!("{nodes} nodes ok, {reached}");
    }
}

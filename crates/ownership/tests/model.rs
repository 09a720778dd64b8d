//! No two nodes decide one token at the same time: checked for every order of events of three nodes
//! within stated bounds, and for long random walks beyond them. In the walks nodes also count hits,
//! and none decides without a hit that a member has confirmed and still has.
//!
//! The state machines of `docs/adr/0001-who-owns-a-key.md` are driven as a node drives them, and
//! each node has a clock that is a tenth too slow, right, or a tenth too fast. Only answers to
//! pings are delayed: a ping that arrives late is equivalent to a ping sent earlier, whose grant is
//! valid for a shorter time. A paused node is one that no other node reaches.
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

use cluster::{Change, Cluster, Delivery, EXPIRED};
use moves::{Bounds, Move, World};
use stateright::{Checker, Model, Property};
use tidegate_ownership::RingOwnership;
use walk::Walk;

/// Random walks per cluster size.
const SEEDS: u64 = 1_000;
/// Events per walk.
const WALK_STEPS: usize = 1_500;

/// How many events are explored from each initial state within which bounds: few with every fault,
/// more with some.
const SEARCHES: [(usize, Bounds); 4] =
    [(3, EVERYTHING), (6, CRASH), (5, FALSE_ALARM), (4, OTHER_VOTERS)];

const EVERYTHING: Bounds = Bounds {
    ticks: 4,
    cuts: 1,
    crashes: 1,
    wipes: 1,
    evictions: 2,
    drains: 1,
    replacements: 0,
    late: 2,
    doubled: 1,
    pings: 2,
    is_fine: true,
};

const CRASH: Bounds = Bounds {
    cuts: 0,
    wipes: 0,
    evictions: 1,
    drains: 0,
    replacements: 0,
    pings: 0,
    is_fine: false,
    late: 0,
    ..EVERYTHING
};

const FALSE_ALARM: Bounds = Bounds { crashes: 0, late: 1, ..CRASH };

const OTHER_VOTERS: Bounds = Bounds { crashes: 0, replacements: 1, pings: 1, ..CRASH };

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const D: usize = 3;

/// States that the search has to reach; otherwise it proves nothing.
const REACHED: [&str; 6] = [
    "the arc of an evicted node is claimed",
    "the arc is handed back after its return",
    "a lease is not renewed",
    "a release is refused",
    "two epochs at once",
    "other voters grant a lease",
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
                !cluster.is_member(A) && !cluster.deciders(A).is_empty()
            }),
            Property::sometimes(REACHED[1], |_, world: &World| {
                let newest = world.cluster.maps.last();
                let is_back = newest.is_some_and(|map| map.last_member.0 > 4);
                is_back && world.cluster.deciders(A) == [A]
            }),
            Property::sometimes(REACHED[2], |_, world: &World| {
                let cluster = &world.cluster;
                cluster.is_up(A) && cluster.is_member(A) && !cluster.has_lease(A)
            }),
            Property::sometimes(REACHED[3], |_, world: &World| world.cluster.has_rolled_back),
            Property::sometimes(REACHED[4], |_, world: &World| {
                let epochs: BTreeSet<_> = rings(&world.cluster).map(RingOwnership::epoch).collect();
                epochs.len() > 1
            }),
            Property::sometimes(REACHED[5], |_, world: &World| {
                let cluster = &world.cluster;
                let newest = cluster.maps.last();
                let is_other = newest.is_some_and(|map| {
                    cluster.nodes.get(D).is_some_and(|d| map.voters.contains(&d.identity))
                        && cluster.ring(A).is_some_and(|ring| ring.epoch() == map.epoch)
                });
                is_other && cluster.has_lease(A)
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
        let initial_states = initial_states(left.replacements > 0);
        let count = initial_states.len();
        let initial_states = initial_states.into_iter().map(|cluster| World { cluster, left });
        let model = Orders { initial_states: initial_states.collect() };
        let checker = model.checker().threads(2).target_max_depth(depth + 1).spawn_bfs().join();
        eprintln!(
            "{} unique states within {depth} events of {count} initial states and {left:?}",
            checker.unique_state_count()
        );
        checker.assert_no_discovery("one owner");
        unreached.retain(|name| checker.discovery(name).is_none());
    }
    assert!(unreached.is_empty(), "never reached: {unreached:?}");
}

#[test]
fn no_random_walk_gives_a_token_two_owners_and_each_token_reaches_its_owner() {
    for (nodes, speeds) in [(3, [10, 10, 10]), (4, [9, 11, 10]), (5, [11, 9, 11])] {
        let arcs = nodes + 1;
        let start = Cluster::settled(nodes, nodes, arcs, &speeds);
        let mut healed = 0;
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
                assert!(
                    (0..arcs).all(|arc| !walk.cluster.has_lost_hits(arc)),
                    "a confirmed hit is lost; {nodes} nodes, seed {seed}, after {:#?}",
                    &walk.steps[last..]
                );
            }
            if !walk.has_majority() {
                continue;
            }
            walk.heal_all();
            healed += 1;
            for arc in 0..arcs {
                let owner = walk.cluster.owner(arc).expect("a member");
                let deciders = walk.cluster.deciders(arc);
                assert_eq!(deciders, [owner], "{nodes} nodes, seed {seed}, arc {arc}");
            }
        }
        assert!(healed > 0, "every walk lost a majority of its voters");
    }
}

/// `A` drains and cannot hand over to `B`; `C` has released to `B` when it confirms a hit of `A`.
#[test]
fn a_hit_is_not_lost_when_its_member_is_gone_before_it_released() {
    let mut cluster = Cluster::settled(3, 3, 3, &[10]);
    assert!(cluster.commit(Change::Drain(A)));
    learn(&mut cluster, &[A, B, C]);
    cluster.pass(|from, to| !([A, B].contains(&from) && [A, B].contains(&to)));
    release(&mut cluster, &[(C, B), (B, C), (C, A), (A, C)]);
    assert_eq!(cluster.deciders(A), [A]);
    assert!(cluster.hit(A, C));
    take_over_without_a(&mut cluster);
}

/// `A` has drained and restarts. `C` learns of it when it is gone again, and has confirmed its hit:
/// by the map that `C` knows it drains.
#[test]
fn a_hit_is_not_lost_when_its_member_was_never_seen() {
    let mut cluster = Cluster::settled(3, 3, 3, &[10]);
    assert!(cluster.commit(Change::Drain(A)));
    cluster.settle();
    assert_eq!(cluster.deciders(A), [B]);
    cluster.restart(A, true);
    assert!(cluster.commit(Change::Admit(A)));
    learn(&mut cluster, &[A, B]);
    cluster.pass(|_, _| true);
    release(&mut cluster, &[(B, A)]);
    assert_eq!(cluster.deciders(A), [A]);
    assert!(cluster.hit(A, C));
    take_over_without_a(&mut cluster);
}

/// `C` drops nothing as long as `A` may decide what `B` owns, and everything afterwards.
#[test]
fn a_copy_is_dropped_when_every_member_has_what_it_owns() {
    let mut cluster = Cluster::settled(3, 3, 3, &[10]);
    assert!(cluster.commit(Change::Drain(A)));
    learn(&mut cluster, &[A, B, C]);
    cluster.pass(|from, to| !([A, B].contains(&from) && [A, B].contains(&to)));
    release(&mut cluster, &[(C, B), (B, C), (C, A), (A, C)]);
    assert!(cluster.ring(C).is_some_and(RingOwnership::is_settled));
    assert!(cluster.hit(A, C) && !cluster.drop_strays(C));
    let mut healed = cluster.clone();
    take_over_without_a(&mut cluster);
    healed.settle();
    assert_eq!(healed.deciders(A), [B]);
    assert!(healed.drop_strays(C) && !healed.has_lost_hits(A));
}

/// `A` crashes, and `B` takes its arc over.
fn take_over_without_a(cluster: &mut Cluster) {
    cluster.crash(A);
    assert!(cluster.commit(Change::Evict(A)));
    learn(cluster, &[B, C]);
    for _ in 0..=EXPIRED {
        cluster.pass(|_, _| true);
        release(cluster, &[(B, C), (C, B)]);
    }
    cluster.tick(B);
    assert_eq!(cluster.deciders(A), [B]);
    assert!(!cluster.has_lost_hits(A));
}

fn learn(cluster: &mut Cluster, nodes: &[usize]) {
    for node in nodes {
        cluster.learn(*node);
        cluster.save(*node);
    }
}

/// The first of each pair releases to the second.
fn release(cluster: &mut Cluster, pairs: &[(usize, usize)]) {
    for (from, to) in pairs {
        for _ in 0..6 {
            cluster.step(*from, *to, Delivery::Immediate);
        }
    }
}

/// `P` does not learn that `D` votes in the place of `C`, and that it is evicted afterwards. `B`
/// and
/// `C` learn of the eviction late: they were a majority of the voters that `P` knows, and are none
/// of those that are asked whether its ranges are free.
#[test]
fn voters_of_before_do_not_prolong_the_lease_of_a_node_that_missed_the_change() {
    const P: usize = 4;
    const OTHERS: [usize; 4] = [A, B, C, D];
    let mut cluster = Cluster::settled(5, 5, 5, &[10]);
    assert!(cluster.commit(Change::Replace(C, D)));
    learn(&mut cluster, &OTHERS);
    while !cluster.commit(Change::EndJoint) {
        cluster.pass(|_, _| true);
    }
    learn(&mut cluster, &OTHERS);
    let reach = |from: usize, to: usize| from != P || to == B || to == C;
    assert!(cluster.commit(Change::Evict(P)));
    learn(&mut cluster, &[A, D]);
    for _ in 0..=EXPIRED {
        cluster.pass(reach);
    }
    learn(&mut cluster, &OTHERS);
    for _ in 0..6 {
        for (from, to) in OTHERS.iter().flat_map(|from| OTHERS.map(|to| (*from, to))) {
            if from != to {
                cluster.step(from, to, Delivery::Immediate);
            }
        }
    }
    for node in OTHERS {
        cluster.tick(node);
    }
    let owner = cluster.owner(P).expect("a member");
    assert_eq!(cluster.deciders(P), [owner]);
}

/// `C` has not saved the map that evicts `A` when it restarts: it votes for `A` again, which knows
/// of nothing. So `B` must not have taken over on the word of `C`.
#[test]
fn a_voter_reports_no_map_that_a_restart_makes_it_forget() {
    let mut cluster = Cluster::settled(3, 3, 3, &[10]);
    assert!(cluster.commit(Change::Evict(A)));
    cluster.learn(B);
    cluster.save(B);
    cluster.learn(C);
    for _ in 0..=EXPIRED {
        cluster.pass(|from, to| from != A && to != A);
    }
    for (from, to) in [(C, B); 6] {
        cluster.step(from, to, Delivery::Immediate);
    }
    cluster.tick(B);
    cluster.restart(C, true);
    cluster.pass(|from, to| (from, to) == (A, C));
    assert_eq!(cluster.deciders(A), [A]);
}

/// States from which interesting histories are short: of three nodes, or of four of which three
/// vote.
fn initial_states(has_spare: bool) -> Vec<Cluster> {
    let nodes = if has_spare { 4 } else { 3 };
    let settled = Cluster::settled(nodes, nodes, nodes, &[9, 11, 10, 11]);
    for arc in 0..nodes {
        assert_eq!(settled.deciders(arc), [arc]);
    }
    let learned = |cluster: &Cluster, change: Change| {
        let mut cluster = cluster.clone();
        assert!(cluster.commit(change));
        for node in 0..nodes {
            cluster.learn(node);
            cluster.save(node);
        }
        cluster
    };
    let mut crashed = settled.clone();
    crashed.crash(A);
    let mut crashed = learned(&crashed, Change::Evict(A));
    for _ in 0..EXPIRED {
        crashed.pass(|_, _| true);
    }
    let mut back = crashed.clone();
    back.settle();
    back.restart(A, true);
    let mut handover = learned(&back, Change::Admit(A));
    for _ in 0..=EXPIRED {
        handover.pass(|_, _| true);
    }
    let mut suspected = settled.clone();
    suspected.commit(Change::Evict(A));
    suspected.learn(B);
    suspected.save(B);
    suspected.pass(|_, _| true);
    let mut states = vec![settled, crashed, back, handover, suspected];
    if has_spare {
        let settled = &states[0];
        let joint = learned(settled, Change::Replace(C, D));
        let mut half = settled.clone();
        half.commit(Change::Replace(C, D));
        for node in [A, D] {
            half.learn(node);
            half.save(node);
        }
        states.extend([joint, half]);
    }
    states
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

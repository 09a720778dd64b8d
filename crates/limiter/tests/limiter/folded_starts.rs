//! Folding the counters of earlier starts loses no hit and doubles none, and its merge is a join.
//! The reference is a G-counter per start that is never folded.

use std::collections::BTreeMap;

use crdts::{CmRDT, CvRDT, GCounter, VClock};
use proptest::prelude::*;
use tidegate_limiter::engine::delta::{ACTORS_MAX, DeltaSlice};
use tidegate_limiter::engine::{ActorCounters, ActorId, Delta, State, decide_eventual};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{Counter, KeyHash, OnFull, Options, Store};
use tidegate_limiter::units::{Hits, Span, Timestamp};

const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);
/// The number of the present slice.
const INDEX: u64 = NOW.as_secs() / 3_600;
const NODES: usize = 3;
const KEY: KeyHash = KeyHash { token: 7, tag: 7 };

fn quota() -> Quota {
    let window = Span::from_secs(3_600);
    Quota::simple(Algorithm::SlidingWindowCounter, 1_000_000, window).expect("a valid quota")
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(4_000))]

    /// Also of states that no correct node holds.
    #[test]
    fn a_merge_of_totals_is_commutative_associative_and_idempotent(
        a in state(), b in state(), c in state(),
    ) {
        let (ab, ba) = (join(&a, &b), join(&b, &a));
        prop_assert_eq!(&ab, &ba);
        prop_assert_eq!(join(&ab, &c), join(&a, &join(&b, &c)));
        prop_assert_eq!(join(&ab, &b), ab.clone());
        prop_assert_eq!(join(&ab, &ab), ab);
    }

    /// A state and its fold, merged in any order, are the fold.
    #[test]
    fn a_fold_contains_what_was_folded(state in state(), writer in 0..3_u64, start in 0..6_u64) {
        let before = state.clone();
        let mut folded = state;
        let is_folded = folded.fold(ActorId::of_start(writer, start), |_| true);
        prop_assert_eq!(is_folded, folded != before);
        prop_assert_eq!(join(&before, &folded), folded.clone());
        prop_assert!(!folded.fold(ActorId::of_start(writer, start), |_| true));
    }

    /// Nodes count, refund, crash, start again and fold what all of them have; messages are lost,
    /// repeated and late. Each node counts what it would count without folding.
    #[test]
    fn folded_counters_equal_the_reference_g_counter(ops in prop::collection::vec(op(), 1..120)) {
        let mut cluster = Model::new();
        for op in ops {
            cluster.apply(op)?;
        }
    }
}

// === a model of nodes that restart ===

#[derive(Clone, Copy, Debug)]
enum Op {
    Check {
        node: usize,
        hits: i64,
    },
    Send {
        from: usize,
        to: usize,
    },
    /// Delivers a message, which may be delivered again.
    Deliver {
        message: prop::sample::Index,
    },
    Lose {
        message: prop::sample::Index,
    },
    /// The node crashes and starts again, with its file if it has one.
    Restart {
        node: usize,
        keeps_file: bool,
    },
    WriteFile {
        node: usize,
    },
    /// All copies are collected, and the node folds.
    Fold {
        node: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let node = || 0..NODES;
    let message = any::<prop::sample::Index>;
    prop_oneof![
        4 => (node(), -3..9_i64).prop_map(|(node, hits)| Op::Check { node, hits }),
        4 => (node(), node()).prop_map(|(from, to)| Op::Send { from, to }),
        4 => message().prop_map(|message| Op::Deliver { message }),
        1 => message().prop_map(|message| Op::Lose { message }),
        2 => (node(), any::<bool>()).prop_map(|(node, keeps_file)| Op::Restart { node, keeps_file }),
        1 => node().prop_map(|node| Op::WriteFile { node }),
        2 => node().prop_map(|node| Op::Fold { node }),
    ]
}

/// Hits and refunds, by actor.
type Reference = (GCounter<ActorId>, GCounter<ActorId>);

#[derive(Clone, Default)]
struct Replica {
    state: State,
    reference: Reference,
}

struct Model {
    nodes: Vec<Replica>,
    files: Vec<Replica>,
    starts: [u64; NODES],
    in_flight: Vec<(usize, usize, Replica)>,
}

impl Model {
    fn new() -> Self {
        let all = || (0..NODES).map(|_| Replica::default()).collect();
        Self { nodes: all(), files: all(), starts: [1; NODES], in_flight: Vec::new() }
    }

    fn me(&self, node: usize) -> ActorId {
        ActorId::of_start(node as u64, self.starts[node])
    }

    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Check { node, hits } => {
                let me = self.me(node);
                self.nodes[node].check(me, hits);
            }
            Op::Send { from, to } => self.in_flight.push((from, to, self.nodes[from].clone())),
            Op::Deliver { message } if !self.in_flight.is_empty() => {
                let (_, to, copy) = message.get(&self.in_flight).clone();
                self.nodes[to].merge(&copy);
            }
            Op::Lose { message } if !self.in_flight.is_empty() => {
                self.in_flight.swap_remove(message.index(self.in_flight.len()));
            }
            Op::Deliver { .. } | Op::Lose { .. } => {}
            Op::Restart { node, keeps_file } => {
                // Its connections end, and what they carried.
                self.in_flight.retain(|(from, to, _)| *from != node && *to != node);
                let file = std::mem::take(&mut self.files[node]);
                self.nodes[node] = if keeps_file { file } else { Replica::default() };
                self.starts[node] += 1;
            }
            Op::WriteFile { node } => self.files[node] = self.nodes[node].clone(),
            Op::Fold { node } => {
                for other in 0..NODES {
                    let copy = self.nodes[other].clone();
                    self.nodes[node].merge(&copy);
                }
                let me = self.me(node);
                let own = &mut self.nodes[node];
                if let State::ActorCounters(actor_counters) = &mut own.state {
                    actor_counters.fold(me, |_| true);
                    let actors = actor_counters.actors();
                    let of_me = actors.iter().filter(|actor| actor.writer() == me.writer());
                    prop_assert!(of_me.count() <= 2, "{actors:?}");
                }
            }
        }
        for node in &self.nodes {
            prop_assert_eq!(node.sum().to_string(), node.expected().to_string());
        }
        Ok(())
    }
}

impl Replica {
    fn check(&mut self, me: ActorId, hits: i64) {
        let refund = hits.unsigned_abs().min(self.sum());
        decide_eventual(&mut self.state, me, &quota(), Hits::new(hits), NOW);
        let (used, refunded) = &mut self.reference;
        if hits < 0 {
            refunded.apply(refunded.inc_many(me, refund));
        } else {
            used.apply(used.inc_many(me, hits.unsigned_abs()));
        }
    }

    fn merge(&mut self, other: &Self) {
        self.state.merge(other.state.clone());
        self.reference.0.merge(other.reference.0.clone());
        self.reference.1.merge(other.reference.1.clone());
    }

    fn sum(&self) -> u64 {
        self.state.actor_counters().map_or(0, |actor_counters| actor_counters.sum(INDEX))
    }

    fn expected(&self) -> u64 {
        let read = |counter: &GCounter<ActorId>| {
            counter.read().to_string().parse::<u64>().expect("a small number")
        };
        read(&self.reference.0).saturating_sub(read(&self.reference.1))
    }
}

// === any state ===

fn state() -> impl Strategy<Value = ActorCounters> {
    let actor =
        (0..3_u64, 0..6_u64, prop::bool::weighted(0.3)).prop_map(|(writer, start, total)| {
            let actor = ActorId::of_start(writer, start);
            if total { actor.total() } else { actor }
        });
    let clock = || {
        prop::collection::btree_map(actor.clone(), 1..30_u64, 0..8).prop_map(|dots| VClock { dots })
    };
    (clock(), clock()).prop_map(|(used, refunded)| {
        let slices = vec![DeltaSlice { index: INDEX, used, refunded }];
        let empty = ActorCounters::new(&quota()).to_delta();
        ActorCounters::try_from(Delta { slices, ..empty }).expect("a valid delta")
    })
}

fn join(a: &ActorCounters, b: &ActorCounters) -> ActorCounters {
    let mut joined = a.clone();
    joined.merge(&b.to_delta());
    joined
}

// === many starts ===

/// A node starts 3,000 times in one window, without a disk. It counts at each start, and so does
/// its neighbour, the owner of the key. Without folding, hits are lost from the 1,023rd start on.
#[test]
fn three_thousand_starts_lose_no_hit() {
    let owner = Store::new(options());
    let mut entries_max = 0;
    let mut copies = BTreeMap::new();
    for start in 1..=3_000 {
        let (node, me) = (Store::new(options()), ActorId::of_start(1, start));
        check(&node, me);
        check(&owner, ActorId::of_start(2, 1));
        exchange(&node, &owner);
        node.fold(KEY, me, |_| true);
        exchange(&node, &owner);
        copies.insert(start, owner.actor_counters(KEY).expect("counters").to_delta());
        // A copy of some starts before arrives late.
        let late = start - start % 97 % start;
        owner.merge_actor_counters(KEY, &copies[&late], NOW);
        copies.retain(|of, _| of + 200 > start);
        for store in [&owner, &node] {
            let counted = store.actor_counters(KEY).expect("counters");
            assert_eq!(counted.sum(INDEX), 2 * start, "start {start}");
            entries_max = entries_max.max(counted.actors().len());
        }
    }
    assert!(entries_max <= 4, "{entries_max} entries");
    assert_eq!(owner.stats().actors_refused, 0);
}

/// A node without peers has all counters of its starts.
#[test]
fn a_node_alone_folds_all_keys() {
    let store = Store::new(options());
    for start in 1..=5 {
        check(&store, ActorId::of_start(1, start));
    }
    let newest = store.fold_all(ActorId::of_start(1, 5), NOW);
    assert_eq!(newest, Some(ActorId::of_start(1, 4).total()));
    let counted = store.actor_counters(KEY).expect("counters");
    assert_eq!((counted.actors().len(), counted.sum(INDEX)), (2, 5));
}

/// Generated names do not return, so they are not folded: the bound holds, and it shows.
#[test]
fn what_cannot_be_folded_is_bounded_and_counted() {
    let owner = Store::new(options());
    check(&owner, ActorId::new(0));
    let names = ACTORS_MAX as u64 + 6;
    for name in 1..=names {
        let node = Store::new(options());
        check(&node, ActorId::new(name));
        exchange(&node, &owner);
    }
    let counted = owner.actor_counters(KEY).expect("counters");
    assert_eq!(counted.actors().len(), ACTORS_MAX - 1);
    assert_eq!(owner.stats().actors_refused, names - (ACTORS_MAX as u64 - 2));
}

fn check(store: &Store, me: ActorId) {
    let counters = [Counter { key: KEY, quota: quota() }];
    assert!(store.check_eventual(&counters, Hits::ONE, me, NOW)[0].allowed);
}

fn exchange(a: &Store, b: &Store) {
    for (from, to) in [(a, b), (b, a)] {
        let sent = from.actor_counters(KEY).expect("counters").to_delta();
        to.merge_actor_counters(KEY, &sent, NOW);
    }
}

fn options() -> Options {
    Options { keys_max: 100, on_full: OnFull::Refuse, shards: Some(1) }
}

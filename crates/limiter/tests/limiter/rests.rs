//! What a node makes of its own counter and the rest: never more than was counted, never less than
//! before, and all of it once every message has arrived. For any loss, duplication and order of the
//! messages, and whichever node owns the key meanwhile.

use proptest::prelude::*;
use tidegate_limiter::engine::{ActorCounters, ActorId, Delta};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{Counter, KeyHash, OnFull, Options, Store};
use tidegate_limiter::units::{Hits, Span, Timestamp};

const NODES: usize = 5;
const NOW: Timestamp = Timestamp::from_secs(1_700_000_040);
const WINDOW: Span = Span::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Step {
    Count(usize, u8),
    Refund(usize, u8),
    /// A node sends its counter to the owner.
    Push(usize),
    /// The owner sends a node its rest.
    FanOut(usize),
    /// The owner sends a node all counters.
    Copy(usize),
    /// A message arrives; the others wait. It may arrive again.
    Arrive {
        message: usize,
        is_last: bool,
    },
    Lose(usize),
    Owner(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let node = || 0..NODES;
    prop_oneof![
        6 => (node(), 1..9_u8).prop_map(|(node, hits)| Step::Count(node, hits)),
        1 => (node(), 1..4_u8).prop_map(|(node, hits)| Step::Refund(node, hits)),
        4 => node().prop_map(Step::Push),
        4 => node().prop_map(Step::FanOut),
        1 => node().prop_map(Step::Copy),
        9 => (any::<usize>(), any::<bool>())
            .prop_map(|(message, is_last)| Step::Arrive { message, is_last }),
        1 => any::<usize>().prop_map(Step::Lose),
        1 => node().prop_map(Step::Owner),
    ]
}

struct Cluster {
    stores: Vec<Store>,
    counter: Counter,
    owner: usize,
    messages: Vec<(usize, Delta)>,
    counted: u64,
    refunded: u64,
}

impl Cluster {
    fn new() -> Self {
        let quota = Quota::simple(Algorithm::FixedWindow, 1_000_000, WINDOW).expect("valid");
        let options = Options { keys_max: 100, on_full: OnFull::Share, shards: Some(1) };
        Self {
            stores: (0..NODES).map(|_| Store::new(options)).collect(),
            counter: Counter { key: KeyHash { token: 1, tag: 1 }, quota },
            owner: 0,
            messages: Vec::new(),
            counted: 0,
            refunded: 0,
        }
    }

    fn actor(node: usize) -> ActorId {
        ActorId::of_start(node as u64 + 1, 7)
    }

    fn charge(&self, node: usize, hits: i64) {
        let (hits, me) = (Hits::new(hits), Self::actor(node));
        let verdicts = self.stores[node].check_eventual(&[self.counter], hits, me, NOW);
        assert!(verdicts[0].allowed);
    }

    fn value(&self, node: usize) -> u64 {
        let index = NOW.as_nanos() / WINDOW.as_nanos();
        let value = |counters: &ActorCounters| counters.sum(index);
        self.stores[node].read_actor_counters(self.counter.key, value).unwrap_or(0)
    }

    fn send(&mut self, from: usize, to: usize, part: impl FnOnce(&ActorCounters) -> Delta) {
        let key = self.counter.key;
        if let Some(delta) = self.stores[from].read_actor_counters(key, part)
            && !delta.is_empty()
        {
            self.messages.push((to, delta));
        }
    }

    fn push(&mut self, node: usize) {
        let own = Self::actor(node);
        self.send(node, self.owner, |counters| counters.delta_of(|actor| actor == own));
    }

    fn fan_out(&mut self, node: usize) {
        if node != self.owner {
            self.send(self.owner, node, |counters| counters.rest_of(Self::actor(node)));
        }
    }

    fn arrive(&mut self, message: usize, is_last: bool) {
        let (to, delta) = self.messages[message].clone();
        self.stores[to].merge_actor_counters(self.counter.key, &delta, NOW);
        if is_last {
            self.messages.swap_remove(message);
        }
    }

    fn take(&mut self, step: Step) {
        let waiting = self.messages.len();
        match step {
            Step::Count(node, hits) => {
                self.charge(node, i64::from(hits));
                self.counted += u64::from(hits);
            }
            // No more than the node has counted itself, so that the truth is known.
            Step::Refund(node, hits) => {
                let own = Self::actor(node);
                let index = NOW.as_nanos() / WINDOW.as_nanos();
                let count = |counters: &ActorCounters| {
                    let slices = counters.delta_of(|actor| actor == own).slices;
                    let slice = slices.iter().find(|slice| slice.index == index);
                    slice.map_or(0, |it| it.used.get(&own) - it.refunded.get(&own))
                };
                let counted = self.stores[node].read_actor_counters(self.counter.key, count);
                if counted.unwrap_or(0) >= u64::from(hits) {
                    self.charge(node, -i64::from(hits));
                    self.refunded += u64::from(hits);
                }
            }
            Step::Push(node) => self.push(node),
            Step::FanOut(node) => self.fan_out(node),
            Step::Copy(node) => {
                let theirs = Self::actor(node);
                self.send(self.owner, node, |counters| counters.delta_of(|it| it != theirs));
            }
            Step::Arrive { message, is_last } if waiting > 0 => {
                self.arrive(message % waiting, is_last);
            }
            Step::Lose(message) if waiting > 0 => {
                self.messages.swap_remove(message % waiting);
            }
            Step::Arrive { .. } | Step::Lose(_) => {}
            Step::Owner(node) => self.owner = node,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn no_node_counts_a_hit_twice_and_all_count_each_in_the_end(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut cluster = Cluster::new();
        for step in steps {
            let before: Vec<u64> = (0..NODES).map(|node| cluster.value(node)).collect();
            cluster.take(step);
            for (node, before) in before.into_iter().enumerate() {
                let value = cluster.value(node);
                prop_assert!(value <= cluster.counted, "{step:?} at {node}");
                // Only a refund makes it less.
                prop_assert!(cluster.refunded > 0 || value >= before, "{step:?} at {node}");
            }
        }
        for node in 0..NODES {
            cluster.push(node);
        }
        while !cluster.messages.is_empty() {
            cluster.arrive(0, true);
        }
        for node in 0..NODES {
            cluster.fan_out(node);
        }
        while !cluster.messages.is_empty() {
            cluster.arrive(0, true);
        }
        for node in 0..NODES {
            prop_assert_eq!(cluster.value(node), cluster.counted - cluster.refunded);
        }
    }
}

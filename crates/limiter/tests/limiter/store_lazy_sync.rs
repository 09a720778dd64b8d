//! Lazy sync: keys far from their limit are sent by the background scan only, and queued as soon as
//! they exceed the sync slack. All nodes together hold back from announcing at most a tenth of what
//! is left of a limit.

use std::collections::BTreeMap;

use tidegate_limiter::engine::{ActorCounters, ActorId, Delta};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{
    BackgroundScan, Counter, KeyHash, LocalActor, OnFull, Options, SYNC_SLACK_DIVISOR, Store,
};
use tidegate_limiter::units::{Hits, Span, Timestamp};

const NODES: u32 = 3;
/// The first second of a minute.
const START: Timestamp = Timestamp::from_secs(1_700_000_040);

fn me(node: u64) -> LocalActor {
    LocalActor { actor: ActorId::new(node + 1), slack_divisor: SYNC_SLACK_DIVISOR * NODES }
}

fn store(shards: usize) -> Store {
    Store::new(Options { keys_max: 100_000, on_full: OnFull::Share, shards: Some(shards) })
}

fn counter(n: u64, limit: u32) -> Counter {
    let quota = Quota::simple(Algorithm::SlidingWindowCounter, limit, Span::from_secs(60));
    let hash = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let key = KeyHash { token: hash.rotate_left(17), tag: hash };
    Counter { key, quota: quota.expect("a valid quota") }
}

fn hit(store: &Store, counter: Counter, hits: i64) -> bool {
    store.check_eventual(&[counter], Hits::new(hits), me(0), START)[0].allowed
}

/// The keys drained in one round, with the hits of this node.
fn round(store: &Store) -> BTreeMap<KeyHash, u64> {
    let mut sent = BTreeMap::new();
    store.drain_sync_queue(usize::MAX, |key, actor_counters| {
        let own = actor_counters.delta_of(|actor| actor == me(0).actor);
        let hits = own.slices[0].used.get(&me(0).actor);
        assert_eq!(sent.insert(key, hits), None, "drained twice");
    });
    sent
}

fn scan(store: &Store, scan: &mut BackgroundScan, rounds: usize, max: usize) -> Vec<KeyHash> {
    let mut keys = Vec::new();
    store.drain_lazy(scan, rounds, max, START, |key, _| keys.push(key));
    keys
}

#[test]
fn a_lazy_key_is_sent_by_a_full_scan_and_not_by_a_round() {
    let (store, counter) = (store(1), counter(1, 1_000));
    assert!(hit(&store, counter, 1));
    assert_eq!(round(&store)[&counter.key], 1, "peers must learn that this node checks the key");
    for _ in 0..32 {
        assert!(hit(&store, counter, 1));
    }
    assert!(round(&store).is_empty());
    assert_eq!(store.stats().sync_queue, 0, "it is not queued");
    let mut background = BackgroundScan::default();
    let rounds: Vec<_> = (0..4).map(|_| scan(&store, &mut background, 4, 100)).collect();
    assert_eq!(rounds.concat(), [counter.key]);
    assert!(scan(&store, &mut background, 1, 100).is_empty());
    assert!(round(&store).is_empty());
}

#[test]
fn a_key_beyond_the_slack_is_sent_in_the_next_round() {
    let (store, counter) = (store(1), counter(1, 1_000));
    hit(&store, counter, 1);
    round(&store);
    hit(&store, counter, 32);
    assert!(round(&store).is_empty());
    hit(&store, counter, 1);
    assert_eq!(round(&store)[&counter.key], 34);
}

#[test]
fn refunds_denials_and_requeued_keys_are_not_lazy() {
    let (store, counter) = (store(1), counter(1, 1_000));
    let make_lazy = || {
        hit(&store, counter, 1);
        round(&store);
        hit(&store, counter, 1);
        assert!(round(&store).is_empty());
    };
    make_lazy();
    hit(&store, counter, -1);
    assert_eq!(round(&store).len(), 1);
    make_lazy();
    assert!(!hit(&store, counter, 1_000));
    assert_eq!(round(&store).len(), 1, "a denial sends the unsent hits");
    make_lazy();
    // A new member may hold no counts.
    store.enqueue_sync(counter.key);
    assert_eq!(round(&store).len(), 1);
    assert!(scan(&store, &mut BackgroundScan::default(), 1, 100).is_empty());
}

#[test]
fn a_small_limit_has_no_slack() {
    let (store, counter) = (store(1), counter(1, 29));
    for hits in 1..=20 {
        hit(&store, counter, 1);
        assert_eq!(round(&store)[&counter.key], hits);
    }
}

#[test]
fn a_scan_finds_every_lazy_key_once_within_its_rounds_and_bounds() {
    for (shards, rounds, max) in [(1, 3, 20_000), (8, 3, 20_000), (8, 40, 20_000), (8, 1, 500)] {
        let store = store(shards);
        for n in 0..5_000 {
            hit(&store, counter(n, 1_000), 1);
        }
        while !round(&store).is_empty() {}
        for n in 0..5_000 {
            hit(&store, counter(n, 1_000), 1);
        }
        assert!(round(&store).is_empty());
        let (mut background, mut found) = (BackgroundScan::default(), Vec::new());
        // A round that reaches its bound extends the scan.
        for _ in 0..rounds.max(5_000_usize.div_ceil(max)) {
            let keys = scan(&store, &mut background, rounds, max);
            assert!(keys.len() < max + 64);
            found.extend(keys);
        }
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), 5_000, "{shards} shards, {rounds} rounds");
    }
}

/// For any order of checks, sends and scans: once the queues are empty and what was sent has
/// arrived, the unsent hits of all nodes are at most a tenth of what is left.
#[test]
fn all_nodes_together_hold_back_at_most_a_tenth_of_what_is_left() {
    const LIMIT: u32 = 3_000;
    let mut most = 0;
    for seed in 1..=200 {
        let mut draw = Draw(seed);
        let counter = counter(seed, LIMIT);
        let stores: Vec<Store> = (0..NODES).map(|_| store(1)).collect();
        let mut scans: Vec<BackgroundScan> =
            stores.iter().map(|_| BackgroundScan::default()).collect();
        let (mut counted, mut sent) = ([0_u64; NODES as usize], [0_u64; NODES as usize]);
        let size = 1 + draw.below(60);
        for _ in 0..300 {
            let node = draw.below(3);
            let hits = 1 + draw.below(size) as u64;
            let charge = Hits::new(i64::try_from(hits).expect("small"));
            let (store, me) = (&stores[node], me(node as u64));
            if store.check_eventual(&[counter], charge, me, START)[0].allowed {
                counted[node] += hits;
            }
            if draw.below(20) == 0 {
                let own = |all: &ActorCounters| all.delta_of(|actor| actor == me.actor);
                let mut delta = None;
                let send = |_, all: &ActorCounters| delta = Some(own(all));
                store.drain_lazy(&mut scans[node], 1, 10, START, send);
                sent[node] = delta.map_or(sent[node], |it| it.slices[0].used.get(&me.actor));
            }
            // What arrives may make others send what they hold back.
            while let Some((from, delta)) = next_announcement(&stores) {
                sent[from] = delta.slices[0].used.get(&self::me(from as u64).actor);
                for (_, store) in stores.iter().enumerate().filter(|(other, _)| *other != from) {
                    store.merge_actor_counters(counter.key, &delta, START);
                }
            }
            let unsent = counted.iter().sum::<u64>() - sent.iter().sum::<u64>();
            let left = u64::from(LIMIT).saturating_sub(counted.iter().sum());
            let bound = (left + unsent) / u64::from(SYNC_SLACK_DIVISOR);
            assert!(unsent <= bound, "seed {seed}: {unsent} of {left}");
            most = most.max(unsent * 100 / bound.max(1));
        }
    }
    assert!(most > 50, "the schedules came near the bound: {most} %");
}

/// The counter of a node that has to announce it.
fn next_announcement(stores: &[Store]) -> Option<(usize, Delta)> {
    stores.iter().enumerate().find_map(|(node, store)| {
        let mut delta = None;
        store.drain_sync_queue(10, |_, actor_counters| {
            delta = Some(actor_counters.delta_of(|actor| actor == me(node as u64).actor));
        });
        delta.map(|delta| (node, delta))
    })
}

/// splitmix64.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % bound as u64).expect("below the bound")
    }
}

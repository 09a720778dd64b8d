//! Eventual counts converge over a link that loses, duplicates and reorders messages, once the last
//! message of every node has arrived. Three stores and a schedule drawn from a seed; no I/O.

use tidegate_limiter::engine::{ActorId, Delta};
use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
use tidegate_limiter::store::{Counter, KeyHash, OnFull, Options, Store};
use tidegate_limiter::units::{Hits, Span, Timestamp};

const NODES: usize = 3;
const KEYS: u64 = 4;
const STEPS: usize = 400;
const START: Timestamp = Timestamp::from_secs(1_767_225_600);
const SLICE_NS: u64 = 10_000_000_000;

#[test]
fn lost_duplicated_and_reordered_messages_change_no_count() {
    let mut reached = Reached::default();
    for seed in 1..=200 {
        run(seed, &mut reached);
    }
    // The schedules contained enough faults.
    assert!(
        reached.lost > 1_000 && reached.duplicated > 1_000 && reached.stale > 1_000,
        "{reached:?}"
    );
}

/// How often each fault occurred, to verify that the test exercised it.
#[derive(Debug, Default)]
struct Reached {
    lost: usize,
    duplicated: usize,
    /// A message that changed nothing at its receiver.
    stale: usize,
}

struct Message {
    to: usize,
    key: KeyHash,
    actor_counters: Delta,
}

fn run(seed: u64, reached: &mut Reached) {
    let quota = quota();
    let stores: Vec<Store> = (0..NODES).map(|_| Store::new(options())).collect();
    let mut draw = Draw(seed);
    let mut now = START;
    let mut in_flight: Vec<Message> = Vec::new();
    // The reference: every admitted hit, by key and slice.
    let mut log: Vec<(KeyHash, u64)> = Vec::new();
    for _ in 0..STEPS {
        let node = draw.below(NODES);
        let key = key(draw.below(4) as u64);
        match draw.below(8) {
            0 => now = now.plus(Span::from_millis(draw.below(1_500) as u64)),
            1..=3 => {
                let counters = [Counter { key, quota }];
                let verdicts = stores[node].check_eventual(&counters, Hits::ONE, actor(node), now);
                assert!(verdicts[0].allowed, "the limit is never reached");
                log.push((key, now.as_nanos() / SLICE_NS));
            }
            4 | 5 => in_flight.extend(messages(&stores, node, key)),
            _ if in_flight.is_empty() => {}
            _ => {
                let at = draw.below(in_flight.len());
                match draw.below(4) {
                    0 => {
                        in_flight.swap_remove(at);
                        reached.lost += 1;
                    }
                    1 => {
                        deliver(&stores, &in_flight[at], now, reached);
                        reached.duplicated += 1;
                    }
                    _ => {
                        let message = in_flight.swap_remove(at);
                        deliver(&stores, &message, now, reached);
                    }
                }
            }
        }
    }
    // The last message of every node arrives, and delayed messages arrive after it.
    for node in 0..NODES {
        for tag in 0..KEYS {
            for message in messages(&stores, node, key(tag)) {
                deliver(&stores, &message, now, reached);
            }
        }
    }
    for message in in_flight {
        deliver(&stores, &message, now, reached);
    }

    for tag in 0..KEYS {
        let key = key(tag);
        let newest = log.iter().filter(|(of, _)| *of == key).map(|(_, slice)| *slice).max();
        let Some(newest) = newest else { continue };
        for slice in newest - 6..=newest {
            let exact = log.iter().filter(|hit| **hit == (key, slice)).count() as u64;
            for store in &stores {
                let counted =
                    store.actor_counters(key).map_or(0, |actor_counters| actor_counters.sum(slice));
                assert_eq!(counted, exact, "seed {seed}, key {tag}, slice {slice}");
            }
        }
    }
}

/// The own counter of `node`, to each of the others.
fn messages(stores: &[Store], node: usize, key: KeyHash) -> Vec<Message> {
    let Some(actor_counters) = stores[node].actor_counters(key) else { return Vec::new() };
    let me = actor(node);
    let own = actor_counters.delta_of(|actor| actor == me);
    let others = (0..NODES).filter(|other| *other != node);
    others.map(|to| Message { to, key, actor_counters: own.clone() }).collect()
}

fn deliver(stores: &[Store], message: &Message, now: Timestamp, reached: &mut Reached) {
    if message.actor_counters.is_empty() {
        return;
    }
    let before = stores[message.to].actor_counters(message.key);
    stores[message.to].merge_actor_counters(message.key, &message.actor_counters, now);
    reached.stale += usize::from(before == stores[message.to].actor_counters(message.key));
}

fn options() -> Options {
    Options { keys_max: 10_000, on_full: OnFull::Share, shards: Some(4) }
}

fn actor(node: usize) -> ActorId {
    ActorId::new(node as u64 + 1)
}

fn key(tag: u64) -> KeyHash {
    KeyHash { token: tag.wrapping_mul(0x9E37_79B9_7F4A_7C15), tag: tag + 1 }
}

/// A minute in six slices, with a limit that is never reached.
fn quota() -> Quota {
    Quota::new(QuotaParts {
        algorithm: Algorithm::SlidingWindowCounter,
        limit: 1_000_000,
        window: Span::from_secs(60),
        burst: 1_000_000,
        sub_windows: 6,
        queue: None,
    })
    .expect("a valid quota")
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

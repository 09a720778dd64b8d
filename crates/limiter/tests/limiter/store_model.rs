//! The store against an unbounded map without expiry: every verdict must be the same, whatever
//! expires, moves, grows or is removed.
//!
//! Cases are random and shrunk; a failing one is printed in full. Proptest writes no regression
//! file.

use std::collections::HashMap;
use std::task::Waker;

use proptest::prelude::*;
use tidegate_limiter::engine::{self, ActorId, State};
use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
use tidegate_limiter::store::{Counter, Cursor, KeyHash, OnFull, Options, Store};
use tidegate_limiter::units::{Hits, Span, Timestamp};

const ME: ActorId = ActorId::new(1);

#[derive(Clone, Debug)]
enum Op {
    Check {
        token: u64,
        hits: i64,
    },
    CheckBoth {
        token: u64,
        hits: i64,
    },
    /// Checks of both counters, one after the other.
    CheckEach {
        token: u64,
        hits: Vec<i64>,
    },
    Flood {
        first: u64,
        keys: u64,
    },
    Wait(u64),
    Remove {
        token: u64,
    },
    Expire,
    Drain(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let token = 0..12_u64;
    prop_oneof![
        6 => (token.clone(), -2..8_i64).prop_map(|(token, hits)| Op::Check { token, hits }),
        6 => (token.clone(), -2..8_i64).prop_map(|(token, hits)| Op::CheckBoth { token, hits }),
        2 => (token.clone(), prop::collection::vec(-2..8_i64, 0..5))
            .prop_map(|(token, hits)| Op::CheckEach { token, hits }),
        1 => (100..10_000_u64, 1..200_u64).prop_map(|(first, keys)| Op::Flood { first, keys }),
        3 => prop_oneof![0..2_000_000_000_u64, 0..40_000_000_000_u64].prop_map(Op::Wait),
        1 => token.prop_map(|token| Op::Remove { token }),
        1 => Just(Op::Expire),
        2 => (1..50_usize).prop_map(Op::Drain),
    ]
}

fn quota() -> impl Strategy<Value = Quota> {
    let algorithm = prop::sample::select(Algorithm::ALL.to_vec());
    (algorithm, 1..12_u32, 1..30_u64, prop::sample::select(vec![1_u8, 4, 10])).prop_map(
        |(algorithm, limit, secs, sub_windows)| {
            let is_sliding = algorithm == Algorithm::SlidingWindowCounter;
            Quota::new(QuotaParts {
                algorithm,
                limit,
                window: Span::from_secs(secs),
                burst: limit,
                sub_windows: if is_sliding { sub_windows } else { 1 },
                queue: None,
            })
            .expect("a valid quota")
        },
    )
}

/// A key spread over shards and slots as by a hash, with the flags of a real one: eventual or not,
/// no share, a long window.
fn key(token: u64, tag: u64, eventual: bool) -> KeyHash {
    let spread = |n: u64| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let flags = if eventual { 0b1001 } else { 0b1000 };
    KeyHash { token: spread(token), tag: spread(token * 16 + tag) & !0b1111 | flags }
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

type Model = HashMap<KeyHash, State>;

/// The latest drained state of each key.
#[derive(Default)]
struct Drained {
    replica: Model,
    disk: Model,
}

impl Drained {
    /// One round of replication and sync of `max` keys each, and one snapshot.
    fn take(&mut self, store: &Store, max: usize, now: Timestamp) {
        let mut changed = Vec::new();
        store.drain_replication_queue(max, |key| changed.push(key));
        let now_there = changed.into_iter().filter_map(|key| store.get(key, now));
        self.replica.extend(now_there.map(|copy| (copy.key, copy.state)));
        store.drain_sync_queue(max, |key, actor_counters| {
            self.replica.insert(key, State::ActorCounters(Box::new(actor_counters.clone())));
        });
        let (mut unsaved, mut cursor) = (Vec::new(), Some(Cursor::default()));
        while let Some(from) = cursor {
            cursor = store.drain_snapshot_queue(from, now, max, &mut unsaved).next;
        }
        self.disk.extend(unsaved.into_iter().map(|copy| (copy.key, copy.state)));
    }

    fn remove(&mut self, key: KeyHash) {
        self.replica.remove(&key);
        self.disk.remove(&key);
    }
}

/// A replica of all drained states gives the same verdicts as the store.
fn drains_every_change(
    store: &Store,
    drained: &mut Drained,
    quotas: [Quota; 2],
    now: Timestamp,
    eventual: bool,
) {
    drained.take(store, usize::MAX, now);
    let (mut held, mut cursor) = (Vec::new(), Some(Cursor::default()));
    while let Some(from) = cursor {
        cursor = store.scan(from, now, 7, |_| true, &mut held);
    }
    let answer = |state: &State, quota: &Quota| {
        let preview = if eventual { engine::preview_eventual } else { engine::preview };
        preview(state, quota, Hits::ONE, now)
    };
    for counter in held {
        for copies in [&drained.replica, &drained.disk] {
            let copy = copies.get(&counter.key).unwrap_or(&State::Absent);
            for quota in &quotas {
                assert_eq!(answer(copy, quota), answer(&counter.state, quota), "{counter:?}");
            }
        }
    }
}

/// A check without slots, bounds or expiry.
fn check_model(
    model: &mut Model,
    counters: &[Counter],
    hits: Hits,
    now: Timestamp,
    eventual: bool,
) -> Vec<engine::Verdict> {
    let preview = |model: &Model, counter: &Counter, hits| {
        let state = model.get(&counter.key).unwrap_or(&State::Absent);
        if eventual {
            engine::preview_eventual(state, &counter.quota, hits, now)
        } else {
            engine::preview(state, &counter.quota, hits, now)
        }
    };
    let previews: Vec<_> = counters.iter().map(|counter| preview(model, counter, hits)).collect();
    if hits != Hits::PEEK && (counters.len() == 1 || previews.iter().all(|v| v.allowed)) {
        let decide = |counter: &Counter| {
            let state = model.entry(counter.key).or_default();
            if eventual {
                engine::decide_eventual(state, ME, &counter.quota, hits, now)
            } else {
                engine::decide(state, &counter.quota, hits, now)
            }
        };
        return counters.iter().map(decide).collect();
    }
    if hits == Hits::PEEK {
        return previews;
    }
    let left = |(counter, verdict): (&Counter, engine::Verdict)| {
        if verdict.allowed { preview(model, counter, Hits::PEEK) } else { verdict }
    };
    counters.iter().zip(previews).map(left).collect()
}

fn agrees_with_the_model(quotas: [Quota; 2], ops: Vec<Op>, eventual: bool) {
    let options = Options { keys_max: 200_000, on_full: OnFull::Refuse, shards: Some(2) };
    let (store, mut model) = (Store::new(options), Model::new());
    store.set_replicated(Some(Waker::noop()));
    store.set_snapshotted(true);
    // The states that a replica and a disk would hold.
    let mut drained = Drained::default();
    let mut now = Timestamp::from_secs(1_700_000_000);
    let check = |model: &mut Model, counters: &[Counter], hits: i64, now| {
        let hits = Hits::new(hits);
        let verdicts = if eventual {
            store.check_eventual(counters, hits, ME, now)
        } else {
            store.check(counters, hits, now)
        };
        assert_eq!(verdicts.to_vec(), check_model(model, counters, hits, now, eventual));
    };
    let counter = |token, index: usize| Counter {
        key: key(token, index as u64, eventual),
        quota: quotas[index],
    };
    for op in ops {
        match op {
            Op::Check { token, hits } => check(&mut model, &[counter(token, 0)], hits, now),
            Op::CheckBoth { token, hits } => {
                check(&mut model, &[counter(token, 0), counter(token, 1)], hits, now);
            }
            Op::CheckEach { token, hits } => {
                let counters = [counter(token, 0), counter(token, 1)];
                if eventual {
                    for hits in hits {
                        check(&mut model, &counters, hits, now);
                    }
                    continue;
                }
                let hits: Vec<_> = hits.into_iter().map(Hits::new).collect();
                let verdicts = store.check_each_if(&counters, hits.as_slice(), now, || true);
                let one = |&hits| check_model(&mut model, &counters, hits, now, false);
                let expected: Vec<_> = hits.iter().flat_map(one).collect();
                assert_eq!(verdicts.map(|it| it.to_vec()), Some(expected));
            }
            Op::Flood { first, keys } => {
                for token in first..first + keys {
                    check(&mut model, &[counter(token, 1)], 1, now);
                }
            }
            Op::Wait(nanos) => now = now.plus(Span::from_nanos(nanos)),
            Op::Remove { token } => {
                store.remove(key(token, 0, eventual));
                model.remove(&key(token, 0, eventual));
                drained.remove(key(token, 0, eventual));
            }
            Op::Expire => store.expire(2, now),
            Op::Drain(max) => drained.take(&store, max, now),
        }
    }
    assert!(store.stats().keys <= model.len());
    drains_every_change(&store, &mut drained, quotas, now, eventual);
    // The states in the store equal those of the model.
    let (mut held, mut cursor) = (Vec::new(), Some(Cursor::default()));
    while let Some(from) = cursor {
        cursor = store.scan(from, now, 7, |_| true, &mut held);
    }
    for copy in held {
        assert_eq!(Some(&copy.state), model.get(&copy.key));
    }
}

proptest! {
    #![proptest_config(config(600))]

    #[test]
    fn strict_verdicts_equal_those_of_an_unbounded_map(
        first in quota(),
        second in quota(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        agrees_with_the_model([first, second], ops, false);
    }

    #[test]
    fn eventual_verdicts_equal_those_of_an_unbounded_map(
        first in quota(),
        second in quota(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        agrees_with_the_model([first, second], ops, true);
    }
}

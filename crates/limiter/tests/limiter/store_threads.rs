//! The store under threads: a limit of L admits exactly L hits from concurrent threads.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use tidegate_limiter::engine::ActorId;
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{Counter, KeyHash, OnFull, Options, Store};
use tidegate_limiter::units::{Hits, Span, Timestamp};

const START: Timestamp = Timestamp::from_secs(1_700_000_000);
const THREADS: usize = 4;

fn store() -> Store {
    Store::new(Options { keys_max: 10_000, on_full: OnFull::Share, shards: None })
}

fn counter(tag: u64, algorithm: Algorithm, limit: u32) -> Counter {
    let quota = Quota::simple(algorithm, limit, Span::from_secs(3_600)).expect("a valid quota");
    Counter { key: KeyHash { token: 0x5eed, tag }, quota }
}

/// How many of `requests` requests of each thread `check` admits.
fn admitted(requests: usize, check: impl Fn(usize) -> bool + Sync) -> u32 {
    let passed = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let count = (0..requests).filter(|&n| check(n)).count();
                passed.fetch_add(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
            });
        }
    });
    passed.into_inner()
}

#[test]
fn exactly_the_limit_passes_on_one_key() {
    for algorithm in Algorithm::ALL {
        let (store, counter) = (store(), counter(1, algorithm, 1_000));
        let passed = admitted(5_000, |_| store.check(&[counter], Hits::ONE, START)[0].allowed);
        assert_eq!(passed, 1_000, "{algorithm:?}");
    }
}

#[test]
fn exactly_the_limit_passes_on_one_eventual_key() {
    let (store, counter) = (store(), counter(1, Algorithm::SlidingWindowCounter, 1_000));
    let me = ActorId::new(1);
    let passed =
        admitted(5_000, |_| store.check_eventual(&[counter], Hits::ONE, me, START)[0].allowed);
    assert_eq!(passed, 1_000);
}

#[test]
fn exactly_the_smallest_of_several_limits_passes_and_the_others_are_charged_as_much() {
    let store = store();
    let counters = [
        counter(1, Algorithm::TokenBucket, 2_000),
        counter(2, Algorithm::Gcra, 700),
        counter(3, Algorithm::SlidingWindowLog, 900),
    ];
    let passed = admitted(5_000, |_| {
        store.check(&counters, Hits::ONE, START).iter().all(|verdict| verdict.allowed)
    });
    assert_eq!(passed, 700);
    let left: Vec<_> =
        store.check(&counters, Hits::PEEK, START).iter().map(|verdict| verdict.remaining).collect();
    assert_eq!(left, [1_300, 0, 200]);
}

#[test]
fn exactly_the_limit_passes_on_each_key_while_the_table_grows_and_sweeps() {
    let store = store();
    let quota = Quota::simple(Algorithm::Gcra, 20, Span::from_secs(3_600)).expect("a valid quota");
    let key = |n: usize| {
        let hash = (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        KeyHash { token: hash, tag: hash.rotate_left(32) }
    };
    let passed = admitted(30 * 500, |n| {
        let counter = Counter { key: key(n % 500), quota };
        store.check(&[counter], Hits::ONE, START)[0].allowed
    });
    assert_eq!(passed, 500 * 20);
    assert_eq!(store.stats().keys, 500);
}

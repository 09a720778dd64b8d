//! Checks against a store after it merged input.

use tidegate_limiter::engine::first_hit_window::CREDIT_MAX;
use tidegate_limiter::engine::{ActorId, Verdict};
use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
use tidegate_limiter::store::OnFull;
use tidegate_limiter::store::{Counter, KeyHash, Options, Store};
use tidegate_limiter::units::{Hits, Span, Timestamp};

use crate::NOW;

/// Small, so that a single message can fill the store.
const KEYS_MAX: usize = 8;

/// An empty store for [`KEYS_MAX`] keys.
pub fn small_store() -> Store {
    Store::new(Options { keys_max: KEYS_MAX, on_full: OnFull::Share, shards: Some(1) })
}

/// Asserts that the store respects its size limit.
pub fn assert_within_bounds(store: &Store) {
    let stats = store.stats();
    assert!(stats.keys <= KEYS_MAX, "{stats:?}");
}

/// Checks `key` with quotas of every kind, also kinds that differ from its state: a rule may have
/// changed.
pub fn check_all_quotas(store: &Store, key: KeyHash) {
    for quota in quotas() {
        check(store, &[Counter { key, quota }]);
    }
}

/// Checks with the current time, a later one and wrong clocks; with hits, refunds and peeks.
pub fn check(store: &Store, counters: &[Counter]) {
    let window = counters.first().map_or(Span::ZERO, |counter| counter.quota.window());
    let times = [NOW, NOW.plus(window), Timestamp::EPOCH, Timestamp::NEVER];
    for now in times {
        for hits in [0, 1, -1, i64::MAX, i64::MIN] {
            let hits = Hits::new(hits);
            assert_sane(counters, &store.check(counters, hits, now));
            let me = ActorId::new(7);
            assert_sane(counters, &store.check_eventual(counters, hits, me, now));
        }
    }
    assert_within_bounds(store);
}

/// Asserts that there is one verdict per counter, and that `remaining` is at most the capacity.
fn assert_sane(counters: &[Counter], verdicts: &[Verdict]) {
    assert_eq!(counters.len(), verdicts.len());
    for (Counter { quota, .. }, verdict) in counters.iter().zip(verdicts) {
        // The queue, and the request that passes.
        let queue = quota.queue().map_or(0, |waiting| waiting + 1);
        // Hits that a record says were given back beyond the limit.
        let is_credited = quota.algorithm() == Algorithm::FirstHitWindow;
        let credit = if is_credited { u32::from(CREDIT_MAX) } else { 0 };
        let capacity = quota.limit().max(quota.burst()).max(queue) + credit;
        assert!(verdict.remaining <= capacity, "{verdict:?} of {quota:?}");
    }
}

/// Quotas of every algorithm and kind.
fn quotas() -> impl Iterator<Item = Quota> {
    let simple = Algorithm::ALL.map(|algorithm| (algorithm, 1, None));
    let extended =
        [(Algorithm::SlidingWindowCounter, 60, None), (Algorithm::LeakyBucket, 1, Some(5))];
    simple.into_iter().chain(extended).map(|(algorithm, sub_windows, queue)| {
        let (limit, window) = (100, Span::from_secs(60));
        let parts = QuotaParts { algorithm, limit, window, burst: limit, sub_windows, queue };
        Quota::new(parts).expect("a valid quota")
    })
}

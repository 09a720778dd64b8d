//! A store that was told something, and everything that may be asked of it then.

use tidegate_limiter::store::OnFull;
use tidegate_limiter::engine::{ActorId, Verdict};
use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
use tidegate_limiter::store::{Counter, KeyHash, Options, Store};
use tidegate_limiter::units::{Hits, Span, Timestamp};

use crate::NOW;

/// Few, so that a message of some keys fills it.
const KEYS_MAX: usize = 8;

/// An empty store with little room.
pub fn store() -> Store {
    Store::new(Options { keys_max: KEYS_MAX, on_full: OnFull::Share, shards: Some(1) })
}

/// The store holds no more than it may.
pub fn is_within_bounds(store: &Store) {
    let stats = store.stats();
    assert!(stats.keys <= KEYS_MAX, "{stats:?}");
}

/// Asks for `key` under rules of every form, those that its state is not of among them: a rule may
/// have been changed since.
pub fn ask_all(store: &Store, key: KeyHash) {
    for quota in quotas() {
        ask(store, &[Counter { key, quota }]);
    }
}

/// Asks now, later, and by clocks that are wrong; takes, gives back and looks.
pub fn ask(store: &Store, counters: &[Counter]) {
    let window = counters.first().map_or(Span::ZERO, |counter| counter.quota.window());
    let times = [NOW, NOW.plus(window), Timestamp::EPOCH, Timestamp::NEVER];
    for now in times {
        for hits in [0, 1, -1, i64::MAX, i64::MIN] {
            let hits = Hits::new(hits);
            are_sane(counters, &store.check(counters, hits, now));
            let me = ActorId::new(7);
            are_sane(counters, &store.check_eventual(counters, hits, me, now));
        }
    }
    is_within_bounds(store);
}

/// One verdict a counter, and none that names more than there is.
fn are_sane(counters: &[Counter], verdicts: &[Verdict]) {
    assert_eq!(counters.len(), verdicts.len());
    for (Counter { quota, .. }, verdict) in counters.iter().zip(verdicts) {
        // A queue holds those that wait and the one that passes.
        let queue = quota.queue().map_or(0, |waiting| waiting + 1);
        let most = quota.limit().max(quota.burst()).max(queue);
        assert!(verdict.remaining <= most, "{verdict:?} of {quota:?}");
    }
}

/// A quota of every algorithm and form.
fn quotas() -> impl Iterator<Item = Quota> {
    let forms = Algorithm::ALL.map(|algorithm| (algorithm, 1, None));
    let others =
        [(Algorithm::SlidingWindowCounter, 60, None), (Algorithm::LeakyBucket, 1, Some(5))];
    forms.into_iter().chain(others).map(|(algorithm, sub_windows, queue)| {
        let (limit, window) = (100, Span::from_secs(60));
        let parts = QuotaParts { algorithm, limit, window, burst: limit, sub_windows, queue };
        Quota::new(parts).expect("a valid quota")
    })
}

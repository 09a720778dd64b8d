//! Replication of strict keys and snapshots of long keys: every change is drained once, within the
//! bounds of the queues.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};

use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::engine::{ActorId, State};
use tidegate_limiter::policy::{Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{
    Counter, Cursor, KeyHash, KeyHasher, MergeOutcome, OnFull, Options, Store, StoredCounter,
};
use tidegate_limiter::units::{Hits, Span, Timestamp};

const START: Timestamp = Timestamp::from_secs(1_700_000_040);
const MINUTE: u64 = 60;
const WEEK: u64 = 604_800;

fn store() -> Store {
    let store = Store::new(Options { keys_max: 100_000, on_full: OnFull::Share, shards: Some(2) });
    store.set_replicated(Some(Waker::noop()));
    store
}

fn limit(algorithm: Algorithm, n: u64, secs: u64, mode: Mode) -> Counter {
    let quota = Quota::simple(algorithm, 10, Span::from_secs(secs)).expect("a valid quota");
    let value = n.to_string();
    let entry = Entry { key: "n", value: &value };
    let key =
        KeyHasher::new([3; 16]).descriptor("d", &[entry]).counter(&quota, mode, Scope::Region);
    Counter { key, quota }
}

fn counter(n: u64) -> Counter {
    limit(Algorithm::Gcra, n, MINUTE, Mode::Strict)
}

fn hit(store: &Store, counter: Counter, hits: i64) -> bool {
    store.check(&[counter], Hits::new(hits), START)[0].allowed
}

fn changed(store: &Store, max: usize) -> Vec<KeyHash> {
    let mut changed = Vec::new();
    assert_eq!(store.drain_replication_queue(max, |key| changed.push(key)), changed.len());
    changed
}

fn unsaved(store: &Store) -> BTreeSet<KeyHash> {
    let (mut found, mut from) = (Vec::new(), Some(Cursor::default()));
    while let Some(cursor) = from {
        from = store.drain_snapshot_queue(cursor, START, 5, &mut found).next;
    }
    let keys: BTreeSet<_> = found.iter().map(|counted| counted.key).collect();
    assert_eq!(keys.len(), found.len(), "a key was drained twice");
    keys
}

#[test]
fn a_changed_key_is_drained_once() {
    let store = store();
    for _ in 0..5 {
        assert!(hit(&store, counter(1), 1));
    }
    assert_eq!(changed(&store, 10), [counter(1).key]);
    assert!(changed(&store, 10).is_empty());
    hit(&store, counter(1), -1);
    assert_eq!(changed(&store, 10), [counter(1).key], "a refund is a change");
}

#[test]
fn a_check_that_changes_nothing_is_not_queued() {
    let store = store();
    let window = limit(Algorithm::FixedWindow, 2, MINUTE, Mode::Strict);
    for limit in [counter(1), window] {
        assert!(hit(&store, limit, 10));
    }
    assert_eq!(changed(&store, 10).len(), 2);
    assert!(!hit(&store, counter(1), 1));
    hit(&store, counter(1), 0);
    assert!(changed(&store, 10).is_empty());
    assert!(!hit(&store, window, 1));
    assert_eq!(changed(&store, 10), [window.key], "a fixed window counts denied hits");
    assert!(!hit(&store, counter(3), 11));
    assert!(changed(&store, 10).is_empty());
}

#[test]
fn a_key_that_could_not_be_sent_is_queued_again() {
    let store = store();
    hit(&store, counter(1), 1);
    for key in changed(&store, 10) {
        store.enqueue_replication(key);
        store.enqueue_replication(key);
    }
    assert_eq!(changed(&store, 10), [counter(1).key]);
    store.enqueue_replication(counter(2).key);
    assert!(changed(&store, 10).is_empty(), "the key does not exist");
}

#[test]
fn local_shares_eventual_keys_and_merges_are_not_queued_for_replication() {
    let (mine, theirs) = (store(), store());
    let share = Counter { key: counter(1).key.share(), ..counter(1) };
    hit(&mine, share, 1);
    let eventual = limit(Algorithm::SlidingWindowCounter, 1, MINUTE, Mode::Eventual);
    mine.check_eventual(&[eventual], Hits::ONE, ActorId::new(1), START);
    hit(&theirs, counter(2), 1);
    let copy = theirs.get(counter(2).key, START).expect("it was just checked");
    assert_eq!(mine.merge(copy, START), MergeOutcome::Merged { changed: true });
    assert!(changed(&mine, 10).is_empty());
    let mut actor_counters = Vec::new();
    mine.drain_sync_queue(10, |key, _| actor_counters.push(key));
    assert_eq!(actor_counters, [eventual.key]);
}

#[test]
fn a_store_that_is_not_replicated_has_no_queue() {
    let store = store();
    hit(&store, counter(1), 1);
    store.set_replicated(None);
    hit(&store, counter(2), 1);
    assert!(changed(&store, 10).is_empty());
    assert_eq!(store.stats().replication_queue, 0);
    store.set_replicated(Some(Waker::noop()));
    assert_eq!(changed(&store, 10), [counter(1).key], "it was not sent yet");
}

/// An idle node is woken by the first change and by none while that is not drained.
#[test]
fn the_first_change_of_a_shard_wakes() {
    #[derive(Default)]
    struct Wakes(AtomicU64);
    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let store = Store::new(Options { keys_max: 1_000, on_full: OnFull::Share, shards: Some(1) });
    let wakes = Arc::new(Wakes::default());
    let woken = || wakes.0.swap(0, Ordering::Relaxed);
    store.set_replicated(Some(&wakes.clone().into()));
    assert_eq!(woken(), 1, "there may be keys that were queued before");
    assert!(changed(&store, 10).is_empty());
    for _ in 0..2 {
        hit(&store, counter(2), 1);
        assert_eq!(woken(), 1);
        hit(&store, counter(2), 1);
        hit(&store, counter(3), 1);
        assert_eq!(woken(), 0, "it knows");
        assert_eq!(changed(&store, 1).len(), 1);
        hit(&store, counter(4), 1);
        assert_eq!(woken(), 0, "it has not drained all");
        assert_eq!(changed(&store, 10).len(), 2);
    }
    store.set_replicated(None);
    hit(&store, counter(5), 1);
    assert_eq!(woken(), 0);
}

#[test]
fn every_change_is_drained_although_the_queue_is_bounded() {
    let store = store();
    let keys: BTreeSet<_> = (0..20_000).map(|n| counter(n).key).collect();
    let eventual = |n| limit(Algorithm::SlidingWindowCounter, n, MINUTE, Mode::Eventual);
    let actor_counters: BTreeSet<_> = (0..5_000).map(|n| eventual(n).key).collect();
    for n in 0..20_000 {
        hit(&store, counter(n), 1);
        if n < 5_000 {
            store.check_eventual(&[eventual(n)], Hits::ONE, ActorId::new(1), START);
        }
    }
    assert!(store.stats().replication_queue <= 2 * 1_024, "{:?}", store.stats());
    let (mut found, mut found_eventual) = (BTreeSet::new(), BTreeSet::new());
    for round in 0.. {
        let keys = changed(&store, 700);
        // The scan for eventual keys covers the same slots and leaves strict keys alone.
        store.drain_sync_queue(300, |key, _| {
            found_eventual.insert(key);
        });
        if keys.is_empty() {
            break;
        }
        found.extend(keys);
        if round < 10 {
            hit(&store, counter(round), 1);
        }
    }
    assert_eq!(found, keys);
    assert_eq!(found_eventual, actor_counters);
    assert_eq!((store.stats().replication_queue, store.stats().sync_queue), (0, 0));
}

#[test]
fn every_change_of_a_long_key_is_unsaved_until_it_is_drained() {
    let store = store();
    store.set_snapshotted(true);
    let strict = limit(Algorithm::TokenBucket, 1, WEEK, Mode::Strict);
    let eventual = limit(Algorithm::SlidingWindowCounter, 2, WEEK, Mode::Eventual);
    let merged = limit(Algorithm::FixedWindow, 3, WEEK, Mode::Strict);
    let actor_counters = limit(Algorithm::FixedWindow, 4, WEEK, Mode::Eventual);
    let me = ActorId::new(1);
    let change = |hits| {
        hit(&store, strict, hits);
        hit(&store, counter(5), hits);
        store.check_eventual(&[eventual], Hits::new(hits), me, START);
    };
    change(1);
    let index = u32::try_from(START.as_secs() / WEEK).expect("this century");
    let state = State::FixedWindow { index, used: 7 };
    let expires = Timestamp::from_secs(u64::from(index + 1) * WEEK);
    store.merge(StoredCounter { key: merged.key, state, expires }, START);
    let other = self::store();
    other.check_eventual(&[actor_counters], Hits::ONE, ActorId::new(2), START);
    let delta = other.actor_counters(actor_counters.key).expect("it was just checked").to_delta();
    store.merge_actor_counters(actor_counters.key, &delta, START);
    assert_eq!(
        unsaved(&store),
        BTreeSet::from([strict, eventual, merged, actor_counters].map(|c| c.key))
    );
    assert!(unsaved(&store).is_empty());

    change(0);
    store.merge_actor_counters(actor_counters.key, &delta, START);
    assert!(unsaved(&store).is_empty(), "nothing changed");
    change(1);
    assert_eq!(unsaved(&store), BTreeSet::from([strict, eventual].map(|c| c.key)));
    store.enqueue_snapshot(strict.key);
    store.enqueue_snapshot(counter(5).key);
    assert_eq!(unsaved(&store), BTreeSet::from([strict.key]), "it could not be written");
}

#[test]
fn a_store_without_snapshots_marks_nothing() {
    let store = store();
    hit(&store, limit(Algorithm::Gcra, 1, WEEK, Mode::Strict), 1);
    assert!(unsaved(&store).is_empty());
}

//! Synchronisation of eventual keys: every change is drained, urgent ones first, within the bounds
//! of the queues; the counts of peers are merged.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use tidegate_limiter::engine::ActorId;
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{
    Counter, Cursor, KeyHash, LocalActor, MergeOutcome, OnFull, Options, SYNC_SLACK_DIVISOR, Store,
};
use tidegate_limiter::units::{Hits, Span, Timestamp};

const ME: ActorId = ActorId::new(1);
const PEER: ActorId = ActorId::new(2);
/// The first second of a minute.
const START: Timestamp = Timestamp::from_secs(1_700_000_040);

fn store() -> Store {
    Store::new(Options { keys_max: 100_000, on_full: OnFull::Share, shards: Some(1) })
}

fn counter(n: u64, limit: u32) -> Counter {
    let quota = Quota::simple(Algorithm::SlidingWindowCounter, limit, Span::from_secs(60));
    let hash = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let key = KeyHash { token: hash.rotate_left(17), tag: hash };
    Counter { key, quota: quota.expect("a valid quota") }
}

fn hit(store: &Store, counter: Counter, hits: i64, now: Timestamp) -> bool {
    store.check_eventual(&[counter], Hits::new(hits), ME, now)[0].allowed
}

fn drained(store: &Store, max: usize) -> Vec<KeyHash> {
    let mut keys = Vec::new();
    assert_eq!(store.drain_sync_queue(max, |key, _| keys.push(key)), keys.len());
    keys
}

#[test]
fn a_changed_key_is_drained_once() {
    let store = store();
    for _ in 0..5 {
        assert!(hit(&store, counter(1, 100), 1, START));
    }
    let mut counted = Vec::new();
    store.drain_sync_queue(10, |key, actor_counters| {
        counted.push((key, actor_counters.delta_of(|actor| actor == ME)));
    });
    assert_eq!(counted.len(), 1);
    assert_eq!(counted[0].0, counter(1, 100).key);
    assert_eq!(counted[0].1.slices[0].used.get(&ME), 5);
    assert!(drained(&store, 10).is_empty());
    hit(&store, counter(1, 100), 1, START);
    assert_eq!(drained(&store, 10).len(), 1);
}

#[test]
fn a_key_that_could_not_be_sent_is_queued_again() {
    let store = store();
    hit(&store, counter(1, 100), 1, START);
    for key in drained(&store, 10) {
        store.enqueue_sync(key);
        store.enqueue_sync(key);
    }
    assert_eq!(drained(&store, 10), [counter(1, 100).key]);
    store.enqueue_sync(counter(2, 100).key);
    assert!(drained(&store, 10).is_empty());
}

/// One of three nodes.
fn one_of_three() -> LocalActor {
    LocalActor { actor: ME, slack_divisor: 3 * SYNC_SLACK_DIVISOR }
}

fn urgent(store: &Store) -> Vec<KeyHash> {
    let mut keys = Vec::new();
    store.drain_urgent_sync(usize::MAX, |key, _| keys.push(key));
    keys
}

#[test]
fn keys_of_which_much_of_what_is_left_is_held_back_are_drained_first() {
    let store = store();
    let charge = |n, hits| {
        let hits = Hits::new(hits);
        assert!(store.check_eventual(&[counter(n, 100)], hits, one_of_three(), START)[0].allowed);
    };
    for n in 0..50 {
        charge(n, 1);
    }
    assert!(urgent(&store).is_empty(), "1 × 30 of 99");
    charge(30, 3);
    assert_eq!(urgent(&store), [counter(30, 100).key], "4 × 30 of 96");
    charge(30, 2);
    charge(40, 70);
    assert!(urgent(&store) == [counter(40, 100).key], "2 × 30 of 94; all of what is left");
    charge(41, 70);
    let rest = drained(&store, 100);
    assert_eq!((rest[0], rest.len()), (counter(41, 100).key, 49));
    charge(41, 1);
    assert_eq!(urgent(&store), [counter(41, 100).key], "of the last 30 each one");
}

#[test]
fn a_merge_makes_hits_urgent_that_were_few_before() {
    let (here, there) = (store(), store());
    let counter = counter(1, 100);
    here.check_eventual(&[counter], Hits::new(2), one_of_three(), START);
    assert!(urgent(&here).is_empty(), "2 × 30 of 98");
    for (hits, is_urgent) in [(38, false), (1, true), (1, false)] {
        there.check_eventual(&[counter], Hits::new(hits), PEER, START);
        let delta = there.actor_counters(counter.key).expect("counted").to_delta();
        here.merge_actor_counters(counter.key, &delta, START);
        assert_eq!(!urgent(&here).is_empty(), is_urgent, "{hits} more: 2 × 30 of what is left");
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn the_first_urgent_key_wakes_the_sender() {
    let (store, wakes) = (store(), Arc::new(Wakes::default()));
    let count = || wakes.0.load(Ordering::Relaxed);
    let charge = |n, hits| {
        store.check_eventual(&[counter(n, 100)], Hits::new(hits), one_of_three(), START);
    };
    store.set_synchronised(Some(&wakes.clone().into()));
    charge(1, 1);
    assert_eq!(count(), 0);
    charge(1, 10);
    charge(2, 10);
    assert_eq!(count(), 1, "the second is taken with the first");
    assert_eq!(urgent(&store).len(), 2);
    charge(1, 10);
    assert_eq!(count(), 2);
    store.set_synchronised(None);
    store.set_synchronised(Some(&wakes.clone().into()));
    assert_eq!(count(), 3, "one was queued before");
}

#[test]
fn peeks_and_denials_are_not_queued_except_the_first_denial_of_a_slice() {
    let store = store();
    hit(&store, counter(1, 10), 10, START);
    assert_eq!(drained(&store, 10).len(), 1);
    assert!(!hit(&store, counter(1, 10), 1, START));
    hit(&store, counter(1, 10), 0, START);
    assert!(drained(&store, 10).is_empty());

    let next = START.plus(Span::from_secs(60));
    hit(&store, counter(1, 10), 0, next);
    assert!(drained(&store, 10).is_empty());
    assert!(!hit(&store, counter(1, 10), 1, next));
    assert_eq!(drained(&store, 10).len(), 1, "peers must learn that this node checks the key");
    assert!(!hit(&store, counter(1, 10), 1, next));
    assert!(drained(&store, 10).is_empty());
}

#[test]
fn a_denial_beside_other_limits_is_queued_once_per_slice_too() {
    let store = store();
    let token = counter(1, 10).key.token;
    let counters = [counter(1, 10), Counter { key: KeyHash { token, tag: 9 }, ..counter(1, 1) }];
    let check = |now| store.check_eventual(&counters, Hits::ONE, ME, now);
    assert!(check(START).iter().all(|verdict| verdict.allowed));
    assert_eq!(drained(&store, 10).len(), 2);
    assert!(!check(START)[1].allowed);
    assert!(drained(&store, 10).is_empty());
    assert!(!check(START.plus(Span::from_secs(60)))[1].allowed);
    assert_eq!(drained(&store, 10).len(), 2);
}

#[test]
fn every_change_is_drained_although_the_queues_are_bounded() {
    let store = store();
    let keys: BTreeSet<_> = (0..20_000).map(|n| counter(n, 100).key).collect();
    for n in 0..20_000 {
        hit(&store, counter(n, 100), if n % 3 == 0 { 90 } else { 1 }, START);
    }
    assert!(store.stats().sync_queue <= 2 * 1_024, "{:?}", store.stats());
    let mut found = BTreeSet::new();
    for round in 0_u64.. {
        let keys = drained(&store, 700);
        if keys.is_empty() {
            break;
        }
        found.extend(keys);
        // Keys that were sent change again behind the position of the scan.
        if round < 10 {
            hit(&store, counter(round, 100), 1, START);
        }
    }
    assert_eq!(found, keys);
    assert_eq!(store.stats().sync_queue, 0);
}

#[test]
fn counts_of_peers_are_merged_and_used_in_decisions() {
    let (mine, theirs) = (store(), store());
    let key = counter(1, 10).key;
    theirs.check_eventual(&[counter(1, 10)], Hits::new(8), PEER, START);
    let delta = theirs.actor_counters(key).expect("it was just checked").to_delta();
    assert_eq!(
        mine.merge_actor_counters(key, &delta, START),
        MergeOutcome::Merged { changed: true }
    );
    assert_eq!(
        mine.merge_actor_counters(key, &delta, START),
        MergeOutcome::Merged { changed: false }
    );
    assert!(drained(&mine, 10).is_empty());
    assert!(!hit(&mine, counter(1, 10), 3, START));
    assert_eq!(drained(&mine, 10).len(), 1);
    assert!(hit(&mine, counter(1, 10), 2, START));
    assert!(!hit(&mine, counter(1, 10), 1, START));
    assert_eq!(
        mine.actor_counters(key).map(|all| all.to_delta().slices[0].used.dots.len()),
        Some(2)
    );
}

/// The slot of a key that expired stays until the sweep reaches it, or the key is used again.
#[test]
fn counts_of_peers_are_merged_into_a_key_that_has_expired_here() {
    let (here, there) = (store(), store());
    let counter = counter(1, 10);
    assert!(hit(&here, counter, 1, START));
    let later = START.plus(Span::from_secs(600));
    assert!(there.check_eventual(&[counter], Hits::new(10), PEER, later)[0].allowed);
    let theirs = there.actor_counters(counter.key).expect("counted");
    // A denied check resets the slot; the sweep has not removed it.
    assert!(!here.check_eventual(&[counter], Hits::new(11), ME, later)[0].allowed);
    let delta = theirs.delta_of(|actor| actor == PEER);
    for (when, changed) in [("first", true), ("again", false)] {
        let merged = here.merge_actor_counters(counter.key, &delta, later);
        assert_eq!(merged, MergeOutcome::Merged { changed }, "{when}");
    }
    assert!(!hit(&here, counter, 1, later), "the peer has used the limit up");
}

#[test]
fn expired_counts_of_peers_create_no_key() {
    let (mine, theirs) = (store(), store());
    let key = counter(1, 10).key;
    theirs.check_eventual(&[counter(1, 10)], Hits::new(8), PEER, START);
    let delta = theirs.actor_counters(key).expect("it was just checked").to_delta();
    let later = START.plus(Span::from_secs(120));
    assert_eq!(mine.merge_actor_counters(key, &delta, later), MergeOutcome::Expired);
    assert_eq!(mine.stats().keys, 0);
    // Within the following window it still matters.
    let sooner = START.plus(Span::from_secs(119));
    assert_eq!(
        mine.merge_actor_counters(key, &delta, sooner),
        MergeOutcome::Merged { changed: true }
    );
    mine.expire(1, later);
    assert_eq!(mine.stats().keys, 0);
}

#[test]
fn a_scan_finds_every_selected_key_once_during_inserts() {
    let store = Store::new(Options { keys_max: 100_000, on_full: OnFull::Share, shards: Some(8) });
    let selected = |key: KeyHash| key.token >> 63 == 1;
    for n in 0..10_000 {
        hit(&store, counter(n, 100), 1, START);
    }
    let (mut found, mut cursor, mut extra) = (Vec::new(), Some(Cursor::default()), 10_000);
    while let Some(from) = cursor {
        let before = found.len();
        cursor = store.scan(from, START, 100, selected, &mut found);
        assert!(found.len() - before <= 100);
        hit(&store, counter(extra, 100), 1, START);
        extra += 1;
    }
    let found: Vec<_> = found.iter().map(|counted| counted.key).collect();
    let distinct: BTreeSet<_> = found.iter().copied().collect();
    assert_eq!(found.len(), distinct.len());
    let steady = (0..10_000).map(|n| counter(n, 100).key).filter(|key| selected(*key));
    assert!(steady.into_iter().all(|key| distinct.contains(&key)));
    assert!(distinct.into_iter().all(selected));
}

//! First-hit windows and the behaviors of requests, as the store has them: rules that change,
//! copies, and requests that take what is left.

use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::engine::grant::Terms;
use tidegate_limiter::engine::{Behavior, Retry, State};
use tidegate_limiter::policy::{Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{
    Ask, Checks, Counter, CounterKind, KeyHash, KeyHasher, MergeOutcome, OnFull, Options, Store,
    StoredCounter,
};
use tidegate_limiter::units::{Hits, Span, Timestamp};

const DRAINS: Behavior = Behavior { drains: true, credits: false };
const CREDITS: Behavior = Behavior { drains: false, credits: true };

fn store() -> Store {
    Store::new(Options { keys_max: 100, on_full: OnFull::Share, shards: Some(1) })
}

fn at(millis: u64) -> Timestamp {
    Timestamp::from_secs(1_790_000_000).plus(Span::from_millis(millis))
}

/// A limit that the client sends along.
fn sent(algorithm: Algorithm, limit: u32, millis: u64) -> Counter {
    let quota = Quota::simple(algorithm, limit, Span::from_millis(millis)).expect("valid");
    let descriptor = KeyHasher::new([7; 16]).descriptor("d", &[Entry { key: "a", value: "b" }]);
    let kind = CounterKind::of_any_window(&quota, Mode::Strict, Scope::Region);
    Counter { key: descriptor.counter_of(kind), quota }
}

fn first_hit(limit: u32, millis: u64) -> Counter {
    sent(Algorithm::FirstHitWindow, limit, millis)
}

/// Whether each was admitted, and what remains.
fn check(
    store: &Store,
    counters: &[Counter],
    (hits, behavior): (i64, Behavior),
    millis: u64,
) -> Vec<(bool, u32)> {
    let hits = [Hits::new(hits)];
    let checks = Checks { hits: &hits, behavior };
    let verdicts = store.check_each_if(counters, checks, at(millis), || true).expect("owned");
    verdicts.iter().map(|verdict| (verdict.allowed, verdict.remaining)).collect()
}

fn plain(store: &Store, counter: Counter, hits: i64, millis: u64) -> (bool, u32) {
    check(store, &[counter], (hits, Behavior::default()), millis)[0]
}

#[test]
fn limit_and_window_may_change_while_it_is_open() {
    let store = store();
    assert_eq!(plain(&store, first_hit(10, 1_000), 3, 0), (true, 7));
    assert_eq!(plain(&store, first_hit(5, 1_000), 1, 100), (true, 1));
    assert_eq!(plain(&store, first_hit(5, 5_000), 1, 900), (true, 0));
    assert_eq!(plain(&store, first_hit(5, 5_000), 1, 4_999), (false, 0));
    assert_eq!(plain(&store, first_hit(5, 2_000), 1, 4_999), (true, 4), "its end has passed");
}

/// What the slot says of its expiry follows the window: it is not dropped while it is open.
#[test]
fn a_window_that_became_longer_stays_in_the_table() {
    let store = store();
    plain(&store, first_hit(10, 1_000), 3, 0);
    plain(&store, first_hit(10, 60_000), 1, 900);
    let stored = store.get(first_hit(10, 1_000).key, at(59_999)).expect("it is open");
    assert_eq!(stored.state, State::FirstHitWindow { opened: at(0), used: 4, credit: 0 });
    assert_eq!(store.get(stored.key, at(60_001)), None);
}

#[test]
fn a_refused_request_that_drains_takes_what_is_left_at_the_store() {
    for algorithm in [Algorithm::FirstHitWindow, Algorithm::TokenBucket, Algorithm::Gcra] {
        let (store, counter) = (store(), sent(algorithm, 10, 60_000));
        assert_eq!(check(&store, &[counter], (0, DRAINS), 0), [(true, 10)]);
        assert_eq!(check(&store, &[counter], (3, DRAINS), 0), [(true, 7)]);
        assert_eq!(check(&store, &[counter], (100, DRAINS), 0), [(false, 0)]);
        assert_eq!(plain(&store, counter, 1, 0), (false, 0), "{algorithm:?}");
    }
}

/// A flood of refused requests is no flood of messages; what the first one drained is sent.
#[test]
fn a_replica_gets_to_know_what_was_drained_once() {
    let (store, counter) = (store(), first_hit(10, 60_000));
    store.set_replicated(Some(std::task::Waker::noop()));
    let queued = || store.drain_replication_queue(10, |_| {});
    plain(&store, counter, 3, 0);
    assert_eq!(queued(), 1);
    assert_eq!(plain(&store, counter, 8, 1), (false, 7));
    assert_eq!(queued(), 0);
    check(&store, &[counter], (8, DRAINS), 2);
    assert_eq!(queued(), 1);
    check(&store, &[counter], (8, DRAINS), 3);
    assert_eq!(queued(), 0);
}

#[test]
fn of_several_limits_those_that_refuse_are_drained() {
    let store = store();
    let counters = [first_hit(10, 60_000), sent(Algorithm::TokenBucket, 100, 60_000)];
    assert_eq!(check(&store, &counters, (20, DRAINS), 0), [(false, 0), (true, 100)]);
    assert_eq!(plain(&store, counters[0], 1, 0), (false, 0));
    assert_eq!(plain(&store, counters[1], 100, 0), (true, 0));
}

/// One request for too much would otherwise take it from all keys that found no room.
#[test]
fn a_shared_counter_is_neither_drained_nor_credited() {
    let store = Store::new(Options { keys_max: 1, on_full: OnFull::Share, shards: Some(1) });
    let mut counters = (0..1_000_u64).map(|token| {
        let mut counter = first_hit(10, 60_000);
        counter.key.token = token;
        counter
    });
    // Fills the only shard.
    let is_shared = |counter: &Counter| {
        plain(&store, *counter, 1, 0);
        store.get(counter.key, at(0)).is_none()
    };
    let shared = counters.find(is_shared).expect("keys_max is reached");
    let other = counters.next().expect("many");
    let left = plain(&store, other, 0, 0);
    assert_eq!(check(&store, &[shared], (100, DRAINS), 0), [(false, left.1)]);
    // Nor where several limits are decided together.
    let bucket = sent(Algorithm::TokenBucket, 100, 60_000);
    let both = [shared, Counter { key: KeyHash { tag: 8, ..shared.key }, ..bucket }];
    assert_eq!(check(&store, &both, (50, DRAINS), 0), [(false, left.1), (true, 100)]);
    assert_eq!(plain(&store, other, 0, 0), left);
    check(&store, &[shared], (-100, CREDITS), 0);
    assert_eq!(plain(&store, other, 0, 0), left);
}

#[test]
fn what_is_granted_is_not_drained_and_ends_with_the_window() {
    let (store, counter) = (store(), first_hit(100, 1_000));
    let longest = Span::from_secs(9);
    let terms = Terms { longest, useful: Span::ZERO };
    let ask = Ask { wanted: 30, held: 0, divisor: 2, terms, shortest: Span::ZERO };
    let leased = store.check_leased_if(&[counter], &[Hits::ONE], Some(ask), &[], at(0), || true);
    let granted = leased.and_then(|leased| leased.granted).expect("there is room");
    assert_eq!((granted.hits, granted.term), (30, Span::from_secs(1)));
    let more = Ask { wanted: 4, held: 30, divisor: 2, terms, shortest: Span::ZERO };
    let later = store.check_leased_if(&[counter], &[Hits::PEEK], Some(more), &[], at(700), || true);
    let later = later.and_then(|leased| leased.granted).expect("there is room");
    assert_eq!((later.hits, later.term), (4, Span::from_millis(300)), "no longer than the window");
    let hits = [Hits::new(90)];
    let checks = Checks { hits: &hits, behavior: DRAINS };
    let refused = store.check_leased_if(&[counter], checks, None, &[], at(800), || true);
    let refused = refused.expect("owned").verdicts[0];
    assert_eq!((refused.remaining, refused.excess), (0, 25));
    assert_eq!(refused.retry, Retry::After(Span::from_millis(200)));
    let ends = (terms, at(1_000));
    let give_back =
        |now| store.give_back_if(&[counter], &granted.marks, 30, ends, at(now), || true)[0];
    assert_eq!(give_back(999), 30);
    assert_eq!(plain(&store, counter, 0, 999), (true, 30));
    assert_eq!(give_back(1_000), 0, "the window is over");
}

/// Requests of one key may name several durations.
#[test]
fn neither_a_refused_request_nor_hits_that_come_back_end_a_window_earlier() {
    let (store, day, short) = (store(), first_hit(100, 86_400_000), first_hit(100, 1_000));
    let terms = Terms { longest: Span::from_secs(9), useful: Span::ZERO };
    let ask = Ask { wanted: 10, held: 0, divisor: 2, terms, shortest: Span::ZERO };
    let charged = |counter, hits, now| {
        let hits = [Hits::new(hits)];
        store.check_leased_if(&[counter], &hits, Some(ask), &[], at(now), || true).expect("owned")
    };
    assert!(charged(day, 50, 0).granted.is_some());
    for (hits, now) in [(400, 500), (400, 2_000), (0, 500), (0, 2_000)] {
        let asked = charged(short, hits, now);
        assert_eq!(asked.granted, None, "{hits} hits of another duration at {now}");
        assert_eq!(plain(&store, day, 0, 3_000), (true, 40));
    }

    // One that is admitted opens another window, which the next one makes longer.
    let granted = charged(short, 1, 4_000).granted.expect("there is room");
    assert_eq!((plain(&store, day, 50, 4_500), granted.hits), ((true, 39), 10));
    let ends = (terms, at(5_000));
    let back = |now| store.give_back_if(&[short], &granted.marks, 5, ends, at(now), || true)[0];
    assert_eq!((back(4_600), back(8_000)), (5, 5), "also when the shorter one is over");
    assert_eq!(plain(&store, day, 0, 80_000_000), (true, 49));
}

#[test]
fn hits_are_credited_where_that_is_asked_for() {
    let (store, counter) = (store(), first_hit(2, 5_000));
    assert_eq!(check(&store, &[counter], (-1, CREDITS), 0), [(true, 3)]);
    assert_eq!(check(&store, &[counter], (-1, CREDITS), 1), [(true, 4)]);
    assert_eq!(check(&store, &[counter], (4, CREDITS), 2), [(true, 0)]);
    assert_eq!(check(&store, &[counter], (-1, CREDITS), 3), [(true, 1)]);
    assert_eq!(plain(&store, counter, i64::MIN, 4), (true, 2));
}

/// A replica whose clock is behind holds the last window when the copy of the next one arrives.
#[test]
fn a_window_that_was_over_is_not_joined_with_the_next_one() {
    let key = first_hit(10, 1_000).key;
    let copy = |opened, used, expires| StoredCounter {
        key,
        state: State::FirstHitWindow { opened: at(opened), used, credit: 0 },
        expires: at(expires),
    };
    let (full, next) = (copy(0, 10, 1_000), copy(1_000, 1, 2_000));
    for order in [[&full, &next], [&next, &full]] {
        let store = store();
        for counter in order {
            assert!(matches!(store.merge(counter.clone(), at(990)), MergeOutcome::Merged { .. }));
        }
        assert_eq!(store.get(key, at(1_001)).as_ref(), Some(&next));
        assert_eq!(plain(&store, first_hit(10, 1_000), 9, 1_500), (true, 0));
    }
}

/// Two owners that did not know of each other's window.
#[test]
fn open_windows_of_two_owners_admit_no_more_than_either() {
    let stores = [store(), store()];
    let counter = first_hit(10, 1_000);
    plain(&stores[0], counter, 10, 0);
    plain(&stores[1], counter, 2, 300);
    for (from, to) in [(0, 1), (1, 0)] {
        let copy = stores[from].get(counter.key, at(400)).expect("it is open");
        stores[to].merge(copy, at(400));
    }
    for store in &stores {
        assert_eq!(plain(store, counter, 1, 1_100), (false, 0));
        assert_eq!(plain(store, counter, 1, 1_300), (true, 9));
    }
}

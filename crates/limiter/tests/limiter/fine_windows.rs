//! Fine windows: as exact as a log from the instant at which they begin, bounded, and known to
//! one process only.

use std::sync::Arc;

use proptest::prelude::*;
use tidegate_limiter::engine::fine_window::NEAR_DIVISOR;
use tidegate_limiter::engine::grant::{Outstanding, Terms};
use tidegate_limiter::engine::reservation::REMEMBERED;
use tidegate_limiter::engine::{FineKeys, Retry, State, Verdict, decide};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{
    Ask, Commit, Counter, KeyHash, MergeOutcome, OnFull, Options, ReservationId, Reserve, Settled,
    Store, StoredCounter,
};
use tidegate_limiter::units::{Hits, Span, Timestamp};

/// 2026, at the beginning of a minute.
const START: Timestamp = Timestamp::from_secs(1_790_002_800);
const MINUTE: Span = Span::from_secs(60);

fn quota(limit: u32) -> Quota {
    Quota::simple(Algorithm::SlidingWindowCounter, limit, MINUTE).expect("a valid quota")
}

fn store(fine_keys_max: usize) -> Store {
    let options = Options { keys_max: 10_000, on_full: OnFull::Refuse, shards: Some(2) };
    Store::new(options).with_fine_keys(fine_keys_max)
}

fn counter(n: u64, limit: u32) -> Counter {
    let spread = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Counter { key: KeyHash { token: spread, tag: spread & !15 }, quota: quota(limit) }
}

fn request(store: &Store, counter: Counter, hits: i64, now: Timestamp) -> Verdict {
    store.check(&[counter], Hits::new(hits), now)[0]
}

fn at(millis: u64) -> Timestamp {
    START.plus(Span::from_millis(millis))
}

#[test]
fn the_worked_example_holds() {
    let (store, counter) = (store(1), counter(1, 100));
    assert!(request(&store, counter, 25, at(50_000)).allowed);
    for n in 1..=75 {
        assert!(request(&store, counter, 1, at(50_000 + 10 * n)).allowed, "{n}");
    }
    let denied = request(&store, counter, 1, at(51_000));
    assert!(!denied.allowed);
    // The tick of the first hits ends within two milliseconds.
    let Retry::After(wait) = denied.retry else { panic!("{denied:?}") };
    let first = at(50_000).plus(MINUTE).since(at(51_000));
    assert!(first <= wait && wait.as_nanos() < first.as_nanos() + 1_920_000, "{wait}");
    assert!(!request(&store, counter, 1, at(109_999)).allowed, "two counts have room by now");
    assert!(request(&store, counter, 25, at(110_002)).allowed);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..Default::default() })]

    /// Of a key that begins with a ring: no stretch of a window has more hits than the limit, and
    /// what is refused would be too many if each hit counted for a tick more than a window.
    #[test]
    fn a_fine_window_errs_by_less_than_a_tick(
        limit in prop_oneof![1..40_u32, 900..1_100_u32, Just(100_000)],
        requests in prop::collection::vec((1..12_u64, 0..4_000_u64), 1..200),
    ) {
        let quota = quota(limit);
        let ticks = if limit <= 1_000 { 31_250 } else { 1_000 };
        let longest = Span::from_nanos(MINUTE.as_nanos() + MINUTE.as_nanos() / ticks);
        let mut state = State::Absent;
        let mut admitted: Vec<(Timestamp, u64)> = Vec::new();
        let mut now = START.plus(Span::from_millis(17_000));
        // What brings it near its limit is no part of the history.
        let first = u64::from(limit.div_ceil(NEAR_DIVISOR));
        let mut requests = requests.into_iter();
        let hits = |part: u64| (u64::from(limit) * part / 40).max(1);
        let sum = |admitted: &[(Timestamp, u64)], now: Timestamp, span| {
            let counts = |(at, _): &&(Timestamp, u64)| now.since(*at) < span;
            admitted.iter().filter(counts).map(|(_, hits)| hits).sum::<u64>()
        };
        let mut next = Some((first, 0));
        while let Some((hits_now, wait)) = next {
            now = now.plus(Span::from_nanos(wait * 1_000_000 + wait));
            let verdict = decide(&mut state, &quota, Hits::new(hits_now.cast_signed()), now);
            state.refine(&quota, now, &FineKeys::new(1));
            prop_assert!(matches!(state, State::FineWindow(_)));
            if verdict.allowed {
                admitted.push((now, hits_now));
                prop_assert!(sum(&admitted, now, MINUTE) <= u64::from(limit));
            } else {
                prop_assert!(sum(&admitted, now, longest) + hits_now > u64::from(limit));
            }
            next = requests.next().map(|(part, wait)| (hits(part), wait));
        }
    }
}

fn reserve(store: &Store, counter: Counter, id: u128, amount: u32, now: Timestamp) -> bool {
    let key = KeyHash::of_reservation(&[counter], ReservationId(id));
    let reserve = Reserve { key, amount, ttl: MINUTE };
    let reserved = store.reserve_if(&[counter], &reserve, None, now, || true).expect("owned");
    reserved.verdicts[0].allowed
}

fn commit(store: &Store, counter: Counter, id: u128, cost: i64, now: Timestamp) -> Settled {
    let key = KeyHash::of_reservation(&[counter], ReservationId(id));
    let commit = Commit { key, cost: Hits::new(cost), remembered: REMEMBERED };
    store.commit_if(&[counter], &commit, None, now, || true).expect("owned").settled
}

/// Late in a window most of the limit is reserved and committed; two counts would take it to have
/// passed evenly.
#[test]
fn commits_near_the_limit_pass_no_more_than_it_in_any_stretch_of_a_window() {
    for before in [0, 12] {
        let (store, counter) = (store(1), counter(1, 60));
        let is_admitted = |hits, millis| request(&store, counter, hits, at(millis)).allowed;
        assert!(before == 0 || is_admitted(before, 57_000));
        assert!(reserve(&store, counter, 1, 40, at(57_000)));
        assert_eq!(commit(&store, counter, 1, 40, at(57_000)), Settled::Committed);
        assert_eq!(store.stats().fine_keys, 1);
        let mut admitted = before + 40;
        // All of them within a window of the commit.
        for n in 0..590 {
            admitted += if is_admitted(4, 57_100 + n * 100) { 4 } else { 0 };
        }
        assert_eq!(admitted, 60, "{before} before");
        assert!(is_admitted(4, 117_002));
    }
}

#[test]
fn an_overrun_begins_a_ring_and_leaves_when_its_tick_does() {
    let overruns = [1_500, 100_000_000, i64::from(u32::MAX)];
    for (limit, overrun) in [10, 1_000, 1_000_000].into_iter().zip(overruns) {
        let (store, counter) = (store(1), counter(1, limit));
        assert_eq!(commit(&store, counter, 1, overrun, at(57_000)), Settled::Reported);
        assert_eq!(store.stats().fine_keys, 1);
        let denied = request(&store, counter, 1, at(58_000));
        let Retry::After(wait) = denied.retry else { panic!("{denied:?}") };
        let first = at(57_000).plus(MINUTE).since(at(58_000));
        assert!(first <= wait && wait.as_nanos() <= first.as_nanos() + 60_000_000, "{wait}");
        assert!(request(&store, counter, i64::from(limit), at(58_000).plus(wait)).allowed);
    }
}

#[test]
fn a_ring_of_overruns_is_bounded() {
    for limit in [1_000, 1_000_000] {
        let (store, counter) = (store(1), counter(1, limit));
        let empty = store.stats().bytes;
        for n in 0..20_000 {
            let cost = if n % 100 == 0 { 3_000_000 } else { 1 };
            commit(&store, counter, 1 + u128::from(n), cost, at(3 * n));
        }
        // The ids of the last two minutes are reservations.
        assert_eq!(store.stats().fine_keys, 1);
        let ids = self::store(1);
        for n in 0..20_000 {
            commit(&ids, counter, 1 + u128::from(n), 0, at(3 * n));
        }
        assert!(store.stats().bytes - empty < ids.stats().bytes + 7_168 + 4_400);
    }
}

#[test]
fn a_commit_beside_granted_hits_begins_no_ring() {
    let (store, counter) = (store(1), counter(1, 100));
    let of = &[counter];
    let commit = |id, outstanding: &[Outstanding]| {
        let key = KeyHash::of_reservation(of, ReservationId(id));
        let commit = Commit { key, cost: Hits::new(30), remembered: REMEMBERED };
        store.commit_beside_grants_if(of, &commit, None, outstanding, at(0), || true);
        store.stats().fine_keys
    };
    assert_eq!(commit(1, &[Outstanding { hits: 1, until: at(1) }]), 0);
    assert_eq!(commit(2, &[Outstanding { hits: 0, until: at(1) }]), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    /// As [`a_fine_window_errs_by_less_than_a_tick`], with commits and reports among the checks:
    /// what they cost is part of the log, and nothing is admitted that does not fit beside it.
    #[test]
    fn costs_of_work_are_in_the_fine_window_as_checks_are(
        limit in prop_oneof![5..40_u32, 900..1_100_u32, Just(100_000)],
        first in prop_oneof![3..6_u64, 30..120_u64],
        requests in prop::collection::vec((0..3_u8, 1..12_u64, 0..4_000_u64), 1..150),
    ) {
        let (store, counter) = (store(1), counter(1, limit));
        let ticks = if limit <= 1_000 { 31_250 } else { 1_000 };
        let longest = Span::from_nanos(MINUTE.as_nanos() + MINUTE.as_nanos() / ticks);
        let mut passed: Vec<(Timestamp, u64)> = Vec::new();
        let mut now = START.plus(Span::from_millis(17_000));
        let hits = |part: u64| (u64::from(limit) * part / 40).max(1);
        let sum = |passed: &[(Timestamp, u64)], now: Timestamp, span| {
            let counts = |(at, _): &&(Timestamp, u64)| now.since(*at) < span;
            passed.iter().filter(counts).map(|(_, hits)| hits).sum::<u64>()
        };
        // What brings it near its limit, or beyond, is a report.
        let first = u64::from(limit) * first / 15 + 1;
        let requests = requests.into_iter().map(|(op, part, wait)| (op, hits(part), wait));
        for (id, (op, hits, wait)) in (1..).zip([(2, first, 0)].into_iter().chain(requests)) {
            now = now.plus(Span::from_nanos(wait * 1_000_000 + wait));
            let amount = u32::try_from(hits).expect("small");
            let is_allowed = match op {
                0 => request(&store, counter, hits.cast_signed(), now).allowed,
                1 => reserve(&store, counter, id, amount, now),
                _ => false,
            };
            if op == 1 && is_allowed {
                let committed = commit(&store, counter, id, hits.cast_signed(), now);
                prop_assert_eq!(committed, Settled::Committed);
            }
            if is_allowed {
                passed.push((now, hits));
                prop_assert!(sum(&passed, now, MINUTE) <= u64::from(limit));
            } else if op == 2 && (id == 1 || id % 5 == 0) {
                let reported = commit(&store, counter, id, hits.cast_signed(), now);
                prop_assert_eq!(reported, Settled::Reported);
                passed.push((now, hits));
            } else if op < 2 {
                prop_assert!(sum(&passed, now, longest) + hits > u64::from(limit));
            }
            prop_assert_eq!(store.stats().fine_keys, 1);
        }
    }
}

#[test]
fn a_ring_begins_near_the_limit_and_ends_far_from_it() {
    let (store, counter) = (store(10), counter(1, 100));
    let fine_keys = || store.stats().fine_keys;
    request(&store, counter, 19, at(0));
    assert_eq!(fine_keys(), 0);
    request(&store, counter, 1, at(1));
    assert_eq!(fine_keys(), 1);
    let before = store.stats().bytes;
    request(&store, counter, 70, at(2));
    assert!(store.stats().bytes >= before);
    // One request a window is far from it, as soon as the window before the last has passed.
    request(&store, counter, 1, at(90_000));
    assert_eq!(fine_keys(), 1);
    request(&store, counter, 1, at(125_000));
    assert_eq!(fine_keys(), 0);
    assert!(store.stats().bytes < before);
}

#[test]
fn a_key_that_expired_frees_its_place() {
    let store = store(10);
    for n in 0..10 {
        request(&store, counter(n, 2), 1, at(0));
    }
    assert_eq!(store.stats().fine_keys, 10);
    for _ in 0..4 {
        store.expire(2, at(200_000));
    }
    let stats = store.stats();
    assert_eq!((stats.keys, stats.fine_keys), (0, 0));
}

#[test]
fn beyond_the_bound_a_key_has_two_counts() {
    let store = store(3);
    for n in 0..10 {
        assert!(request(&store, counter(n, 10), 10, at(0)).allowed);
    }
    assert_eq!(store.stats().fine_keys, 3);
    // At the middle of the next window two counts have half of the hits left.
    let room = |n| request(&store, counter(n, 10), 0, at(90_000)).remaining;
    assert_eq!((room(0), room(9)), (10, 5));
    for n in 0..10 {
        assert!(!request(&store, counter(n, 10), 1, at(59_000)).allowed);
    }
}

#[test]
fn a_large_limit_has_a_ring_of_bounded_size() {
    let (store, counter) = (store(1), counter(1, 1_000_000));
    let empty = store.stats().bytes;
    assert!(request(&store, counter, 300_000, at(0)).allowed);
    for n in 0..60_000 {
        assert!(request(&store, counter, 10, at(n)).allowed);
    }
    let stats = store.stats();
    assert_eq!(stats.fine_keys, 1);
    // A page of slots, and the ring.
    assert!(stats.bytes - empty < 7_168 + 4_400, "{stats:?}");
    assert!(!request(&store, counter, 100_001, at(60_000)).allowed);
    assert!(request(&store, counter, 100_000, at(60_000)).allowed);
}

#[test]
fn a_changed_limit_keeps_the_hits() {
    let (store, small) = (store(1), counter(1, 1_000));
    assert!(request(&store, small, 900, at(0)).allowed);
    for limit in [2_000, 100, 2_000_000, 901] {
        let changed = Counter { quota: quota(limit), ..small };
        let left = limit.saturating_sub(900);
        assert_eq!(request(&store, changed, 0, at(1)).remaining, left);
        assert!(!request(&store, changed, i64::from(left) + 1, at(1)).allowed);
    }
    assert!(request(&store, Counter { quota: quota(2_000), ..small }, 1_100, at(1)).allowed);
}

#[test]
fn copies_are_two_counts_and_an_echo_ends_no_ring() {
    let (store, counter) = (store(1), counter(1, 10));
    request(&store, counter, 10, at(30_000));
    let copy = store.get(counter.key, at(30_000)).expect("it was just counted");
    assert!(matches!(copy.state, State::SlidingCounter { prev: 0, cur: 10, .. }), "{copy:?}");
    assert_eq!(store.merge(copy.clone(), at(30_001)), MergeOutcome::Merged { changed: false });
    assert_eq!(store.stats().fine_keys, 1);

    // A copy with a hit that this ring does not know.
    let State::SlidingCounter { index, .. } = copy.state else { panic!("{copy:?}") };
    let state = State::SlidingCounter { index, prev: 0, cur: 11 };
    let later = StoredCounter { state, ..copy };
    assert_eq!(store.merge(later, at(30_002)), MergeOutcome::Merged { changed: true });
    assert_eq!(store.stats().fine_keys, 0);
    assert!(!request(&store, counter, 1, at(65_000)).allowed, "11 x 55/60");
}

#[test]
fn a_replica_takes_over_with_two_counts() {
    let (owner, replica, counter) = (store(1), store(1), counter(1, 10));
    request(&owner, counter, 10, at(30_000));
    let copy = owner.get(counter.key, at(30_000)).expect("it was just counted");
    replica.merge(copy, at(30_000));
    // The owner knows that all hits leave at once, at 90 s.
    assert_eq!(request(&owner, counter, 0, at(72_000)).remaining, 0);
    assert_eq!(request(&replica, counter, 0, at(72_000)).remaining, 2);
    // The first that it decides begins a ring.
    request(&replica, counter, 1, at(72_000));
    assert_eq!(replica.stats().fine_keys, 1);
}

#[test]
fn a_leased_counter_has_no_ring() {
    let (store, counter) = (store(1), counter(1, 100));
    let leased = |hits, wanted| {
        let ask = Ask {
            wanted,
            held: 0,
            divisor: 2,
            terms: Terms { longest: Span::from_millis(750), useful: Span::ZERO },
            shortest: Span::ZERO,
        };
        let ask = (wanted > 0).then_some(ask);
        store.check_leased_if(&[counter], &[Hits::new(hits)], ask, &[], at(10), || true)
    };
    leased(50, 0);
    assert_eq!(store.stats().fine_keys, 0);
    // The rule was strict for a moment.
    request(&store, counter, 1, at(9));
    assert_eq!(store.stats().fine_keys, 1);
    let granted = leased(1, 10).expect("owned").granted;
    assert_eq!(granted.expect("half of 48").hits, 10);
    assert_eq!(store.stats().fine_keys, 0);
    assert_eq!(request(&store, counter, 0, at(10)).remaining, 38);
}

#[test]
fn clones_and_their_ends_are_counted() {
    let keys: Arc<FineKeys> = FineKeys::new(1);
    let (quota, mut state) = (quota(10), State::Absent);
    decide(&mut state, &quota, Hits::new(10), START);
    state.refine(&quota, START, &keys);
    assert_eq!(keys.keys(), 1);
    let bytes = keys.bytes();
    let clone = state.clone();
    assert_eq!((keys.keys(), keys.bytes()), (2, 2 * bytes));
    drop(clone);
    assert_eq!((keys.keys(), keys.bytes()), (1, bytes));
    drop(state);
    assert_eq!((keys.keys(), keys.bytes()), (0, 0));
}

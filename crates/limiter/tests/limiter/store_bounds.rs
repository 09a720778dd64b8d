//! The store at its bounds: a flood of new keys must neither reset a limited key nor exceed the
//! memory bound, and the memory is freed afterwards.

use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::engine::{Retry, State, Verdict};
use tidegate_limiter::policy::{Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{
    Counter, DescriptorHash, KeyHash, KeyHasher, MergeOutcome, OnFull, Options, Store,
    StoredCounter,
};
use tidegate_limiter::units::{Hits, Span, Timestamp};

const START: Timestamp = Timestamp::from_secs(1_700_000_000);
const KEYS_MAX: usize = 100_000;

fn quota(algorithm: Algorithm, limit: u32, secs: u64) -> Quota {
    Quota::simple(algorithm, limit, Span::from_secs(secs)).expect("a valid quota")
}

/// Key number `n`, spread as the key hash spreads them.
fn key(n: u64) -> KeyHash {
    let spread = |mut x: u64| {
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    KeyHash { token: spread(2 * n + 1), tag: spread(2 * n + 2) }
}

fn store(keys_max: usize, on_full: OnFull) -> Store {
    Store::new(Options { keys_max, on_full, shards: None })
}

fn request(store: &Store, n: u64, quota: Quota, hits: i64, now: Timestamp) -> Verdict {
    store.check(&[Counter { key: key(n), quota }], Hits::new(hits), now)[0]
}

/// Blocks one key, floods the store with twenty times its capacity, and looks at the key again.
fn a_flood_leaves_a_blocked_key_blocked(on_full: OnFull) -> Store {
    let store = store(KEYS_MAX, on_full);
    let victim = quota(Algorithm::Gcra, 3, 3_600);
    let junk = quota(Algorithm::FixedWindow, 1_000, 86_400);
    for _ in 0..3 {
        assert!(request(&store, 0, victim, 1, START).allowed);
    }
    for n in 1..=2_000_000 {
        let now = START.plus(Span::from_nanos(n * 1_000));
        request(&store, n, junk, 1, now);
        if n % 50_000 == 0 {
            let verdict = request(&store, 0, victim, 1, now);
            assert!(!verdict.allowed, "the flood reset the key after {n} junk keys");
        }
    }
    let stats = store.stats();
    assert!(stats.keys <= KEYS_MAX);
    assert!(stats.keys > KEYS_MAX * 9 / 10, "{stats:?}");
    assert!(stats.bytes < KEYS_MAX * 64, "{stats:?}");
    assert_eq!(stats.expired, 0);
    store
}

#[test]
fn a_flood_is_refused_and_resets_no_key() {
    let store = a_flood_leaves_a_blocked_key_blocked(OnFull::Refuse);
    let stats = store.stats();
    assert_eq!(stats.refused, 2_000_001 - stats.keys as u64);
    assert_eq!(stats.overflowed, 0);

    let late = request(&store, 3_000_000, quota(Algorithm::Gcra, 5, 60), 1, START);
    assert_eq!((late.allowed, late.remaining, late.limit), (false, 0, 5));
    assert_eq!(late.retry, Retry::After(Span::from_secs(1)));
}

#[test]
fn a_flood_shares_one_limit_and_resets_no_key() {
    let store = a_flood_leaves_a_blocked_key_blocked(OnFull::Share);
    let stats = store.stats();
    assert_eq!(stats.overflowed, 2_000_001 - stats.keys as u64);
    assert_eq!(stats.refused, 0);
}

/// A store of one shard that holds as many keys as it may, all with a window of a day.
fn full(on_full: OnFull) -> Store {
    let store = store(64, on_full);
    for n in 0..64 {
        request(&store, n, quota(Algorithm::FixedWindow, 10, 86_400), 1, START);
    }
    assert_eq!(store.stats().keys, 64);
    store
}

#[test]
fn new_keys_of_one_quota_share_its_limit_and_other_quotas_have_their_own() {
    let store = full(OnFull::Share);
    let quota_of = |limit| quota(Algorithm::Gcra, limit, 60);
    let allowed = |limit, first| {
        (first..first + 100)
            .filter(|&n| request(&store, n, quota_of(limit), 1, START).allowed)
            .count()
    };
    assert_eq!(allowed(7, 1_000), 7);
    assert_eq!(allowed(9, 2_000), 9);
    // A key that existed before the store was full keeps its own counter.
    assert!(request(&store, 5, quota(Algorithm::FixedWindow, 10, 86_400), 9, START).allowed);
    assert_eq!((store.stats().keys, store.stats().overflowed), (64, 200));
}

#[test]
fn a_list_of_limits_is_atomic_when_its_counters_are_shared() {
    let store = full(OnFull::Share);
    let both = |n| {
        let token = key(n).token;
        let counter = |tag, quota| Counter { key: KeyHash { token, tag }, quota };
        [
            counter(1, quota(Algorithm::Gcra, 2, 60)),
            counter(2, quota(Algorithm::TokenBucket, 100, 60)),
        ]
    };
    let verdicts: Vec<_> = (100..110).map(|n| store.check(&both(n), Hits::ONE, START)).collect();
    assert_eq!(verdicts.iter().filter(|v| v.iter().all(|v| v.allowed)).count(), 2);
    // Eight denials by the first limit consumed nothing of the second.
    assert!(verdicts[9][1].allowed && !verdicts[9][0].allowed);
    assert_eq!(verdicts[9][1].remaining, 98);
}

#[test]
fn shared_counters_are_bounded() {
    let store = full(OnFull::Share);
    let allowed = (1..=2_000_u32).filter(|&limit| {
        let quota = quota(Algorithm::Gcra, limit, 60);
        request(&store, 10_000 + u64::from(limit), quota, 1, START).allowed
    });
    assert_eq!(allowed.count(), 1_024);
    // Keys whose quota has a shared counter continue to use it.
    let known = quota(Algorithm::Gcra, 500, 60);
    assert_eq!(request(&store, 20_000, known, 1, START).remaining, 498);
    assert_eq!(store.stats().refused, 2_000 - 1_024);
}

#[test]
fn a_full_shard_takes_a_new_key_as_soon_as_one_expired() {
    let store = store(64, OnFull::Refuse);
    for n in 0..64 {
        let secs = if n == 40 { 60 } else { 86_400 };
        request(&store, n, quota(Algorithm::TokenBucket, 1, secs), 1, START);
    }
    let day = quota(Algorithm::Gcra, 5, 86_400);
    let just_before = START.plus(Span::from_nanos(59_999_999_990));
    for _ in 0..10 {
        assert!(!request(&store, 1_000, day, 1, just_before).allowed);
    }
    // One sweep covers a part of the table, so it may take a few requests to find the free slot.
    let later = START.plus(Span::from_secs(61));
    assert!((0..4).any(|_| request(&store, 1_000, day, 1, later).allowed));
    assert!(!request(&store, 1_001, day, 1, later).allowed);
    assert_eq!(store.stats().keys, 64);
}

#[test]
fn making_room_for_one_limit_by_dropping_another_of_the_same_check_keeps_the_bound() {
    let day = quota(Algorithm::Gcra, 1, 86_400);
    let later = START.plus(Span::from_secs(60));
    // The start of the sweep is internal to the store: try every position of the expired key.
    for first in 0..64 {
        let store = store(64, OnFull::Share);
        let expiring = Counter { key: key(first), quota: quota(Algorithm::Gcra, 1, 60) };
        let new = Counter { key: KeyHash { tag: 77, ..key(first) }, quota: day };
        store.check(&[expiring], Hits::ONE, START);
        for n in (0..64).filter(|&n| n != first) {
            request(&store, n, day, 1, START);
        }
        let verdicts = store.check(&[expiring, new], Hits::ONE, later);
        assert!(verdicts.iter().all(|verdict| verdict.allowed));
        assert!(store.stats().keys <= 64, "{:?}", store.stats());
    }
}

#[test]
fn a_peek_a_refund_and_an_impossible_request_create_no_key() {
    let store = store(KEYS_MAX, OnFull::Share);
    let gcra = quota(Algorithm::Gcra, 5, 60);
    assert_eq!(request(&store, 1, gcra, 0, START).remaining, 5);
    assert!(request(&store, 2, gcra, -3, START).allowed);
    assert_eq!(request(&store, 3, gcra, 6, START).retry, Retry::Never);
    assert_eq!(store.stats().keys, 0);
}

#[test]
fn a_burst_of_one_is_stored_until_the_next_hit_may_pass() {
    let store = store(KEYS_MAX, OnFull::Share);
    let one = quota(Algorithm::Gcra, 1, 1);
    assert!(request(&store, 1, one, 1, START).allowed);
    for n in 2..5_000 {
        request(&store, n, one, 1, START);
    }
    let before = START.plus(Span::from_nanos(999_999_999));
    store.expire(usize::MAX, before);
    assert!(!request(&store, 1, one, 1, before).allowed);
    assert!(request(&store, 1, one, 1, START.plus(Span::from_secs(1))).allowed);
}

#[test]
fn a_late_thread_does_not_reopen_a_window_that_ended() {
    let store = store(KEYS_MAX, OnFull::Share);
    let quota = quota(Algorithm::FixedWindow, 3, 10);
    assert!(request(&store, 1, quota, 3, START).allowed);
    let (end, late) =
        (START.plus(Span::from_secs(10)), START.plus(Span::from_nanos(9_999_999_999)));
    store.expire(usize::MAX, end);
    assert_eq!(store.stats().keys, 0);
    // The thread read the clock before the window ended and took the lock after the sweep. Its hits
    // count in the current window.
    assert!(request(&store, 1, quota, 3, late).allowed);
    assert!(!request(&store, 1, quota, 1, end).allowed);
}

#[test]
fn expired_keys_are_removed_and_their_memory_is_freed() {
    let store = store(1_000_000, OnFull::Share);
    let empty = store.stats().bytes;
    let minute = quota(Algorithm::FixedWindow, 10, 60);
    for n in 0..200_000 {
        request(&store, n, minute, 1, START);
    }
    let full = store.stats();
    assert_eq!(full.keys, 200_000);
    let later = START.plus(Span::from_secs(120));
    // Traffic on a few keys sweeps their shards.
    for n in 0..600_000 {
        request(&store, n % 1_000, minute, 1, later);
    }
    let swept = store.stats();
    assert!(swept.keys < full.keys / 4, "{swept:?}");
    // A timer sweeps idle shards.
    for _ in 0..40 {
        store.expire(usize::MAX, later.plus(Span::from_secs(120)));
    }
    let idle = store.stats();
    assert_eq!((idle.keys, idle.bytes), (0, empty));
    assert!(full.bytes - empty > 200_000 * 40);
    assert!(idle.expired >= 200_000);
}

#[test]
fn memory_stays_bounded_under_an_endless_stream_of_short_lived_keys() {
    let store = store(1_000_000, OnFull::Refuse);
    let second = quota(Algorithm::Gcra, 1, 1);
    for n in 0..1_000_000 {
        // 10,000 new keys a second, each gone after one.
        request(&store, n, second, 1, START.plus(Span::from_nanos(n * 100_000)));
    }
    let stats = store.stats();
    assert!(stats.keys < 20_000, "{stats:?}");
    assert_eq!(stats.refused, 0);
}

#[test]
fn a_counter_from_elsewhere_is_merged_and_bounded_like_any_other() {
    let (from, to) = (store(KEYS_MAX, OnFull::Share), full(OnFull::Share));
    let day = quota(Algorithm::FixedWindow, 10, 86_400);
    request(&from, 7, day, 5, START);
    request(&from, 9_000, day, 5, START);
    let copy = |n| from.get(key(n), START).expect("it was just checked");
    assert_eq!(to.merge(copy(7), START), MergeOutcome::Merged { changed: true });
    assert_eq!(request(&to, 7, day, 0, START).remaining, 5);
    assert_eq!(to.merge(copy(9_000), START), MergeOutcome::Full);
    let old = StoredCounter { key: key(8), state: State::Absent, expires: START };
    assert_eq!(to.merge(old, START), MergeOutcome::Expired);
    assert_eq!((to.stats().keys, to.stats().refused), (64, 1));
}

/// The counter of a value in a domain.
fn counter_in(hasher: &KeyHasher, domain: &str, value: u64, quota: Quota) -> Counter {
    let value = value.to_string();
    let hash = hasher.descriptor(domain, &[Entry { key: "user", value: &value }]);
    Counter { key: hash.counter(&quota, Mode::Strict, Scope::Region), quota }
}

#[test]
fn a_flood_in_one_domain_changes_no_decision_in_another() {
    /// Fewer than half of what the store holds.
    const USERS: u64 = 40_000;
    let hasher = KeyHasher::new([7; 16]).with_domains(true);
    let limit = quota(Algorithm::FixedWindow, 3, 86_400);
    let decide = |store: &Store, domain, user, at: u64| {
        let now = START.plus(Span::from_nanos(at));
        store.check(&[counter_in(&hasher, domain, user, limit)], Hits::new(1), now)[0]
    };
    let stores = [(); 2].map(|()| store(KEYS_MAX, OnFull::Share).with_domain_keys(KEYS_MAX / 2));
    let [flooded, quiet] = &stores;
    for user in 0..1_000_000 {
        decide(flooded, "noisy", user, user);
    }
    for at in 0..5 * USERS {
        let user = at % USERS;
        let expected = decide(quiet, "calm", user, 2_000_000 + at);
        let verdict = decide(flooded, "calm", user, 2_000_000 + at);
        assert_eq!(verdict, expected, "user {user}");
        decide(flooded, "noisy", at, 2_000_000 + at);
    }
    let stats = flooded.stats();
    assert!(stats.keys <= KEYS_MAX / 2 + 40_000, "{stats:?}");
    assert!(stats.in_full_domains >= 900_000, "{stats:?}");
    assert_eq!((stats.overflowed, stats.refused), (0, 0), "the store is not full");
    // Those that are there count on; further ones share a limit with those of their domain alone.
    assert_eq!(decide(flooded, "noisy", 1, 9_000_000).remaining, 0);
    assert!(!decide(flooded, "noisy", 2_000_000, 9_000_000).allowed);
    assert!(decide(flooded, "third", 2_000_000, 9_000_000).allowed);

    // What has expired makes room again.
    let tomorrow = 2 * 86_400 * 1_000_000_000;
    for user in 0..USERS {
        assert!(decide(flooded, "noisy", 3_000_000 + user, tomorrow + user).allowed, "{user}");
    }
}

#[test]
fn a_domain_has_as_many_counters_as_its_bound_however_they_spread() {
    let hasher = KeyHasher::new([7; 16]).with_domains(true);
    let limit = quota(Algorithm::FixedWindow, 3, 86_400);
    let store = store(1_000_000, OnFull::Refuse).with_domain_keys(1_000);
    assert_eq!(store.shards(), 244, "so that each has four of the domain on average");
    let is_allowed = |user| {
        let counter = counter_in(&hasher, "calm", user, limit);
        store.check(&[counter], Hits::new(1), START)[0].allowed
    };
    assert_eq!((0..1_000).find(|user| !is_allowed(*user)), None);
    assert!(!is_allowed(1_000));
    assert!(is_allowed(0), "those that are there count on");
}

#[test]
fn keys_that_name_their_domain_keep_it_in_all_forms() {
    let limit = quota(Algorithm::FixedWindow, 3, 86_400);
    let plain = KeyHasher::new([7; 16]);
    let naming = KeyHasher::new([7; 16]).with_domains(true);
    assert_ne!(plain.fingerprint(), naming.fingerprint(), "nodes of both kinds tell each other");
    let domain_of = |key: KeyHash| key.tag & 0xff0;
    let entries = [Entry { key: "user", value: "ann" }];
    let hash = naming.descriptor("calm", &entries);
    let counter = counter_in(&naming, "calm", 1, limit);
    let of = |hash: DescriptorHash| domain_of(hash.counter(&limit, Mode::Eventual, Scope::Global));
    for other in [hash, hash.in_flight(), hash.begun_anew(START)] {
        assert_eq!(of(other), domain_of(counter.key));
    }
}

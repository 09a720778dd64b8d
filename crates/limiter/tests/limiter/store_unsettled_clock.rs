//! What a store keeps and drops while its clock is not settled yet.

use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{Counter, KeyHash, OnFull, Options, Store};
use tidegate_limiter::units::{Hits, Span, Timestamp};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
const AHEAD: Span = Span::from_secs(3 * 3_600);
/// The flag of a key that is counted by a share.
const SHARE: u64 = 0b100;

fn counter(n: u64, flags: u64) -> Counter {
    let quota = Quota::simple(Algorithm::Gcra, 20, Span::from_secs(3_600)).expect("a valid quota");
    let spread = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Counter { key: KeyHash { token: spread, tag: spread & !0b1111 | flags }, quota }
}

fn store() -> Store {
    Store::new(Options { keys_max: 10_000, on_full: OnFull::Refuse, shards: Some(2) })
}

/// A node loads used up limits while its clock is three hours ahead, and answers by its shares.
#[test]
fn what_was_loaded_by_a_clock_that_is_ahead_is_used_up_still_when_it_is_set_back() {
    let store = store();
    let (limits, shares) = ((0..100).map(|n| counter(n, 0)), (100..200).map(|n| counter(n, SHARE)));
    for limit in limits.clone() {
        assert!(limit.key.is_owned() && store.check(&[limit], Hits::new(20), NOW)[0].allowed);
    }
    store.keep_owned();
    let later = NOW.plus(AHEAD);
    for share in shares.clone() {
        assert!(!share.key.is_owned() && store.check(&[share], Hits::new(20), later)[0].allowed);
    }
    for _ in 0..200 {
        store.expire(2, later);
    }
    assert_eq!(store.stats().keys, 200);

    assert_eq!(store.clock_went_back(NOW, true), 100, "the shares are of the future");
    store.clock_is_settled();
    for limit in limits {
        assert!(!store.check(&[limit], Hits::ONE, NOW)[0].allowed, "it is granted again");
    }
    for share in shares {
        assert!(store.check(&[share], Hits::new(20), NOW)[0].allowed, "it refuses for hours");
    }
    for _ in 0..200 {
        store.expire(2, later);
    }
    assert_eq!(store.stats().keys, 0, "they expire again");
}

/// A counter that expired by the later time must not hold decisions at that time.
#[test]
fn a_shard_forgets_that_it_saw_a_later_time() {
    let store = store();
    for n in 0..100 {
        store.check(&[counter(n, SHARE)], Hits::ONE, NOW);
    }
    let later = NOW.plus(AHEAD);
    for _ in 0..200 {
        store.expire(2, later);
    }
    assert_eq!(store.stats().keys, 0);
    store.clock_went_back(NOW, true);
    for n in 200..300 {
        assert!(store.check(&[counter(n, 0)], Hits::new(20), NOW)[0].allowed);
        let stored = store.get(counter(n, 0).key, NOW).expect("it was counted");
        assert!(stored.expires <= NOW.plus(Span::from_secs(3_601)), "counted later than now");
    }
}

/// Of a bucket it cannot be told by its state when it was counted.
#[test]
fn what_was_loaded_is_dropped_when_it_is_of_the_future() {
    let store = store();
    let later = NOW.plus(AHEAD);
    for n in 0..100 {
        store.check(&[counter(n, 0)], Hits::new(20), later);
    }
    assert_eq!(store.clock_went_back(NOW, true), 0);
    assert!(!store.check(&[counter(0, 0)], Hits::ONE, NOW)[0].allowed);
    assert_eq!(store.clock_went_back(NOW, false), 100);
    assert!(store.check(&[counter(0, 0)], Hits::new(20), NOW)[0].allowed);
}

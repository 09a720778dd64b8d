//! Reservations: what is kept free is there when its cost is committed, copies of a store agree,
//! and an id counts once.

use proptest::prelude::*;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::engine::reservation::{REMEMBERED, TTL_MAX};
use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::policy::{Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{
    Commit, Counter, Cursor, Interventions, KeyHash, KeyHasher, Made, MergeOutcome, OnFull,
    Options, ReservationId, Reserve, Reserved, Settled, Settlement, Store, StoredCounter,
};
use tidegate_limiter::units::{Hits, Span, Timestamp};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
const MINUTE: Span = Span::from_secs(60);

fn empty_store() -> Store {
    Store::new(Options { keys_max: 1_000, on_full: OnFull::Refuse, shards: Some(1) })
}

/// A store whose sliding window counters have fine windows near their limits.
fn fine_store() -> Store {
    empty_store().with_fine_keys(100)
}

fn counters(limits: &[(Algorithm, u32, Span)]) -> Vec<Counter> {
    let descriptor = KeyHasher::new([1; 16]).descriptor("d", &[Entry { key: "k", value: "v" }]);
    let counter = |&(algorithm, limit, window): &(Algorithm, u32, Span)| {
        let quota = Quota::simple(algorithm, limit, window).expect("a valid quota");
        Counter { key: descriptor.counter(&quota, Mode::Strict, Scope::Region), quota }
    };
    limits.iter().map(counter).collect()
}

fn a_minute(limit: u32) -> Vec<Counter> {
    counters(&[(Algorithm::FixedWindow, limit, MINUTE)])
}

fn key(counters: &[Counter], id: u128) -> KeyHash {
    KeyHash::of_reservation(counters, ReservationId(id))
}

fn reserve(store: &Store, of: &[Counter], id: u128, amount: u32, now: Timestamp) -> Reserved {
    let reserve = Reserve { key: key(of, id), amount, ttl: MINUTE };
    store.reserve_if(of, &reserve, None, now, || true).expect("owned")
}

fn commit(store: &Store, of: &[Counter], id: u128, cost: i64, now: Timestamp) -> Settlement {
    let commit = Commit { key: key(of, id), cost: Hits::new(cost), remembered: REMEMBERED };
    store.commit_if(of, &commit, None, now, || true).expect("owned")
}

fn is_reserved(reserved: &Reserved) -> bool {
    reserved.verdicts.iter().all(|verdict| verdict.allowed)
}

fn left(store: &Store, of: &[Counter], now: Timestamp) -> u32 {
    store.check(of, Hits::PEEK, now)[0].remaining
}

fn seconds(n: u64) -> Timestamp {
    NOW.plus(Span::from_secs(n))
}

/// The worked example of the module.
#[test]
fn a_commit_takes_the_place_of_its_reservation() {
    // NOW is 20 s before the end of a minute.
    let (store, of) = (empty_store(), a_minute(1_000));
    assert!(store.check(&of, Hits::new(500), NOW)[0].allowed);
    let refused = reserve(&store, &of, 3, 501, NOW);
    assert_eq!((is_reserved(&refused), refused.verdicts[0].remaining), (false, 500));
    assert!(is_reserved(&reserve(&store, &of, 1, 400, NOW)));
    let refused = reserve(&store, &of, 2, 200, NOW);
    assert_eq!((is_reserved(&refused), refused.verdicts[0].remaining), (false, 100));
    assert!(!store.check(&of, Hits::new(101), NOW)[0].allowed);
    let settlement = commit(&store, &of, 1, 150, NOW);
    assert_eq!(settlement.settled, Settled::Committed);
    assert!(settlement.frees, "101 were refused");
    assert_eq!(settlement.verdicts[0].remaining, 350);
}

#[test]
fn an_overrun_counts_in_full_and_closes_the_limit_until_it_recovers() {
    for algorithm in Algorithm::ALL {
        let (store, of) = (empty_store(), counters(&[(algorithm, 10, MINUTE)]));
        assert!(is_reserved(&reserve(&store, &of, 1, 5, NOW)), "{algorithm:?}");
        assert_eq!(commit(&store, &of, 1, 25, NOW).settled, Settled::Committed);
        assert!(!store.check(&of, Hits::ONE, NOW)[0].allowed, "{algorithm:?}");
        if matches!(algorithm, Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket) {
            // 25 hits drain in 150 s, and one fits when 16 have.
            assert!(!store.check(&of, Hits::ONE, seconds(95))[0].allowed, "{algorithm:?}");
            assert!(store.check(&of, Hits::ONE, seconds(96))[0].allowed, "{algorithm:?}");
        }
    }
}

#[test]
fn a_commit_counts_once() {
    let (store, of) = (empty_store(), a_minute(1_000));
    reserve(&store, &of, 1, 100, NOW);
    assert_eq!(commit(&store, &of, 1, 80, NOW).settled, Settled::Committed);
    let again = commit(&store, &of, 1, 80, seconds(1));
    assert_eq!((again.settled, again.verdicts[0].remaining), (Settled::Again, 920));
    // An id that was never seen is a report, and that counts once, too.
    assert_eq!(commit(&store, &of, 2, 50, seconds(1)).settled, Settled::Reported);
    assert_eq!(commit(&store, &of, 2, 50, seconds(1)).settled, Settled::Again);
    assert_eq!(left(&store, &of, seconds(1)), 870);
    // It is remembered for a minute.
    let later = seconds(1).plus(REMEMBERED);
    assert_eq!(commit(&store, &of, 2, 50, later).settled, Settled::Reported);
}

#[test]
fn a_reservation_ends_by_itself_and_a_late_commit_is_a_report() {
    let (store, of) =
        (empty_store(), counters(&[(Algorithm::FixedWindow, 10, Span::from_secs(3_600))]));
    reserve(&store, &of, 1, 10, NOW);
    assert!(!store.check(&of, Hits::ONE, seconds(59))[0].allowed);
    assert_eq!(left(&store, &of, seconds(60)), 10);
    assert_eq!(commit(&store, &of, 1, 4, seconds(60)).settled, Settled::Reported);
    assert_eq!(left(&store, &of, seconds(60)), 6);
}

#[test]
fn a_reservation_lasts_no_longer_than_a_window() {
    let (store, of) = (empty_store(), counters(&[(Algorithm::Gcra, 10, Span::from_secs(5))]));
    let reserved = reserve(&store, &of, 1, 10, NOW);
    assert_eq!(reserved.ttl, Span::from_secs(5));
    assert_eq!(left(&store, &of, seconds(5)), 10);
}

#[test]
fn a_refusal_tells_when_enough_of_what_is_reserved_has_ended() {
    let (store, of) =
        (empty_store(), counters(&[(Algorithm::FixedWindow, 10, Span::from_secs(3_600))]));
    reserve(&store, &of, 1, 6, NOW);
    reserve(&store, &of, 2, 4, seconds(10));
    let refused = store.check(&of, Hits::new(7), seconds(20))[0];
    assert_eq!(refused.retry, Retry::After(Span::from_secs(50)), "both have to end");
    let refused = store.check(&of, Hits::new(6), seconds(20))[0];
    assert_eq!(refused.retry, Retry::After(Span::from_secs(40)), "the first has to end");
    assert_eq!(store.check(&of, Hits::new(11), seconds(20))[0].retry, Retry::Never);
}

#[test]
fn what_does_not_fit_one_limit_is_reserved_of_none() {
    let (store, of) = (
        empty_store(),
        counters(&[
            (Algorithm::FixedWindow, 100, MINUTE),
            (Algorithm::FixedWindow, 50, Span::from_secs(3_600)),
        ]),
    );
    assert!(!is_reserved(&reserve(&store, &of, 1, 60, NOW)));
    let left = store.check(&of, Hits::PEEK, NOW);
    assert_eq!(left.iter().map(|verdict| verdict.remaining).collect::<Vec<_>>(), [100, 50]);
}

#[test]
fn the_same_reservation_again_is_one_and_lasts_longer() {
    let (store, of) = (empty_store(), counters(&[(Algorithm::Gcra, 10, MINUTE)]));
    assert!(is_reserved(&reserve(&store, &of, 1, 6, NOW)));
    assert!(is_reserved(&reserve(&store, &of, 1, 6, seconds(50))));
    assert_eq!(left(&store, &of, seconds(50)), 4);
    assert_eq!((left(&store, &of, seconds(109)), left(&store, &of, seconds(110))), (4, 10));
    // It has ended, and is a new one.
    assert!(is_reserved(&reserve(&store, &of, 1, 6, seconds(110))));
    assert_eq!(left(&store, &of, seconds(110)), 4);
    commit(&store, &of, 1, 0, seconds(110));
    assert!(!is_reserved(&reserve(&store, &of, 1, 6, seconds(110))), "it is settled");
    assert_eq!(left(&store, &of, seconds(110)), 10);
}

#[test]
fn an_id_that_is_settled_is_refused_until_it_is_forgotten() {
    let (store, of) = (empty_store(), a_minute(100));
    assert!(is_reserved(&reserve(&store, &of, 1, 40, NOW)));
    assert_eq!(commit(&store, &of, 1, 30, NOW).settled, Settled::Committed);
    let refused = reserve(&store, &of, 1, 40, seconds(10));
    // A minute after the end of its life of a minute.
    assert_eq!(refused.verdicts[0].retry, Retry::After(Span::from_secs(110)));
    assert!(!is_reserved(&reserve(&store, &of, 1, 40, seconds(119))));
    assert!(is_reserved(&reserve(&store, &of, 1, 40, seconds(120))));
    commit(&store, &of, 2, 0, NOW);
    assert_eq!(reserve(&store, &of, 2, 101, NOW).verdicts[0].retry, Retry::Never);
}

/// What it keeps free itself is no obstacle, and its end frees nothing for it.
#[test]
fn an_extension_that_is_refused_tells_when_it_fits() {
    let (store, of) =
        (empty_store(), counters(&[(Algorithm::FixedWindow, 40, Span::from_secs(3_600))]));
    assert!(is_reserved(&reserve(&store, &of, 1, 35, NOW)));
    let refused = reserve(&store, &of, 1, 45, seconds(1));
    let Verdict { retry, remaining, .. } = refused.verdicts[0];
    assert_eq!((retry, remaining), (Retry::Never, 5));
    assert!(is_reserved(&reserve(&store, &of, 2, 5, seconds(2))));
    let refused = reserve(&store, &of, 1, 38, seconds(3));
    assert_eq!(refused.verdicts[0].retry, Retry::After(Span::from_secs(59)), "the other ends");
    // The refusal is remembered elsewhere, and ends with the reservation.
    assert!(!store.check(&of, Hits::ONE, seconds(3))[0].allowed);
    assert_eq!(commit(&store, &of, 2, 1, seconds(3)).settled, Settled::Committed);
    let grown = reserve(&store, &of, 1, 38, seconds(3));
    assert!(is_reserved(&grown));
    assert_eq!((grown.verdicts[0].remaining, left(&store, &of, seconds(3))), (1, 1));
    let (store, of) = (empty_store(), a_minute(10));
    assert!(is_reserved(&reserve(&store, &of, 1, 5, NOW)));
    assert!(!store.check(&of, Hits::new(6), NOW)[0].allowed);
    assert!(is_reserved(&reserve(&store, &of, 1, 10, NOW)));
    assert!(commit(&store, &of, 1, 1, NOW).frees, "a check was refused before it grew");
}

#[test]
fn a_release_that_overtakes_its_reservation_refuses_it() {
    let (store, of) = (empty_store(), a_minute(10));
    assert_eq!(commit(&store, &of, 1, 0, NOW).settled, Settled::Reported);
    assert!(!is_reserved(&reserve(&store, &of, 1, 5, NOW)));
    assert_eq!(left(&store, &of, NOW), 10);
}

#[test]
fn a_full_store_makes_no_reservation_and_counts_what_is_committed() {
    let store = Store::new(Options { keys_max: 2, on_full: OnFull::Refuse, shards: Some(1) });
    let of = a_minute(10);
    store.check(&of, Hits::ONE, NOW);
    assert!(is_reserved(&reserve(&store, &of, 1, 5, NOW)));
    assert!(!is_reserved(&reserve(&store, &of, 2, 1, NOW)));
    assert_eq!(commit(&store, &of, 3, 2, NOW).settled, Settled::Reported);
    assert_eq!(left(&store, &of, NOW), 2, "1 and 2 are counted, 5 reserved");
    assert_eq!(commit(&store, &of, 3, 2, NOW).settled, Settled::Again, "it is remembered");
    // Now there is no room for the id of a commit either, and only the owner knows.
    let unknown = commit(&store, &of, 4, 1, NOW);
    assert_eq!((unknown.settled, unknown.is_remembered), (Settled::Reported, false));
    assert_eq!(left(&store, &of, NOW), 1);
}

#[test]
fn a_commit_at_the_bound_of_reservations_counts_once_and_so_does_its_copy() {
    let options = Options { keys_max: 40, on_full: OnFull::Refuse, shards: Some(1) };
    let (store, replica) = (Store::new(options), Store::new(options));
    let of = a_minute(1_000);
    for id in 0..10 {
        for store in [&store, &replica] {
            assert!(is_reserved(&reserve(store, &of, id, 1, NOW)));
        }
    }
    for store in [&store, &replica] {
        assert!(!is_reserved(&reserve(store, &of, 10, 1, NOW)));
    }
    for settled in [Settled::Reported, Settled::Again, Settled::Again] {
        let commit = commit(&store, &of, 11, 10, NOW);
        assert_eq!((commit.settled, commit.is_remembered), (settled, true));
    }
    assert_eq!(left(&store, &of, NOW), 980);
    for copy in all_of(&store, NOW) {
        assert!(matches!(replica.merge(copy, NOW), MergeOutcome::Merged { .. }));
    }
    assert_eq!(commit(&replica, &of, 11, 10, NOW).settled, Settled::Again);
}

/// Reserves and commits 100 of a limit of 100, again and again, while counters have no room.
#[test]
fn what_is_reserved_in_a_full_store_is_decided_as_checks_are() {
    let of = a_minute(100);
    let others = (1..=4).map(|tag| Counter {
        key: KeyHash { token: of[0].key.token, tag: of[0].key.tag ^ (tag << 40) },
        quota: of[0].quota,
    });
    for (on_full, admitted) in [(OnFull::Share, 1), (OnFull::Refuse, 0)] {
        let store = Store::new(Options { keys_max: 4, on_full, shards: Some(1) });
        others.clone().for_each(|other| assert!(store.check(&[other], Hits::ONE, NOW)[0].allowed));
        // With `share` it counts in a counter of all new keys.
        let mut reserved = 0;
        for id in 0..20 {
            if is_reserved(&reserve(&store, &of, id, 100, NOW)) {
                assert_eq!(commit(&store, &of, id, 100, NOW).settled, Settled::Committed);
                reserved += 1;
            }
        }
        assert_eq!(reserved, admitted, "{on_full:?}");
        assert_eq!(left(&store, &of, NOW), 0);
        assert_eq!(commit(&store, &of, 99, 0, NOW).verdicts[0].remaining, 0);
        assert!(!store.check(&of, Hits::ONE, NOW)[0].allowed);
    }
}

#[test]
fn reservations_of_one_descriptor_are_bounded_by_the_store_and_crowd_no_counter_out() {
    const KEYS_MAX: usize = 100_000;
    const RESERVATIONS: u128 = KEYS_MAX as u128 / 4;
    let store = Store::new(Options { keys_max: KEYS_MAX, on_full: OnFull::Refuse, shards: None });
    let of = counters(&[(Algorithm::FixedWindow, 1_000_000, Span::from_secs(86_400))]);
    for id in 0..RESERVATIONS {
        assert!(is_reserved(&reserve(&store, &of, id, 2, NOW)), "{id}");
        assert_eq!(commit(&store, &of, id, 1, NOW).settled, Settled::Committed);
    }
    assert!(!is_reserved(&reserve(&store, &of, RESERVATIONS, 1, NOW)), "the store is full of them");
    assert_eq!(commit(&store, &of, RESERVATIONS, 1, NOW).settled, Settled::Reported);
    assert_eq!(left(&store, &of, NOW), 1_000_000 - 1 - 25_000, "and each was counted");
    // The same token, so the same shard.
    let others = (0..1_000).map(|tag| {
        let key = KeyHash { token: of[0].key.token, tag: of[0].key.tag ^ (tag << 40) };
        Counter { key, quota: of[0].quota }
    });
    for other in others {
        assert!(store.check(&[other], Hits::ONE, NOW)[0].allowed);
    }
    // Ids are forgotten a minute after the end of their reservations.
    assert!(is_reserved(&reserve(&store, &of, RESERVATIONS + 1, 1, seconds(121))));
}

#[test]
fn a_commit_says_that_it_frees_something_after_an_extension_and_at_another_owner() {
    let (store, of) = (empty_store(), a_minute(1_000));
    assert!(is_reserved(&reserve(&store, &of, 1, 1_000, NOW)));
    assert!(!store.check(&of, Hits::ONE, NOW)[0].allowed);
    assert!(is_reserved(&reserve(&store, &of, 1, 1_000, seconds(1))));
    let next = empty_store();
    for counter in all_of(&store, seconds(1)) {
        next.merge(counter, seconds(1));
    }
    for owner in [&store, &next] {
        assert!(commit(owner, &of, 1, 10, seconds(2)).frees);
        assert!(is_reserved(&reserve(owner, &of, 2, 10, seconds(2))));
        assert!(!commit(owner, &of, 2, 10, seconds(2)).frees, "nothing was refused since");
    }
}

#[test]
fn a_reservation_grows_if_there_is_room_and_stays_as_it_is_otherwise() {
    let (store, of) = (empty_store(), a_minute(100));
    assert!(is_reserved(&reserve(&store, &of, 1, 10, NOW)));
    assert!(is_reserved(&reserve(&store, &of, 1, 90, NOW)));
    assert_eq!(left(&store, &of, NOW), 10);
    assert!(!is_reserved(&reserve(&store, &of, 2, 11, NOW)));
    let refused = reserve(&store, &of, 1, 101, NOW);
    assert_eq!((is_reserved(&refused), refused.verdicts[0].remaining), (false, 10));
    assert!(is_reserved(&reserve(&store, &of, 1, 20, NOW)), "less than before changes nothing");
    assert_eq!(left(&store, &of, NOW), 10);
    assert_eq!(commit(&store, &of, 1, 90, NOW).settled, Settled::Committed);
    assert_eq!(left(&store, &of, NOW), 10);
}

/// A reload adds a limit to a list, takes one away, or changes their order.
#[test]
fn a_commit_finds_its_reservation_by_other_limits_of_its_descriptor() {
    let hour = (Algorithm::FixedWindow, 1_000, Span::from_secs(3_600));
    let ten_minutes = (Algorithm::FixedWindow, 100, Span::from_secs(600));
    let one = counters(&[ten_minutes]);
    let two = counters(&[ten_minutes, hour]);
    let turned = counters(&[hour, ten_minutes]);
    for (before, after) in [(&one, &two), (&two, &one), (&two, &turned)] {
        let store = empty_store();
        assert!(is_reserved(&reserve(&store, before, 1, 60, NOW)));
        let left_of_first = |of: &[Counter]| {
            let minutes = |it: &&Counter| it.quota.window() == Span::from_secs(600);
            left(&store, &[*of.iter().find(minutes).expect("there")], NOW)
        };
        assert_eq!(left_of_first(after), 40);
        assert_eq!(commit(&store, after, 1, 30, NOW).settled, Settled::Committed);
        assert_eq!(left_of_first(after), 70);
        assert_eq!(commit(&store, before, 1, 30, NOW).settled, Settled::Again);
        assert_eq!(left_of_first(before), 70);
    }
}

#[test]
fn what_is_reserved_is_not_kept_free_of_a_descriptor_that_is_begun_anew() {
    let descriptor = KeyHasher::new([1; 16]).descriptor("d", &[Entry { key: "k", value: "v" }]);
    let mut interventions = Interventions::default();
    let mut before = a_minute(100);
    let store = empty_store();
    for id in 0..200 {
        // What was reserved before that has ended.
        let now = seconds(61 * id);
        let id = u128::from(id);
        assert!(is_reserved(&reserve(&store, &before, id, 60, now)));
        assert!(store.check(&before, Hits::new(40), now)[0].allowed);
        let anew = interventions.begin_anew(descriptor, now).counts_as();
        let quota = before[0].quota;
        let after = vec![Counter { key: anew.counter(&quota, Mode::Strict, Scope::Region), quota }];
        assert_eq!(left(&store, &after, now), 100, "after {id} orders");
        assert_eq!(commit(&store, &after, id, 10, now).settled, Settled::Reported);
        assert_eq!(left(&store, &after, now), 90);
        assert!(!store.check(&before, Hits::ONE, now)[0].allowed, "it is reserved of the former");
        before = after;
    }
}

/// Its id is of the counters before, of which the new ones know nothing.
#[test]
fn a_commit_that_is_repeated_after_a_reset_counts_in_the_new_counters_once() {
    let descriptor = KeyHasher::new([1; 16]).descriptor("d", &[Entry { key: "k", value: "v" }]);
    let (store, before) = (empty_store(), a_minute(100));
    assert!(is_reserved(&reserve(&store, &before, 1, 60, NOW)));
    assert_eq!(commit(&store, &before, 1, 50, NOW).settled, Settled::Committed);
    let anew = Interventions::default().begin_anew(descriptor, NOW).counts_as();
    let quota = before[0].quota;
    let after = vec![Counter { key: anew.counter(&quota, Mode::Strict, Scope::Region), quota }];
    assert_eq!(left(&store, &after, NOW), 100);
    for settled in [Settled::Reported, Settled::Again, Settled::Again] {
        assert_eq!(commit(&store, &after, 1, 50, seconds(1)).settled, settled);
        assert_eq!(left(&store, &after, seconds(1)), 50);
    }
}

/// Two requests of one id, each of which may be refused by another owner after this one admitted
/// it: what stays reserved is what the other one was promised, and what was there before.
#[test]
fn what_is_undone_of_one_request_leaves_what_another_was_promised() {
    for (before, first, second) in
        [(10, 500, 300), (10, 500, 500), (0, 500, 500), (0, 300, 500), (5, 100, 800)]
    {
        for first_ends_first in [true, false] {
            let (store, of) = (empty_store(), a_minute(1_000));
            if before > 0 {
                assert!(is_reserved(&reserve(&store, &of, 1, before, NOW)));
            }
            let made = |amount, now| reserve(&store, &of, 1, amount, now).made.expect("promised");
            let both = [(made(first, NOW), second), (made(second, NOW), first)];
            let order = if first_ends_first { [0, 1] } else { [1, 0] };
            for (at, stays) in order.into_iter().zip([both[order[0]].1, before]) {
                let made = both[at].0;
                store.undo_if(&of, (key(&of, 1), made), None, NOW, || true).expect("owned");
                let reserved = 1_000 - left(&store, &of, NOW);
                assert_eq!(reserved, stays, "{before}, {first}, {second}: {at}");
            }
        }
    }
}

#[test]
fn what_a_refused_request_reserved_is_undone_unless_it_was_changed_since() {
    let (store, of) = (empty_store(), a_minute(100));
    let undo = |store: &Store, made: Made, now| {
        store.undo_if(&of, (key(&of, 1), made), None, now, || true).expect("owned").settled
    };
    // Of nothing before: the id may be reserved anew.
    let first = reserve(&store, &of, 1, 40, NOW).made.expect("it is new");
    assert_eq!((first.amount, first.before), (40, 0));
    assert_eq!(undo(&store, first, NOW), Settled::Committed);
    assert_eq!(left(&store, &of, NOW), 100);
    assert_eq!(undo(&store, first, NOW), Settled::Again);
    assert!(is_reserved(&reserve(&store, &of, 1, 40, NOW)));
    // Of less before, and a copy of it knows.
    let replica = empty_store();
    let grown = reserve(&store, &of, 1, 90, NOW).made.expect("it is more");
    assert_eq!((grown.amount, grown.before), (90, 40));
    copy_all(&store, &replica);
    assert_eq!(undo(&store, grown, NOW), Settled::Committed);
    copy_all(&store, &replica);
    assert_eq!((left(&store, &of, NOW), left(&replica, &of, NOW)), (60, 60));
    // A refused check may be cached elsewhere.
    let grown = reserve(&store, &of, 1, 90, NOW).made.expect("it is more");
    assert!(!store.check(&of, Hits::new(50), NOW)[0].allowed);
    let undone = store.undo_if(&of, (key(&of, 1), grown), None, NOW, || true).expect("owned");
    assert!(undone.frees);
    // One that has grown since stays, and so does one that is settled.
    let grown = reserve(&store, &of, 1, 50, NOW).made.expect("it is more");
    assert!(is_reserved(&reserve(&store, &of, 1, 60, NOW)));
    assert_eq!(undo(&store, grown, NOW), Settled::Committed);
    assert_eq!(undo(&store, grown, NOW), Settled::Again);
    assert_eq!(left(&store, &of, NOW), 40);
    assert_eq!(commit(&store, &of, 1, 30, NOW).settled, Settled::Committed);
    assert_eq!(undo(&store, grown, NOW), Settled::Again);
    assert_eq!(left(&store, &of, NOW), 70);
}

/// An owner that was cut off counted a commit alone, and so did the next owner another one.
#[test]
fn a_commit_that_no_replica_has_is_taken_back_when_the_key_is_lost() {
    for algorithm in Algorithm::ALL {
        let of = counters(&[(algorithm, 1_000, Span::from_secs(86_400))]);
        let (former, next) = (empty_store(), empty_store());
        assert!(is_reserved(&reserve(&former, &of, 1, 50, NOW)));
        assert!(is_reserved(&reserve(&former, &of, 2, 50, NOW)));
        copy_all(&former, &next);
        let take_back = |id, settlement: &Settlement| {
            let cost = Hits::new(50);
            let commit = Commit { key: key(&of, id), cost, remembered: REMEMBERED };
            let applied = settlement.applied.expect("it was applied");
            former.take_back(&of, (&commit, applied), None, NOW);
        };
        let alone = commit(&former, &of, 1, 50, NOW);
        let unknown = commit(&former, &of, 3, 50, NOW);
        assert_eq!(commit(&former, &of, 1, 50, NOW).applied, None, "the first one has");
        assert_eq!(commit(&next, &of, 2, 50, NOW).settled, Settled::Committed);
        for _ in 0..2 {
            take_back(1, &alone);
            take_back(3, &unknown);
        }
        assert_eq!(left(&former, &of, NOW), 900, "both are reserved: {algorithm:?}");
        copy_all(&former, &next);
        // It is sent again.
        assert_eq!(commit(&next, &of, 1, 50, NOW).settled, Settled::Committed);
        assert_eq!(commit(&next, &of, 3, 50, NOW).settled, Settled::Reported);
        assert_eq!(left(&next, &of, NOW), 850, "{algorithm:?}");
    }
}

#[test]
fn a_log_of_overruns_is_bounded() {
    let (store, of) = (empty_store(), counters(&[(Algorithm::SlidingWindowLog, 10, MINUTE)]));
    for n in 0..3_000 {
        let now = NOW.plus(Span::from_millis(n));
        commit(&store, &of, u128::from(n), 1, now);
    }
    let state = store.get(of[0].key, seconds(3)).expect("counted").state;
    assert!(state.encoded_bytes_max() <= 32 + 1_024 * 14, "{state:?}");
    // The last ten passed within the last ten milliseconds.
    assert!(!store.check(&of, Hits::ONE, seconds(62))[0].allowed);
    assert!(store.check(&of, Hits::ONE, seconds(63))[0].allowed);
}

#[derive(Clone, Debug)]
enum Op {
    Check(u8),
    Reserve {
        amount: u8,
        ttl_ms: u64,
    },
    /// The reservation at this place costs this part of 255 of its amount.
    Commit {
        at: usize,
        part: u8,
    },
    Extend {
        at: usize,
        ttl_ms: u64,
    },
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (1..12_u8).prop_map(Op::Check),
        3 => (1..12_u8, 1..20_000_u64).prop_map(|(amount, ttl_ms)| Op::Reserve { amount, ttl_ms }),
        3 => (0..8_usize, any::<u8>()).prop_map(|(at, part)| Op::Commit { at, part }),
        1 => (0..8_usize, 1..20_000_u64).prop_map(|(at, ttl_ms)| Op::Extend { at, ttl_ms }),
        3 => (0..9_000_u64).prop_map(Op::Wait),
    ]
}

struct Live {
    id: u128,
    amount: u32,
    until: Timestamp,
}

/// Commits while a snapshot goes through the counters of a descriptor and its reservations: what a
/// disk knows as settled is counted there.
#[test]
fn a_snapshot_has_no_commit_without_its_cost() {
    const DAY: Span = Span::from_secs(86_400);
    let of = counters(&[(Algorithm::FixedWindow, 10_000, DAY), (Algorithm::Gcra, 10_000, DAY)]);
    let store = empty_store();
    store.set_snapshotted(true);
    let (mut disk, mut committed, mut settled) = (empty_store(), 0, 0);
    for round in 0..40 {
        // Its file was deleted.
        let is_new = round == 8;
        if is_new {
            disk = empty_store();
        }
        let mut from = Some(Cursor::default());
        while let Some(cursor) = from {
            let mut taken = Vec::new();
            from = if is_new {
                store.scan_snapshot(cursor, NOW, 1, &mut taken)
            } else {
                store.drain_snapshot_queue(cursor, NOW, 1, &mut taken).next
            };
            for copy in taken {
                disk.merge(copy, NOW);
            }
            if committed < 200 {
                assert!(is_reserved(&reserve(&store, &of, committed, 5, NOW)));
                assert_eq!(commit(&store, &of, committed, 5, NOW).settled, Settled::Committed);
                committed += 1;
            }
        }
        let known = all_of(&disk, NOW);
        let ends = known.iter().filter_map(|copy| copy.state.reservation());
        settled = ends.filter(|end| end.is_settled).count();
        for counter in &of {
            let used = 10_000 - left(&disk, std::slice::from_ref(counter), NOW);
            assert!(used as usize >= 5 * settled, "round {round}: {used} of {settled} commits");
        }
    }
    assert_eq!((committed, settled), (200, 200), "all of them in the end");
    let mut step = store.drain_snapshot_queue(Cursor::default(), NOW, 10, &mut Vec::new());
    assert!(!step.has_passed, "nothing waits");
    assert_eq!(commit(&store, &of, 300, 5, NOW).settled, Settled::Reported);
    step = store.drain_snapshot_queue(Cursor::default(), NOW, 1_000, &mut Vec::new());
    assert!(step.has_passed, "the end that was remembered waits for the next");
}

fn all_of(store: &Store, now: Timestamp) -> Vec<StoredCounter> {
    let (mut all, mut from) = (Vec::new(), Some(Cursor::default()));
    while let Some(cursor) = from {
        from = store.scan(cursor, now, 100, |_| true, &mut all);
    }
    all
}

/// A replica gets all states.
fn copy_all(from: &Store, to: &Store) {
    for copy in all_of(from, NOW) {
        to.merge(copy, NOW);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// Beside a store without reservations, in which each commit is a plain check: what a store
    /// with reservations admits, that one admits, and the commits too.
    #[test]
    fn what_is_reserved_is_there_when_it_is_committed(
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
        limit in 1..40_u32,
        is_fine in any::<bool>(),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let of = counters(&[(algorithm, limit, Span::from_secs(20))]);
        let of_each = || if is_fine { fine_store() } else { empty_store() };
        let (store, plain) = (of_each(), of_each());
        let (mut now, mut live, mut next) = (NOW, Vec::<Live>::new(), 0_u128);
        for op in ops {
            live.retain(|it| it.until > now);
            let reserved: u32 = live.iter().map(|it| it.amount).sum();
            let free = left(&plain, &of, now).saturating_sub(reserved);
            prop_assert_eq!(left(&store, &of, now), free);
            match op {
                Op::Check(hits) => {
                    let hits = Hits::new(i64::from(hits));
                    let verdict = store.check(&of, hits, now)[0];
                    prop_assert_eq!(verdict.allowed, hits.charge() <= u64::from(free));
                    if verdict.allowed {
                        let alone = plain.check(&of, hits, now)[0];
                        prop_assert!(alone.allowed);
                        prop_assert_eq!(verdict.remaining, alone.remaining - reserved);
                    } else if algorithm == Algorithm::FixedWindow && reserved == 0 {
                        // It counts what it refuses.
                        plain.check(&of, hits, now);
                    } else if let Retry::After(wait) = verdict.retry {
                        now = now.plus(wait);
                        let Verdict { allowed, .. } = store.check(&of, hits, now)[0];
                        prop_assert!(allowed, "refused although it waited for {}", wait);
                        plain.check(&of, hits, now);
                    }
                }
                Op::Reserve { amount, ttl_ms } => {
                    let (amount, ttl) = (u32::from(amount), Span::from_millis(ttl_ms));
                    next += 1;
                    let reserve = Reserve { key: key(&of, next), amount, ttl };
                    let reserved = store.reserve_if(&of, &reserve, None, now, || true);
                    let reserved = reserved.expect("owned");
                    prop_assert_eq!(is_reserved(&reserved), amount <= free);
                    if is_reserved(&reserved) {
                        live.push(Live { id: next, amount, until: now.plus(reserved.ttl) });
                    }
                }
                Op::Commit { at, part } if at < live.len() => {
                    let Live { id, amount, .. } = live.swap_remove(at);
                    let cost = i64::from(amount) * i64::from(part) / 255;
                    let settlement = commit(&store, &of, id, cost, now);
                    prop_assert_eq!(settlement.settled, Settled::Committed);
                    prop_assert!(plain.check(&of, Hits::new(cost), now)[0].allowed);
                }
                Op::Extend { at, ttl_ms } if at < live.len() => {
                    let (ttl, it) = (Span::from_millis(ttl_ms), &mut live[at]);
                    let reserve = Reserve { key: key(&of, it.id), amount: it.amount, ttl };
                    let again = store.reserve_if(&of, &reserve, None, now, || true);
                    prop_assert!(again.is_some_and(|again| is_reserved(&again)));
                    it.until = it.until.max(now.plus(ttl));
                }
                Op::Commit { .. } | Op::Extend { .. } => {}
                Op::Wait(ms) => now = now.plus(Span::from_millis(ms)),
            }
        }
    }

    /// Copies arrive in any order, some of them twice, and what takes over answers the same.
    #[test]
    fn a_replica_knows_what_is_reserved(
        ops in prop::collection::vec((op(), any::<bool>()), 1..60),
    ) {
        let of = counters(&[(Algorithm::SlidingWindowCounter, 30, Span::from_secs(20))]);
        let (store, replica) = (empty_store(), empty_store());
        let (mut now, mut next, mut copies) = (NOW, 0_u128, Vec::new());
        for (op, is_copied) in ops {
            match op {
                Op::Check(hits) => drop(store.check(&of, Hits::new(i64::from(hits)), now)),
                Op::Reserve { amount, .. } => {
                    next += 1;
                    reserve(&store, &of, next, u32::from(amount), now);
                }
                Op::Commit { at, part } => {
                    commit(&store, &of, at as u128, i64::from(part % 8), now);
                }
                Op::Extend { at, .. } => drop(reserve(&store, &of, at as u128, 3, now)),
                Op::Wait(ms) => now = now.plus(Span::from_millis(ms)),
            }
            if is_copied {
                copies.extend(all_of(&store, now));
            }
        }
        copies.extend(all_of(&store, now));
        copies.reverse();
        for copy in copies.iter().chain(copies.iter().take(3)) {
            replica.merge(copy.clone(), now);
        }
        prop_assert_eq!(left(&replica, &of, now), left(&store, &of, now));
        for id in 1..=next {
            let settled = |it: &Store| commit(it, &of, id, 1, now).settled;
            prop_assert_eq!(settled(&replica), settled(&store));
        }
        prop_assert_eq!(left(&replica, &of, now), left(&store, &of, now));
    }

    #[test]
    fn the_joined_copies_of_a_reservation_do_not_depend_on_their_order(
        copies in prop::collection::vec((0..100_u64, any::<bool>()), 1..6),
    ) {
        let of = a_minute(10);
        let copy = |&(seconds, is_settled): &(u64, bool)| {
            let (store, now) = (empty_store(), NOW.plus(Span::from_secs(seconds)));
            reserve(&store, &of, 1, 5, now);
            if is_settled {
                commit(&store, &of, 1, 0, now);
            }
            store.get(key(&of, 1), now).expect("stored")
        };
        let copies: Vec<StoredCounter> = copies.iter().map(copy).collect();
        let joined = |copies: &mut dyn Iterator<Item = &StoredCounter>| {
            let store = empty_store();
            for copy in copies {
                store.merge(copy.clone(), NOW);
            }
            let joined = store.get(key(&of, 1), NOW).expect("stored");
            (joined.state, joined.expires)
        };
        let forward = joined(&mut copies.iter());
        prop_assert_eq!(&joined(&mut copies.iter().rev().chain(&copies)), &forward);
        let until = forward.0.reservation().expect("a reservation").until;
        prop_assert!(until <= seconds(100).plus(TTL_MAX));
    }
}

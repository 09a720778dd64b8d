//! Limits that requests carry, on several nodes.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::decide::{CarriedCheck, CarriedVerdict, DecideCarried, VerdictSource, carried_key};
use tidegate_limiter::engine::{Behavior, State};
use tidegate_limiter::policy::{Durability, Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{CounterKind, KeyHash, StoredCounter};
use tidegate_limiter::units::{Hits, Span, Timestamp};
use tidegate_testkit::in_process::{Node, cluster};
use tokio::time::{Instant, sleep};

use super::bench::{RULES, TIMEOUT, id, patient};

const HOUR: Span = Span::from_secs(3_600);

fn check(unique_key: &str, hits: i64, window: Span) -> CarriedCheck<'_> {
    CarriedCheck {
        name: "requests",
        unique_key,
        part: [0; 3],
        quota: Quota::simple(Algorithm::FirstHitWindow, 10, window).expect("valid"),
        hits: Hits::new(hits),
        behavior: Behavior::default(),
        at: None,
        resets: false,
        is_leased: false,
    }
}

/// Keys that `owner` owns, from the first of this name on.
fn keys_of(node: &Node, owner: &str, name: &str) -> impl Iterator<Item = String> {
    let (topology, hasher) = (node.core.topology.load_full(), node.core.hasher.clone());
    let (owner, name) = (id(owner), name.to_owned());
    (0..).map(move |number| format!("{name}-{number}")).filter(move |key| {
        let token = hasher.carried("requests", key, [0; 3]).token();
        topology.owner(Scope::Region, token) == Some(&owner)
    })
}

fn counter_of(node: &Node, key: &str) -> KeyHash {
    let quota = check(key, 1, HOUR).quota;
    let kind = CounterKind::of_any_window(&quota, Mode::Strict, Scope::Region);
    node.core.hasher.carried("requests", key, [0; 3]).counter_of(kind)
}

async fn decide(node: &Node, checks: &[CarriedCheck<'_>]) -> Vec<CarriedVerdict> {
    node.core.decider.decide_carried(checks).await
}

async fn one(node: &Node, check: CarriedCheck<'_>) -> (bool, u32, VerdictSource) {
    let decided = decide(node, &[check]).await.remove(0);
    (decided.verdict.allowed, decided.verdict.remaining, decided.source)
}

async fn three(durability: fn(&mut tidegate::config::Config)) -> Vec<Node> {
    cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, durability).await
}

fn replicated(config: &mut tidegate::config::Config) {
    patient(config);
    config.gubernator.durability = Durability::Replicated;
    // What is copied without being waited for comes late.
    config.cluster.replication_interval = Span::from_secs(1);
}

/// What was given back leaves nothing to copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_beside_one_that_gives_back_are_confirmed() {
    let nodes = three(replicated).await;
    let a = &nodes[0];
    let keys: Vec<String> = keys_of(a, "b", "k").take(4).collect();
    let mut checks: Vec<_> = keys.iter().map(|key| check(key, 1, HOUR)).collect();
    checks[2].hits = Hits::new(-1);
    // Of one key: a hit, and back.
    checks.extend([check(&keys[3], -2, HOUR)]);
    let decided = decide(a, &checks).await;
    let seen: Vec<_> = decided.iter().map(|it| (it.verdict.remaining, it.source)).collect();
    let owner = VerdictSource::Owner;
    assert_eq!(seen, [(9, owner), (9, owner), (10, owner), (9, owner), (10, owner)]);

    // A reset of an open window counts nothing, and leaves nothing to copy either.
    let reset = CarriedCheck { resets: true, ..check(&keys[0], 1, HOUR) };
    assert_eq!(one(a, reset).await, (true, 10, owner));
    let own = keys_of(a, "a", "own").next().expect("one");
    assert_eq!(one(a, check(&own, 1, HOUR)).await, (true, 9, VerdictSource::Local));
    let reset = CarriedCheck { resets: true, ..check(&own, 1, HOUR) };
    assert_eq!(one(a, reset).await, (true, 10, VerdictSource::Local));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirmed_check_is_at_the_replica_of_its_key() {
    let nodes = three(replicated).await;
    let a = &nodes[0];
    let keys: Vec<String> = keys_of(a, "b", "k").take(200).collect();
    let checks: Vec<_> = keys.iter().map(|key| check(key, 1, HOUR)).collect();
    let decided = decide(a, &checks).await;
    assert!(decided.iter().all(|it| it.source == VerdictSource::Owner));
    let topology = a.core.topology.load_full();
    let mut replicas = BTreeSet::new();
    for key in &keys {
        let counter = counter_of(a, key);
        let of_key = topology.ring().expect("a ring").replicas(counter.token, 1)[1].clone();
        let replica = nodes.iter().find(|node| node.core.topology.load().me == of_key);
        let store = &replica.expect("a node").core.store;
        assert!(store.get(counter, Timestamp::EPOCH).is_some(), "{key} at {of_key}");
        replicas.insert(of_key);
    }
    assert_eq!(replicas.len(), 2, "of one owner, keys have their copies at both others");
}

/// One copy has what all of them counted, also where the owner itself got the message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_confirmation_serves_the_checks_of_one_key() {
    let nodes = three(replicated).await;
    let a = &nodes[0];
    let confirmed = || a.joined().replicator.counters.confirmed.load(Ordering::Relaxed);
    for owner in ["a", "b"] {
        let key = keys_of(a, owner, "k").next().expect("one");
        let before = confirmed();
        let decided = decide(a, &vec![check(&key, 1, HOUR); 200]).await;
        let left: Vec<_> =
            decided.iter().map(|it| (it.verdict.allowed, it.verdict.remaining)).collect();
        assert_eq!(left[..10], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0].map(|left| (true, left)));
        assert!(left[10..].iter().all(|it| *it == (false, 0)));
        assert!(decided.iter().all(|it| it.source != VerdictSource::Fallback));
        if owner == "a" {
            assert_eq!(confirmed() - before, 1);
        }
        let counter = counter_of(a, &key);
        let has_all = |node: &&Node| match node.core.store.get(counter, Timestamp::EPOCH) {
            Some(StoredCounter { state: State::FirstHitWindow { used, .. }, .. }) => used == 10,
            _ => false,
        };
        assert_eq!(nodes.iter().filter(has_all).count(), 2, "the owner and its replica");
    }
}

/// By name and key alone, whatever else tells its counters apart, and at all nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_begun_anew_and_blocked_by_hand_with_all_its_counters() {
    let nodes = three(patient).await;
    let [a, b, c] = &nodes[..] else { unreachable!("three nodes") };
    let bucket = Quota::simple(Algorithm::TokenBucket, 10, HOUR).expect("valid");
    let window = check("ann", 10, HOUR);
    let leased = CarriedCheck { is_leased: true, part: [9, 1, 0], ..window };
    let all = [window, leased, CarriedCheck { quota: bucket, part: [0, 1, 2], ..window }];
    let of = |check, hits| CarriedCheck { hits: Hits::new(hits), ..check };
    for check in all {
        assert!(one(a, check).await.0);
        for node in [a, b, c] {
            assert!(!one(node, of(check, 1)).await.0);
        }
    }
    let other = check("ben", 1, HOUR);
    assert_eq!(one(b, other).await.1, 9);

    let key = carried_key(&b.core.hasher, "requests", "ann");
    let interventions = b.core.decider.interventions();
    let mesh = b.core.mesh().expect("a cluster");
    let announced = interventions.announce(interventions.begin_anew(key), mesh).await;
    assert_eq!(announced.confirmed.len(), 2);
    for check in all {
        // Alone, and beside others of its key.
        assert!(one(c, of(check, 1)).await.0);
        let decided = decide(a, &[of(check, 1), of(check, 8), of(check, 1)]).await;
        let allowed: Vec<_> = decided.iter().map(|it| it.verdict.allowed).collect();
        // Of a leased limit others may hold what is left.
        assert!(check.is_leased || allowed == [true, true, false], "{check:?}: {allowed:?}");
    }
    assert_eq!(one(c, other).await.1, 8, "of another key");

    let until = b.core.clock.now().plus(HOUR);
    let announced = interventions.announce(interventions.block(key, until), mesh).await;
    assert_eq!(announced.confirmed.len(), 2);
    for node in [a, b, c] {
        for check in all {
            let look = of(check, 0);
            assert_eq!(one(node, look).await, (false, 0, VerdictSource::Blocked));
            let decided = decide(node, &[look, of(other, 0)]).await;
            assert!(!decided[0].verdict.allowed && decided[1].verdict.allowed);
        }
    }
}

/// The longer window that the refusals were of has ended, so all nodes forget them: the one that
/// sent the check at once, the others when the owner has told them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_that_a_shorter_one_ended_is_refused_nowhere() {
    let nodes = three(patient).await;
    let [a, b, c] = &nodes[..] else { unreachable!("three nodes") };
    let mut keys = keys_of(a, "b", "k");
    // Sent alone, and beside a check of another key, from either of the others.
    for (sender, is_alone) in [(a, true), (a, false), (b, true), (b, false)] {
        let key = keys.next().expect("one");
        let other = keys.next().expect("one");
        assert!(one(a, check(&key, 10, HOUR)).await.0);
        for node in [a, c] {
            assert!(!one(node, check(&key, 1, HOUR)).await.0);
            let again = one(node, check(&key, 1, HOUR)).await;
            assert_eq!(again, (false, 0, VerdictSource::NegativeCache));
        }
        // The clock passes the end of the shorter window.
        sleep(Duration::from_millis(3)).await;
        let short = check(&key, 1, Span::from_millis(2));
        let checks = [short, check(&other, 1, HOUR)];
        let decided = decide(sender, if is_alone { &checks[..1] } else { &checks }).await;
        assert!(decided.iter().all(|it| it.verdict.allowed), "{decided:?}");
        let (is_allowed, _, source) = one(sender, check(&key, 1, HOUR)).await;
        assert!(is_allowed, "{source:?}, alone: {is_alone}");
        let ends = Instant::now() + TIMEOUT;
        while !one(c, check(&key, 1, HOUR)).await.0 {
            assert!(Instant::now() < ends, "c goes on to refuse, alone: {is_alone}");
        }
    }
}

/// A refusal says when it ends, and so does one that is remembered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remembered_refusal_ends_with_a_window_that_a_longer_one_prolongs() {
    let nodes = three(patient).await;
    let [a, b, _] = &nodes[..] else { unreachable!("three nodes") };
    let key = keys_of(a, "b", "k").next().expect("one");
    assert!(one(a, check(&key, 10, HOUR)).await.0);
    let more = |window| {
        let quota = Quota::simple(Algorithm::FirstHitWindow, 20, window).expect("valid");
        CarriedCheck { quota, ..check(&key, 1, window) }
    };
    let minutes = Span::from_secs(600);
    assert!(one(b, more(minutes)).await.0);
    let refusal = check(&key, 1, HOUR);
    let ends = Instant::now() + TIMEOUT;
    // What b says of the shorter window may still be on its way.
    while one(a, refusal).await != (false, 0, VerdictSource::NegativeCache) {
        assert!(Instant::now() < ends, "it is not remembered");
    }
    assert!(decide(a, &[refusal]).await[0].verdict.reset <= minutes);
    assert!(one(b, more(HOUR)).await.0);
    let ends = Instant::now() + TIMEOUT;
    while decide(a, &[refusal]).await[0].verdict.reset <= minutes {
        assert!(Instant::now() < ends, "a goes on to name the end that it had");
    }
}

/// No window was ended before its time, so no node is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_stay_while_windows_end_by_themselves() {
    let nodes = three(patient).await;
    let a = &nodes[0];
    let mut keys = keys_of(a, "b", "k");
    let (key, other) = (keys.next().expect("one"), keys.next().expect("one"));
    assert!(one(a, check(&key, 10, HOUR)).await.0);
    assert!(!one(a, check(&key, 1, HOUR)).await.0);
    // Windows of the other key open and end, and a limit that is raised refuses nothing.
    for _ in 0..5 {
        assert!(one(a, check(&other, 1, Span::from_millis(1))).await.0);
        sleep(Duration::from_millis(2)).await;
    }
    let quota = Quota::simple(Algorithm::FirstHitWindow, 20, HOUR).expect("valid");
    let raised = CarriedCheck { quota, ..check(&key, 1, HOUR) };
    assert_eq!(one(a, raised).await, (true, 9, VerdictSource::Owner));
    let remembered = one(a, check(&key, 1, HOUR)).await;
    assert_eq!(remembered, (false, 0, VerdictSource::NegativeCache));
}

/// Two nodes ask for one key, of which only one asks for grants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_granted_and_not_spent_is_refused_only_until_it_is_back() {
    let nodes = three(patient).await;
    let [a, b, c] = &nodes[..] else { unreachable!("three nodes") };
    let mut keys = keys_of(a, "b", "k");
    let (key, other) = (keys.next().expect("one"), keys.next().expect("another"));
    let quota = Quota::simple(Algorithm::FirstHitWindow, 1_000, HOUR).expect("valid");
    let of = |is_leased, hits| CarriedCheck { quota, is_leased, ..check(&key, hits, HOUR) };
    granted(a, &of(true, 1)).await;
    let used = i64::from(1_000 - one(b, of(false, 0)).await.1);
    let left = one(c, of(false, 1_000 - used)).await;
    assert_eq!((left.0, left.1), (true, 0));
    // With another key in one call to their owner.
    let pair = [of(false, 1), check(&other, 1, HOUR)];
    let refused = decide(c, &pair).await;
    assert!(!refused[0].verdict.allowed);
    eventually_passes(c, of(false, 1)).await;
    assert!(recalled(a) > 0, "it came back before its term was over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leased_checks_of_keys_that_are_seldom_used_share_a_call() {
    let nodes = three(patient).await;
    let a = &nodes[0];
    let keys: Vec<String> = keys_of(a, "b", "k").take(100).collect();
    let leased = |key| CarriedCheck { is_leased: true, ..check(key, 1, HOUR) };
    let checks: Vec<_> = keys.iter().map(|key| leased(key)).collect();
    // With those of the cluster itself.
    let calls = || a.joined().mesh.counters.calls.load(Ordering::Relaxed);
    let before = calls();
    let decided = decide(a, &checks).await;
    let seen = |it: &CarriedVerdict| (it.verdict.remaining, it.source);
    assert!(decided.iter().map(seen).all(|it| it == (9, VerdictSource::Owner)));
    let sent = calls() - before;
    assert!(sent < 50, "{sent} calls for 100 checks");
}

/// A key that clients use with `GLOBAL` and without: a refused node goes on when hits come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_refusal_ends_when_granted_hits_come_back() {
    let nodes = three(patient).await;
    let [a, _, c] = &nodes[..] else { unreachable!("three nodes") };
    let key = keys_of(a, "b", "k").next().expect("one");
    let quota = Quota::simple(Algorithm::FirstHitWindow, 1_000, HOUR).expect("valid");
    let of = |is_leased, hits| CarriedCheck { quota, is_leased, ..check(&key, hits, HOUR) };
    granted(a, &of(true, 1)).await;
    let left = one(c, of(false, 0)).await.1;
    assert!(one(c, of(false, left.into())).await.0);
    assert!(!one(c, of(false, 1)).await.0);
    eventually_passes(c, of(false, 1)).await;
    assert!(recalled(a) > 0, "it came back before its term was over");
}

/// The same where the owner of the key refuses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_granted_is_asked_back_when_its_owner_refuses() {
    let nodes = three(patient).await;
    let [a, b, _] = &nodes[..] else { unreachable!("three nodes") };
    let key = keys_of(a, "b", "k").next().expect("one");
    let quota = Quota::simple(Algorithm::FirstHitWindow, 1_000, HOUR).expect("valid");
    let of = |is_leased, hits| CarriedCheck { quota, is_leased, ..check(&key, hits, HOUR) };
    granted(a, &of(true, 1)).await;
    let left = one(b, of(false, 0)).await.1;
    assert!(one(b, of(false, left.into())).await.0);
    eventually_passes(b, of(false, 1)).await;
    assert!(recalled(a) > 0, "it came back before its term was over");
}

/// Hits that other nodes have spent before a reset are taken off with it; what they hold is not
/// given out twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_takes_what_other_nodes_have_spent() {
    let nodes = three(patient).await;
    let [a, b, c] = &nodes[..] else { unreachable!("three nodes") };
    takes_back(a, b).await;
    let key = keys_of(a, "b", "spent").next().expect("one");
    let quota = Quota::simple(Algorithm::FirstHitWindow, 1_000, HOUR).expect("valid");
    let of = |is_leased, hits| CarriedCheck { quota, is_leased, ..check(&key, hits, HOUR) };
    granted(a, &of(true, 1)).await;
    while one(a, of(true, 1)).await.0 {}
    let reset = CarriedCheck { resets: true, ..of(false, 0) };
    let first = one(c, reset).await;
    println!("{} of 1000 at once", first.1);
    let start = Instant::now();
    while one(c, of(false, 0)).await.1 < 1_000 {
        assert!(start.elapsed() < TIMEOUT, "{}", one(c, of(false, 0)).await.1);
        sleep(Duration::from_millis(20)).await;
    }
    // Nothing was taken twice.
    assert!(one(c, of(false, 1_000)).await.0);
    for node in [a, b, c] {
        assert!(!one(node, of(true, 1)).await.0);
    }
}

/// What was granted before the first of two resets is accounted for after the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_reset_takes_no_hits_that_come_after_it() {
    let nodes = three(patient).await;
    let [a, b, c] = &nodes[..] else { unreachable!("three nodes") };
    takes_back(a, b).await;
    let keys: Vec<String> = keys_of(a, "b", "twice").take(4).collect();
    let quota = Quota::simple(Algorithm::FirstHitWindow, 1_000, HOUR).expect("valid");
    let of = |key, is_leased, hits| CarriedCheck { quota, is_leased, ..check(key, hits, HOUR) };
    for key in &keys {
        granted(a, &of(key, true, 1)).await;
        for _ in 0..5 {
            one(a, of(key, true, 1)).await;
        }
    }
    let reset = |key| CarriedCheck { resets: true, ..of(key, false, 0) };
    for key in &keys {
        one(c, reset(key)).await;
    }
    // The grants have not ended yet, and their holder has said what it spent.
    sleep(Duration::from_secs(1)).await;
    for key in &keys {
        one(c, reset(key)).await;
        let left = one(c, of(key, false, 0)).await.1;
        assert!(one(c, of(key, false, left.into())).await.0);
    }
    sleep(Duration::from_secs(3)).await;
    for key in &keys {
        assert_eq!(one(c, of(key, false, 0)).await.1, 0, "{key}");
    }
}

/// A node spends nothing after a reset that it was granted before it, which the owner would take
/// off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_after_a_reset_are_counted_also_at_a_node_that_held_some() {
    let nodes = three(patient).await;
    let [a, b, _] = &nodes[..] else { unreachable!("three nodes") };
    takes_back(a, b).await;
    let keys: Vec<String> = keys_of(a, "b", "after").take(80).collect();
    let quota = Quota::simple(Algorithm::FirstHitWindow, 1_000, HOUR).expect("valid");
    let of = |key, hits| CarriedCheck { quota, is_leased: true, ..check(key, hits, HOUR) };
    let mut held = 0;
    for (number, key) in keys.iter().enumerate() {
        let before = a.core.decider.granted_hits().1;
        granted(a, &of(key, 1)).await;
        held += a.core.decider.granted_hits().1 - before;
        let reset = CarriedCheck { resets: true, ..of(key, 0) };
        // In one request, and one after the other.
        if number % 2 == 0 {
            let mut checks = vec![reset];
            checks.extend([of(key, 1); 50]);
            assert!(decide(a, &checks).await.iter().all(|it| it.verdict.allowed));
        } else {
            one(a, reset).await;
            for _ in 0..50 {
                assert!(one(a, of(key, 1)).await.0);
            }
        }
    }
    println!("{held} hits were held");
    // What was granted before the resets is accounted for, and what is granted now is given back.
    sleep(Duration::from_secs(4)).await;
    for key in &keys {
        assert_eq!(one(b, CarriedCheck { is_leased: false, ..of(key, 0) }).await.1, 950, "{key}");
    }
}

/// What a reset is going to take is not there to be refunded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_after_a_reset_takes_no_hits_that_come_later() {
    let nodes = three(patient).await;
    let [a, b, c] = &nodes[..] else { unreachable!("three nodes") };
    takes_back(a, b).await;
    let keys: Vec<String> = keys_of(a, "b", "refund").take(12).collect();
    let quota = Quota::simple(Algorithm::FirstHitWindow, 1_000, HOUR).expect("valid");
    let of = |key, is_leased, hits| CarriedCheck { quota, is_leased, ..check(key, hits, HOUR) };
    for (number, key) in keys.iter().enumerate() {
        granted(a, &of(key, true, 1)).await;
        for _ in 0..30 {
            one(a, of(key, true, 1)).await;
        }
        // No call for more is on its way: what that brought could be given back after the reset.
        sleep(Duration::from_millis(200)).await;
        // By the rule of `GLOBAL` and by that of others.
        let is_leased = number % 2 == 0;
        one(c, CarriedCheck { resets: true, ..of(key, is_leased, 0) }).await;
        one(c, of(key, is_leased, -30)).await;
        sleep(Duration::from_millis(50)).await;
        one(c, of(key, is_leased, -30)).await;
        assert!(one(b, of(key, false, 400)).await.0);
    }
    sleep(Duration::from_secs(4)).await;
    for key in &keys {
        assert_eq!(one(b, of(key, false, 0)).await.1, 600, "{key}");
    }
}

/// What refunds have added to a limit ends with a reset, also beside hits that may yet be spent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_ends_the_credit_of_a_window_beside_grants() {
    let nodes = three(patient).await;
    let [a, b, c] = &nodes[..] else { unreachable!("three nodes") };
    takes_back(a, b).await;
    let quota = Quota::simple(Algorithm::FirstHitWindow, 100, HOUR).expect("valid");
    let behavior = Behavior { credits: true, ..Behavior::default() };
    let of = |key, is_leased, hits| {
        let behavior = if is_leased { Behavior::default() } else { behavior };
        CarriedCheck { quota, behavior, is_leased, ..check(key, hits, HOUR) }
    };
    let keys: Vec<String> = keys_of(a, "b", "credit").take(8).collect();
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(one(c, of(key, false, -5_000)).await.1, 5_100);
        granted(a, &of(key, true, 1)).await;
        let reset = CarriedCheck { resets: true, ..of(key, number % 2 == 0, 0) };
        assert!(one(c, reset).await.1 <= 100);
        let mut passed = 0;
        while one(b, of(key, false, 1)).await.0 {
            passed += 1;
            assert!(passed <= 100, "{key}");
        }
    }
}

/// Requests of a shorter window have ended the one that was reset, or that hits were given back to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_that_are_taken_later_are_taken_off_no_other_window() {
    const SHORT: Span = Span::from_millis(300);
    let nodes = three(patient).await;
    let [a, b, c] = &nodes[..] else { unreachable!("three nodes") };
    takes_back(a, b).await;
    let of = |key, is_leased, hits, window| {
        let quota = Quota::simple(Algorithm::FirstHitWindow, 1_000, window).expect("valid");
        CarriedCheck { quota, is_leased, ..check(key, hits, window) }
    };
    let keys: Vec<String> = keys_of(a, "b", "window").take(8).collect();
    for (number, key) in keys.iter().enumerate() {
        granted(a, &of(key, true, 1, HOUR)).await;
        for _ in 0..10 {
            one(a, of(key, true, 1, HOUR)).await;
        }
        sleep(Duration::from_millis(400)).await;
        let back = match number % 2 {
            0 => CarriedCheck { resets: true, ..of(key, false, 0, HOUR) },
            _ => of(key, false, -500, HOUR),
        };
        one(c, back).await;
        // It begins another window, and a longer one makes that stay.
        assert!(one(b, of(key, false, 1, SHORT)).await.0);
        let left = one(b, of(key, false, 0, HOUR)).await.1;
        assert!(one(b, of(key, false, left.into(), HOUR)).await.0);
    }
    sleep(Duration::from_secs(4)).await;
    for key in &keys {
        assert_eq!(one(b, of(key, false, 0, HOUR)).await.1, 0, "{key}");
    }
}

/// An owner treats a request as of its own rule, whatever is in one message with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_gives_back_is_decided_by_its_own_rule_beside_others() {
    let mut nodes = three(patient).await;
    let quota = Quota::simple(Algorithm::FirstHitWindow, 1_000, HOUR).expect("valid");
    let of = |key, is_leased, hits| CarriedCheck { quota, is_leased, ..check(key, hits, HOUR) };
    let keys: Vec<String> = keys_of(&nodes[0], "b", "beside").take(24).collect();
    for key in &keys {
        assert!(one(&nodes[0], of(key, false, 300)).await.0);
    }
    let b = nodes.remove(1);
    let [a, _] = &nodes[..] else { unreachable!("two nodes") };
    b.stop().await;
    // The new owner does not know yet what was granted, which delays a reset with `GLOBAL` alone.
    let mut at_once = 0;
    for pair in keys.chunks(2) {
        let [plain, global] = pair else { unreachable!("two keys") };
        let reset = CarriedCheck { resets: true, ..of(plain, false, 0) };
        let decided = decide(a, &[of(global, true, 1), reset, of(plain, false, 1_000)]).await;
        let remaining = decided[1].verdict.remaining;
        assert_eq!(remaining, 1_000, "{plain} by {:?}", decided[1].source);
        assert!(decided[2].verdict.allowed, "{plain}");
        at_once += u32::from(decided[1].source == VerdictSource::Owner);
        // Both kinds of one key.
        let reset = CarriedCheck { resets: true, ..of(global, false, 0) };
        let checks = [of(global, true, 1), reset, of(global, true, 1), of(global, false, 999)];
        let decided = decide(a, &checks).await;
        assert_eq!(decided[1].verdict.remaining, 1_000, "{global} by {:?}", decided[1].source);
        assert!(decided[2].verdict.allowed && decided[3].verdict.allowed, "{global}");
        assert!(!one(a, of(global, false, 1)).await.0, "{global}");
    }
    assert!(at_once > 0, "a owns all of them");
}

/// Ten refunds of all that was used, while other nodes hold granted hits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refunds_beside_grants_give_back_what_was_used_once() {
    const LIMIT: u32 = 1_000;
    const AFTER: i64 = 600;
    let nodes = three(patient).await;
    let [a, b, c] = &nodes[..] else { unreachable!("three nodes") };
    takes_back(a, b).await;
    let key = keys_of(a, "b", "given back").next().expect("one");
    let quota = Quota::simple(Algorithm::FirstHitWindow, LIMIT, HOUR).expect("valid");
    let of = |is_leased, hits| CarriedCheck { quota, is_leased, ..check(&key, hits, HOUR) };
    assert!(one(c, of(false, 100)).await.0);
    let before = a.core.decider.granted_hits().1;
    granted(a, &of(true, 1)).await;
    let held = u32::try_from(a.core.decider.granted_hits().1 - before).expect("few");
    for _ in 0..10 {
        one(c, of(true, -500)).await;
    }
    assert!(one(c, of(false, AFTER)).await.0);
    // Until all that was granted has ended, and no refund waits.
    let start = Instant::now();
    let mut left = one(c, of(false, 0)).await.1;
    while start.elapsed() < Duration::from_secs(4) {
        sleep(Duration::from_millis(100)).await;
        left = one(c, of(false, 0)).await.1;
    }
    let most = LIMIT - u32::try_from(AFTER).expect("positive") + held;
    println!("{left} left of {LIMIT}, {held} were held");
    assert!(left <= most && held > 0, "{left} left, at most {most}");
    assert!(left + held >= most - held, "{left} left: what was used is not back");
}

/// Its first resets come while hits of the owner before may be held, and the map still changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resets_at_a_new_owner_take_what_was_used_once() {
    let mut nodes = three(patient).await;
    let keys: Vec<String> = keys_of(&nodes[0], "b", "reset").take(8).collect();
    let quota = Quota::simple(Algorithm::FirstHitWindow, 1_000, HOUR).expect("valid");
    let of = |key, is_leased, hits| CarriedCheck { quota, is_leased, ..check(key, hits, HOUR) };
    for key in &keys {
        assert!(one(&nodes[0], of(key, false, 100)).await.0);
    }
    let b = nodes.remove(1);
    let [a, _] = &nodes[..] else { unreachable!("two nodes") };
    b.stop().await;
    for key in &keys {
        for _ in 0..4 {
            one(a, CarriedCheck { resets: true, ..of(key, true, 0) }).await;
        }
        assert!(one(a, of(key, false, 300)).await.0);
    }
    for key in &keys {
        let start = Instant::now();
        while one(a, of(key, false, 0)).await.1 < 700 {
            assert!(start.elapsed() < TIMEOUT, "{key}: the reset is lost");
            sleep(Duration::from_millis(20)).await;
        }
    }
    // No further reset takes hits that came after it.
    sleep(Duration::from_secs(2)).await;
    for key in &keys {
        assert_eq!(one(a, of(key, false, 0)).await.1, 700, "{key}");
    }
}

/// The owner that granted hits has gone, and its successor resets the limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_at_a_new_owner_gives_nothing_out_that_is_held() {
    const LIMIT: u32 = 1_000;
    let mut nodes = three(patient).await;
    let replica_is_c = |key: &String| {
        let token = counter_of(&nodes[0], key).token;
        let topology = nodes[0].core.topology.load_full();
        topology.ring().is_some_and(|ring| *ring.replicas(token, 1)[1] == id("c"))
    };
    let keys: Vec<String> = keys_of(&nodes[0], "b", "k").filter(replica_is_c).take(16).collect();
    let quota = Quota::simple(Algorithm::FirstHitWindow, LIMIT, HOUR).expect("valid");
    let of = |key, is_leased, hits| CarriedCheck { quota, is_leased, ..check(key, hits, HOUR) };
    let b = nodes.remove(1);
    let [a, c] = &nodes[..] else { unreachable!("two nodes") };
    for key in &keys {
        granted(a, &of(key, true, 1)).await;
    }
    b.stop().await;
    let (mut decided, mut held, mut freed) = (0, 0, 0);
    for key in &keys {
        let reset = CarriedCheck { resets: true, ..of(key, true, 0) };
        let (_, left, source) = one(c, reset).await;
        if source != VerdictSource::Local {
            continue;
        }
        decided += 1;
        let mut spent = 0;
        while let (true, _, VerdictSource::Grant) = one(a, of(key, true, 1)).await {
            spent += 1;
        }
        held += u32::from(spent > 0);
        freed += u32::from(left == LIMIT);
        assert!(left + spent <= LIMIT, "{left} at the owner, {spent} were held");
    }
    println!("of {decided} keys {held} were held at a, {freed} were whole at once");
    assert!(decided > 0, "c owns none of them");
}

/// Waits until no owner before `b` can have granted anything.
async fn takes_back(a: &Node, b: &Node) {
    let start = Instant::now();
    for key in keys_of(a, "b", "k") {
        assert!(start.elapsed() < TIMEOUT, "b takes nothing back");
        assert_eq!(one(b, check(&key, 3, HOUR)).await.1, 7);
        if one(b, CarriedCheck { resets: true, ..check(&key, 0, HOUR) }).await.1 == 10 {
            return;
        }
    }
}

/// Granted hits that the node was asked to give back.
fn recalled(node: &Node) -> u64 {
    node.core.decider.granted_hits().0.read().recalled
}

/// Checks until the node holds granted hits.
async fn granted(node: &Node, check: &CarriedCheck<'_>) {
    let (start, before) = (Instant::now(), node.core.decider.granted_hits().1);
    while node.core.decider.granted_hits().1 <= before {
        assert!(start.elapsed() < TIMEOUT, "nothing is granted");
        decide(node, std::slice::from_ref(check)).await;
    }
}

async fn eventually_passes(node: &Node, check: CarriedCheck<'_>) {
    let start = Instant::now();
    while !one(node, check).await.0 {
        assert!(start.elapsed() < TIMEOUT, "it is refused still");
        sleep(Duration::from_millis(10)).await;
    }
}

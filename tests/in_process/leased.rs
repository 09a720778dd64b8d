//! Leased rules: never over, decided mostly without the owner, and what is granted is accounted
//! for.

use std::time::Duration;

use futures_util::future::join_all;
use tidegate::decide::VerdictSource;
use tidegate::node;
use tidegate_cluster::environment::Environment;
use tidegate_cluster::mesh::codec::{COMBINED_CHECKS, VERSION, VERSIONS};
use tidegate_cluster::pki::Authority;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::policy::Scope;
use tidegate_limiter::units::Span;
use tidegate_ownership::Versions;
use tidegate_rules::stats::{GrantedCounts, RuleCounts};
use tidegate_testkit::certificates::{authority, identity};
use tidegate_testkit::in_process::{Node, NodeOptions, cluster, cluster_under, settled};
use tidegate_testkit::rules::book;
use tidegate_testkit::wait::eventually;
use tokio_util::sync::CancellationToken;

use super::forwarding::bench::{
    TIMEOUT, count, id, patient, remaining, source, token, value, value_of, without,
};

const LIMIT: usize = 300;
/// The longest of a grant.
const TERM: Duration = Duration::from_secs(1);
const RULES: &str = "
domain: test
descriptors:
  - key: fixed
    mode: leased
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 300}
  - key: sliding
    mode: leased
    on_unavailable: deny
    rate_limit: {window: 1d, requests_per_unit: 300, algorithm: sliding_window_counter}
  - key: sliced
    mode: leased
    on_unavailable: deny
    rate_limit:
      {window: 1d, requests_per_unit: 300, algorithm: sliding_window_counter, sub_windows: 24}
  - key: tokens
    mode: leased
    on_unavailable: deny
    rate_limit: {window: 1d, requests_per_unit: 300, algorithm: token_bucket}
  - key: meter
    mode: leased
    on_unavailable: deny
    rate_limit: {window: 1d, requests_per_unit: 300, algorithm: leaky_bucket}
  - key: gcra
    mode: leased
    on_unavailable: deny
    rate_limit: {window: 1d, requests_per_unit: 300, algorithm: gcra}
  - key: first
    mode: leased
    on_unavailable: deny
    rate_limit: {window: 1d, requests_per_unit: 300, algorithm: first_hit_window}
  - key: log
    mode: leased
    on_unavailable: deny
    rate_limit: {window: 1d, requests_per_unit: 300, algorithm: sliding_window_log}
  - key: small
    mode: leased
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 5}
  - key: layered
    mode: leased
    on_unavailable: deny
    rate_limit:
      - {unit: day, requests_per_unit: 300}
      - {window: 2d, requests_per_unit: 400, algorithm: gcra}
  - key: eventual
    mode: eventual
    rate_limit: {unit: day, requests_per_unit: 300}
";

/// What became of checks that all nodes sent at once.
#[derive(Debug, Default, PartialEq, Eq)]
struct Admitted {
    all: usize,
    /// From granted hits.
    granted: usize,
    /// By the owner, after a round trip.
    waited: usize,
}

/// Each node sends `checks`, one every millisecond.
async fn burst(nodes: &[Node], key: &str, value: &str, checks: usize) -> Admitted {
    let of_node = async |node: &Node| {
        let mut admitted = Admitted::default();
        for _ in 0..checks {
            let answer = node.check(key, value).await;
            if answer.allowed {
                admitted.all += 1;
                match source(&answer) {
                    VerdictSource::Grant => admitted.granted += 1,
                    VerdictSource::Owner => admitted.waited += 1,
                    _ => {}
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        admitted
    };
    let of_each = join_all(nodes.iter().map(of_node)).await;
    of_each.into_iter().fold(Admitted::default(), |sum, one| Admitted {
        all: sum.all + one.all,
        granted: sum.granted + one.granted,
        waited: sum.waited + one.waited,
    })
}

/// What was granted was spent, given back, came late or is held; and nothing is held any more.
async fn is_accounted_for(nodes: &[Node]) {
    for node in nodes {
        eventually("nothing is held", TIMEOUT, || node.core.decider.granted_hits().1 == 0).await;
        let hits = node.core.decider.granted_hits().0.read();
        assert_eq!(hits.received, gone(&hits), "{hits:?}");
        let book = node.core.book.load();
        let mut of_all = RuleCounts::default();
        for rule in book.rules() {
            let of_rule = rule.stats.read();
            assert_eq!(of_rule.grants.received, gone(&of_rule.grants), "{}: {of_rule:?}", rule.id);
            of_all.add(&of_rule);
        }
        assert_eq!(of_all.grants, hits, "by rule and in all");
    }
    let granted: u64 = nodes.iter().map(|node| count(node, |it| &it.hits_granted)).sum();
    let received: u64 =
        nodes.iter().map(|node| node.core.decider.granted_hits().0.read().received).sum();
    assert_eq!(granted, received, "no reply was lost");
}

/// Hits that are not held any more.
fn gone(hits: &GrantedCounts) -> u64 {
    hits.spent + hits.given_back + hits.recalled + hits.late - hits.refunded
}

/// What all nodes have counted of the rule of `key`.
fn counts(nodes: &[Node], key: &str) -> RuleCounts {
    let mut sum = RuleCounts::default();
    for node in nodes {
        let book = node.core.book.load();
        let found = book.find("test", &[Entry { key, value: "x" }]);
        sum.add(&found.expect("a rule").rule.stats.read());
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_at_three_nodes_admits_exactly_the_limit_and_mostly_without_waiting() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, patient).await;
    for key in ["fixed", "sliding", "sliced", "tokens", "meter", "gcra", "layered"] {
        let value = value_of(&nodes[0], key, "b");
        let admitted = burst(&nodes, key, &value, LIMIT).await;
        println!("{key}: {admitted:?}");
        // A bucket that was idle loses one term, 1/128 of its burst, which drains in time.
        let lost = if ["tokens", "meter", "gcra"].contains(&key) { LIMIT / 128 + 1 } else { 0 };
        assert!((LIMIT - lost..=LIMIT).contains(&admitted.all), "{key}: {admitted:?}");
        assert!(admitted.granted > 5 * admitted.waited, "{key}: {admitted:?}");
        let counts = counts(&nodes, key);
        assert_eq!(counts.allowed, admitted.all as u64);
        assert_eq!(counts.by_grant, admitted.granted as u64);
        assert_eq!(counts.grants.spent, admitted.granted as u64);
        assert_eq!(counts.admitted_by_owner, admitted.waited as u64);
        assert_eq!(counts.checks(), 3 * LIMIT as u64, "each was decided somewhere");
    }
    is_accounted_for(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_and_a_limit_below_one_hit_a_node_are_decided_by_their_owner() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, patient).await;
    for (key, limit) in [("log", LIMIT), ("small", 5)] {
        let value = value_of(&nodes[0], key, "b");
        let admitted = burst(&nodes, key, &value, limit).await;
        assert_eq!((admitted.all, admitted.granted), (limit, 0), "{key}: {admitted:?}");
    }
}

/// What one node holds and does not use is there for the others soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_that_one_node_holds_are_recalled_when_another_is_refused() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, patient).await;
    let value = value_of(&nodes[0], "fixed", "b");
    let few = burst(&nodes[..1], "fixed", &value, 20).await;
    assert_eq!(few.all, 20);
    assert!(nodes[0].core.decider.granted_hits().1 > 0, "a holds some");
    // As many as are left, of which a holds some.
    assert!(!nodes[2].check_hits("fixed", &value, 280).await.allowed);
    let rest = burst(&nodes[2..], "fixed", &value, 2 * LIMIT).await;
    assert_eq!(few.all + rest.all, LIMIT);
    is_accounted_for(&nodes).await;
    let counts = counts(&nodes, "fixed");
    assert!(counts.grants.recalled > 0 && counts.refused_early > 0, "{counts:?}");
}

/// Twenty hits were admitted, and a client gives them back: to the node that spends granted hits,
/// to the owner, and to a node that has seen nothing of the key. Soon as many more are admitted,
/// and never more, although nodes hold hits that are counted and have not been spent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_makes_room_for_what_was_admitted_and_no_more() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, patient).await;
    for (key, at, owner) in [
        ("fixed", 0, "b"),
        ("sliding", 1, "b"),
        ("sliced", 2, "b"),
        ("gcra", 2, "b"),
        ("meter", 2, "c"),
    ] {
        let value = value_of(&nodes[0], key, owner);
        let mut admitted = burst(&nodes[..1], key, &value, 20).await.all;
        assert_eq!(admitted, 20, "{key}");
        for refund in [-5, -15] {
            assert!(nodes[at].check_hits(key, &value, refund).await.allowed, "{key}");
        }
        let end = tokio::time::Instant::now() + TIMEOUT;
        while admitted < LIMIT + 20 {
            assert!(tokio::time::Instant::now() < end, "{key}: {admitted}");
            admitted += burst(&nodes, key, &value, LIMIT / 3).await.all;
        }
        admitted += burst(&nodes, key, &value, LIMIT).await.all;
        assert_eq!(admitted, LIMIT + 20, "{key}");
    }
    is_accounted_for(&nodes).await;
}

/// Each waits for hits that are granted when it comes. A later one may take what an earlier one
/// waits for, and then that waits for what was granted since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refunds_that_follow_each_other_are_all_taken() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, patient).await;
    let value = value_of(&nodes[0], "fixed", "b");
    for round in 0..30 {
        let at = [0, 2][round % 2];
        assert_eq!(burst(&nodes[at..=at], "fixed", &value, 10).await.all, 10);
        assert!(nodes[round % 3].check_hits("fixed", &value, -10).await.allowed);
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    let end = tokio::time::Instant::now() + TIMEOUT;
    loop {
        let left = remaining(&nodes[1].check_hits("fixed", &value, 0).await) as usize;
        if left == LIMIT {
            break;
        }
        assert!(tokio::time::Instant::now() < end, "{left} of {LIMIT} are left");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Of a refund of more than was admitted nothing is there before it was spent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_granted_and_not_spent_is_not_refunded() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, patient).await;
    let value = value_of(&nodes[0], "fixed", "b");
    assert_eq!(burst(&nodes[..1], "fixed", &value, 20).await.all, 20);
    let left = async || remaining(&nodes[2].check_hits("fixed", &value, 0).await);
    let before = left().await;
    let held = nodes[0].core.decider.granted_hits().1;
    assert!(held > 0, "a holds some");
    let after = remaining(&nodes[2].check_hits("fixed", &value, -300).await);
    assert!(u64::from(after) + held <= 300, "{before}, {after} and {held} are held");
}

/// Of a refund of more than was admitted. What it waits for comes back unspent, and is used up by
/// others before the refund has waited: nothing of that is taken for what it gave back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_takes_no_hits_for_those_that_come_back_unspent() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, patient).await;
    for (key, owner) in [("fixed", "b"), ("first", "b"), ("sliced", "c")] {
        let value = value_of(&nodes[0], key, owner);
        assert_eq!(burst(&nodes[..1], key, &value, 20).await.all, 20, "{key}");
        assert!(nodes[0].core.decider.granted_hits().1 > 0, "a holds some");
        assert!(nodes[2].check_hits(key, &value, -300).await.allowed, "{key}");
        eventually("it is back", TIMEOUT, || nodes[0].core.decider.granted_hits().1 == 0).await;
        // As many as were admitted are there again, at the end of two terms at the latest.
        let (mut admitted, end) = (0, tokio::time::Instant::now() + TIMEOUT);
        while admitted < LIMIT {
            assert!(tokio::time::Instant::now() < end, "{key}: {admitted}");
            admitted += burst(&nodes, key, &value, LIMIT / 3).await.all;
        }
        tokio::time::sleep(2 * TERM).await;
        admitted += burst(&nodes, key, &value, LIMIT / 3).await.all;
        assert_eq!(admitted, LIMIT, "{key}");
    }
}

/// A node has joined and owns the key, and knows nothing of what the owner before it granted: what
/// is given back at a third node takes nothing that the holder may still spend.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_takes_nothing_that_the_owner_before_granted() {
    let authority = authority();
    let of_all = [("a", "eu"), ("b", "eu"), ("c", "eu"), ("d", "eu")];
    let mut nodes = cluster_under(&authority, &of_all, RULES, patient).await;
    let owner = |node: &Node, token| node.core.topology.load().owner(Scope::Region, token).cloned();
    let before = without(&nodes[0], "d");
    let of_d = |token| owner(&nodes[0], token) == Some(id("d"));
    let of_b_before = |token| before.owner(Scope::Region, token) == Some(&id("b"));
    let value = value(&nodes[0], "fixed", |token| of_d(token) && of_b_before(token));
    let token = token(&nodes[0], "fixed", &value);
    nodes.pop().expect("d").stop().await;
    eventually("d is gone", TIMEOUT, || owner(&nodes[0], token) == Some(id("b"))).await;

    let (seeds, identity) = (&[nodes[0].addr()][..], identity(&authority, &authority, "d", "eu"));
    let options =
        NodeOptions { id: "d", region: "eu", seeds, identity, rules: RULES, change: patient };
    let d = Node::start(options).await;
    let end = tokio::time::Instant::now() + TIMEOUT;
    // What was granted is renewed until then.
    while !d.core.ownership.decides(Scope::Region, token) {
        assert!(tokio::time::Instant::now() < end, "d does not join");
        let held = nodes[0].core.decider.granted_hits().1;
        nodes[0].check_hits("fixed", &value, i64::from(held == 0)).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    nodes[2].check_hits("fixed", &value, -300).await;
    nodes.push(d);
    let admitted = burst(&nodes, "fixed", &value, LIMIT).await.all;
    assert!(admitted <= LIMIT, "{admitted}");
}

/// The owner has the files of after a reload already, and a holder spends what it was granted by
/// those of before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_takes_nothing_that_was_granted_before_a_reload() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, patient).await;
    let strict = RULES.replace("  - key: fixed\n    mode: leased\n", "  - key: fixed\n");
    let (first, second) = (
        "      - {unit: day, requests_per_unit: 300}\n",
        "      - {window: 2d, requests_per_unit: 400, algorithm: gcra}\n",
    );
    let reordered = RULES.replace(&format!("{first}{second}"), &format!("{second}{first}"));
    for (key, rules) in [("fixed", strict), ("layered", reordered)] {
        assert_ne!(rules, RULES);
        let value = value_of(&nodes[0], key, "b");
        assert_eq!(burst(&nodes[..1], key, &value, 20).await.all, 20, "{key}");
        for node in &nodes[1..] {
            node.core.book.store(book(&rules).load_full());
        }
        // Two terms are longer than this takes.
        let held = nodes[0].core.decider.granted_hits().1;
        let answer = nodes[2].check_hits(key, &value, -300).await;
        assert!(held > 0, "{key}");
        for verdict in &answer.statuses[0].verdicts {
            let unused = verdict.limit - verdict.remaining;
            assert!(u64::from(unused) >= held, "{key}: {verdict:?} beside {held}");
        }
        eventually("it is back", TIMEOUT, || nodes[0].core.decider.granted_hits().1 == 0).await;
    }
}

/// Looks take nothing from what is left and leave nothing behind, however many are on their way:
/// what is shown as left is there for a check at any node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looks_are_granted_nothing() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, patient).await;
    for (key, used) in [("fixed", 0), ("first", 0), ("gcra", 0), ("layered", 0), ("sliced", 20)] {
        let value = value_of(&nodes[0], key, "b");
        assert_eq!(burst(&nodes[..1], key, &value, used).await.all, used);
        nodes[0].core.decider.give_all_back().await;
        let received = || nodes[2].core.decider.granted_hits().0.read().received;
        let before = received();
        for _ in 0..20 {
            let looks = (0..8).map(|_| nodes[2].check_hits(key, &value, 0));
            assert!(join_all(looks).await.iter().all(|answer| answer.allowed));
        }
        assert_eq!(received(), before, "{key}");
        let look = nodes[2].check_hits(key, &value, 0).await;
        assert_eq!(remaining(&look) as usize, LIMIT - used, "{key}");
        if key == "first" {
            assert_eq!(look.statuses[0].verdicts[0].reset, Span::ZERO, "no window is open");
        }
        let all = i64::try_from(LIMIT - used).unwrap();
        assert!(nodes[2].check_hits(key, &value, all).await.allowed, "{key}");
    }
}

/// A node that leaves gives back what it holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_gives_its_grants_back() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, patient).await;
    let value = value_of(&nodes[0], "fixed", "b");
    let few = burst(&nodes[..1], "fixed", &value, 20).await;
    assert_eq!(few.all, 20);
    nodes[0].core.decider.give_all_back().await;
    let at_owner = remaining(&nodes[1].check_hits("fixed", &value, 0).await);
    assert_eq!(at_owner as usize, LIMIT - 20, "b has them back");
    is_accounted_for(&nodes).await;
}

/// What a node holds is too little for a check, and counts as used at the owner: the node gives it
/// back, so that a later check finds it there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_for_more_than_its_node_holds_is_not_refused_for_long() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, patient).await;
    let value = value_of(&nodes[0], "fixed", "b");
    let (mut admitted, end) = (0, tokio::time::Instant::now() + TIMEOUT);
    while admitted < LIMIT / 70 {
        assert!(tokio::time::Instant::now() < end, "{admitted} checks of 70 of {LIMIT} hits");
        admitted += usize::from(nodes[0].check_hits("fixed", &value, 70).await.allowed);
    }
}

/// A node that is cut off, or was stopped, finds out by its lease. What it still decides is counted
/// as decided alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_lease_spends_nothing_that_was_granted_to_it() {
    let mut nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, patient).await;
    let value = value_of(&nodes[0], "fixed", "b");
    assert_eq!(burst(&nodes[..1], "fixed", &value, 20).await.all, 20);
    assert!(nodes[0].check("eventual", "x").await.allowed);
    let a = [nodes.remove(0)];
    assert!(a[0].core.decider.granted_hits().1 > 0, "a holds some");
    drop(nodes);
    let ownership = &a[0].core.ownership;
    eventually("the lease ran out", TIMEOUT, || !ownership.has_lease()).await;
    let spent = counts(&a, "fixed").grants.spent;
    assert_eq!(source(&a[0].check("fixed", &value).await), VerdictSource::Fallback);
    let fixed = counts(&a, "fixed");
    assert_eq!((fixed.grants.spent, fixed.unavailable), (spent, 1));
    assert!(a[0].check("eventual", "x").await.allowed);
    let eventual = counts(&a, "eventual");
    assert_eq!((eventual.local, eventual.alone), (1, 1));
}

/// A node that speaks versions up to `highest`.
async fn speaking(
    highest: u8,
    (authority, id): (&Authority, &str),
    others: &[&Node],
    rules: &str,
) -> Node {
    let (environment, clock) = node::system_environment();
    let stop = CancellationToken::new();
    tokio::spawn(clock.run(stop.clone()));
    let environment = Environment { versions: Versions { highest, ..VERSIONS }, ..environment };
    let seeds: Vec<_> = others.iter().map(|other| other.addr()).collect();
    let identity = identity(authority, authority, id, "eu");
    let (seeds, change) = (&seeds[..], patient);
    let options = NodeOptions { id, region: "eu", seeds, identity, rules, change };
    Node::start_in(options, environment, stop).await
}

/// Nodes of the release before know no grants, and decide leased rules as strict.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_knows_no_grants_is_served_in_the_old_way() {
    let authority = authority();
    let strict = RULES.replace("mode: leased", "mode: strict");
    let a = speaking(COMBINED_CHECKS - 1, (&authority, "a"), &[], &strict).await;
    let b = speaking(VERSION, (&authority, "b"), &[&a], RULES).await;
    let c = speaking(VERSION, (&authority, "c"), &[&a], RULES).await;
    let nodes = [a, b, c];
    for node in &nodes {
        node.wait_for_view("all nodes", |view| view.owners().count() == nodes.len()).await;
    }
    settled(&nodes.iter().collect::<Vec<_>>()).await;
    for key in ["fixed", "sliding", "layered"] {
        let value = value_of(&nodes[1], key, "a");
        let at_the_others = burst(&nodes[1..], key, &value, LIMIT).await;
        assert_eq!((at_the_others.all, at_the_others.granted), (LIMIT, 0), "{key}, owned by a");
        let value = value_of(&nodes[1], key, "b");
        let (old, new) = tokio::join!(
            burst(&nodes[..1], key, &value, LIMIT),
            burst(&nodes[2..], key, &value, LIMIT)
        );
        assert_eq!(old.all + new.all, LIMIT, "{key}, owned by b: {old:?}, {new:?}");
        assert_eq!((old.granted, new.granted > 0), (0, true), "{key}, owned by b: {new:?}");
    }
    is_accounted_for(&nodes).await;
}

//! Leased rules: never over, decided mostly without the owner, and what is granted is accounted
//! for.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::decide::VerdictSource;
use tidegate_testkit::in_process::{Node, cluster};
use tidegate_testkit::wait::eventually;

use super::forwarding::bench::{TIMEOUT, count, patient, remaining, source, value_of};

const LIMIT: usize = 300;
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
        let (hits, _) = node.core.decider.granted_hits();
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let gone = read(&hits.spent) + read(&hits.given_back) + read(&hits.late);
        assert_eq!(read(&hits.received), gone, "{hits:?}");
    }
    let granted: u64 = nodes.iter().map(|node| count(node, |it| &it.hits_granted)).sum();
    let received: u64 = nodes
        .iter()
        .map(|node| node.core.decider.granted_hits().0.received.load(Ordering::Relaxed))
        .sum();
    assert_eq!(granted, received, "no reply was lost");
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
    let rest = burst(&nodes[2..], "fixed", &value, 2 * LIMIT).await;
    assert_eq!(few.all + rest.all, LIMIT);
    is_accounted_for(&nodes).await;
}

/// A node that leaves gives back what it holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_gives_its_grants_back() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, patient).await;
    let value = value_of(&nodes[0], "fixed", "b");
    let few = burst(&nodes[..1], "fixed", &value, 20).await;
    assert_eq!(few.all, 20);
    nodes[0].core.decider.give_all_back();
    is_accounted_for(&nodes).await;
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while remaining(&nodes[1].check_hits("fixed", &value, 0).await) as usize != LIMIT - 20 {
        assert!(tokio::time::Instant::now() < deadline, "b never had them back");
    }
}

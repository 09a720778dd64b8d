//! Ownership in a cluster of nodes on real sockets, while nodes join, leave and die.

use std::time::Duration;

use tidegate::decide::VerdictSource;
use tidegate_limiter::policy::Scope;
use tidegate_ownership::ranges::Ranges;
use tidegate_testkit::certificates::{authority, identity};
use tidegate_testkit::in_process::{Node, NodeOptions, cluster_under};
use tidegate_testkit::wait::eventually;

const TIMEOUT: Duration = Duration::from_secs(20);
const RULES: &str = "
domain: test
descriptors:
  - key: user
    on_unavailable: deny
    rate_limit: { unit: day, requests_per_unit: 20 }
";

/// The ranges that a node decides; none without a lease.
fn decides(node: &Node) -> Ranges {
    let ownership = &node.core.ownership;
    if ownership.has_lease(Scope::Region) {
        ownership.owned_ranges(Scope::Region).decides.clone()
    } else {
        Ranges::EMPTY
    }
}

/// Whether every token is decided by exactly one of `nodes`.
fn is_settled(nodes: &[&Node]) -> bool {
    let all = nodes.iter().fold(Ranges::EMPTY, |all, node| all.with(&decides(node)));
    let shares: u32 = nodes.iter().map(|node| decides(node).share_ppm()).sum();
    all == Ranges::all() && shares.abs_diff(1_000_000) < 100
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_token_has_one_owner_while_nodes_join_leave_and_die() {
    let authority = authority();
    let nodes = [("a", "eu"), ("b", "eu"), ("c", "eu")];
    let mut nodes = cluster_under(&authority, &nodes, RULES, |_| {}).await;
    let all = |nodes: &[Node]| is_settled(&nodes.iter().collect::<Vec<_>>());
    eventually("three nodes own everything", TIMEOUT, || {
        all(&nodes) && nodes.iter().all(|node| !decides(node).is_empty())
    })
    .await;

    let users: Vec<String> = (0..200).map(|n| format!("u{n}")).collect();
    for (user, n) in users.iter().zip(0..) {
        for hit in 0..12 {
            let answer = nodes[(n + hit) % 3].check("user", user).await;
            assert!(
                answer.allowed && answer.statuses[0].source != VerdictSource::Fallback,
                "{user} {hit} {answer:?}"
            );
        }
    }

    let seeds = [nodes[0].addr()];
    let options = NodeOptions {
        id: "d",
        region: "eu",
        seeds: &seeds,
        identity: identity(&authority, &authority, "d"),
        rules: RULES,
        change: |_| {},
    };
    nodes.push(Node::start(options).await);
    eventually("four nodes own everything", TIMEOUT, || {
        all(&nodes) && !decides(&nodes[3]).is_empty()
    })
    .await;
    nodes.remove(1).stop().await;
    eventually("a node left", TIMEOUT, || all(&nodes)).await;
    for (user, n) in users.iter().zip(0..) {
        for hit in 12..24 {
            let answer = nodes[(n + hit) % 3].check("user", user).await;
            assert_eq!(answer.allowed, hit < 20, "{user} {hit}: {answer:?}");
            assert_ne!(answer.statuses[0].source, VerdictSource::Fallback, "{user} {hit}");
        }
    }
    let dead = nodes.remove(0);
    drop(dead);
    eventually("a node died", TIMEOUT, || all(&nodes)).await;
}

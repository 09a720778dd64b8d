//! Ownership in a cluster of nodes on real sockets, while nodes join, leave and die.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::config::{Config, VotersFrom};
use tidegate::decide::VerdictSource;
use tidegate::node::{GivenUp, Joined};
use tidegate_cluster::pki::Authority;
use tidegate_limiter::units::Span;
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
    if ownership.has_lease() { ownership.owned_ranges().decides.clone() } else { Ranges::EMPTY }
}

/// Starts the node `d` with `seed` as its seed.
async fn join(seed: &Node, authority: &Authority, change: fn(&mut Config)) -> Node {
    let options = NodeOptions {
        id: "d",
        region: "eu",
        seeds: &[seed.addr()],
        identity: identity(authority, authority, "d", "eu"),
        rules: RULES,
        change,
    };
    Node::start(options).await
}

/// Whether every token is decided by exactly one of `nodes`.
fn is_settled(nodes: &[&Node]) -> bool {
    let all = nodes.iter().fold(Ranges::EMPTY, |all, node| all.with(&decides(node)));
    let shares: u32 = nodes.iter().map(|node| decides(node).share_ppm()).sum();
    all == Ranges::all() && shares.abs_diff(1_000_000) < 100
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_token_has_one_owner_while_nodes_join_leave_and_die() {
    fn automatic(config: &mut Config) {
        config.cluster.voters_from = Some(VotersFrom::Auto);
    }
    let authority = authority();
    let nodes = [("a", "eu"), ("b", "eu"), ("c", "eu")];
    let mut nodes = cluster_under(&authority, &nodes, RULES, automatic).await;
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

    let d = join(&nodes[0], &authority, automatic).await;
    nodes.push(d);
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
    let driver = &nodes[0].joined().ownership_driver;
    eventually("d votes in the place of b", TIMEOUT, || {
        let voters = driver.map().voters.clone();
        let mut names = voters.current.iter().map(|voter| voter.node.as_str());
        !voters.are_joint() && names.any(|name| name == "d")
    })
    .await;
    let dead = nodes.remove(0);
    drop(dead);
    eventually("a node died", TIMEOUT, || all(&nodes)).await;
}

/// A handoff waits for the counts that the next owner refuses, but not for ever: the members of a
/// cluster whose stores are all full must come to an agreement, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handoff_waits_while_the_next_owner_has_no_room_and_then_goes_on() {
    fn tiny(config: &mut Config) {
        config.limits.keys_max = 1;
    }
    let authority = authority();
    let nodes = cluster_under(&authority, &[("a", "eu")], RULES, |_| {}).await;
    eventually("it owns everything", TIMEOUT, || is_settled(&[&nodes[0]])).await;
    let users: Vec<String> = (0..60).map(|n| format!("u{n}")).collect();
    for user in &users {
        assert!(nodes[0].check_hits("user", user, 20).await.allowed);
    }

    let d = join(&nodes[0], &authority, tiny).await;
    let driver = &nodes[0].joined().ownership_driver;
    let rejected = || driver.counters.rejected.load(Ordering::Relaxed);
    eventually("a handoff was refused", TIMEOUT, || rejected() > 0).await;
    for user in &users {
        let answer = nodes[0].check("user", user).await;
        assert!(!answer.allowed, "{user}: {answer:?}");
        assert_eq!(answer.statuses[0].source, VerdictSource::Local);
    }
    eventually("it goes on", TIMEOUT, || is_settled(&[&nodes[0], &d]) && !decides(&d).is_empty())
        .await;
    assert_eq!(rejected(), 3);
    // A drain reports it.
    assert_eq!(nodes[0].core.leave().await, Err(GivenUp::Refused));
}

/// Members that are gone are forgotten after a second, and two of three voters are among them. A
/// node that joins changes nothing: there is no majority to admit it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_voters_are_never_forgotten_without_a_majority() {
    fn forgetful(config: &mut Config) {
        config.cluster.forget_after = Span::from_secs(1);
    }
    let authority = authority();
    let nodes = [("a", "eu"), ("b", "eu"), ("c", "eu")];
    let mut nodes = cluster_under(&authority, &nodes, RULES, forgetful).await;
    eventually("three nodes own everything", TIMEOUT, || {
        is_settled(&nodes.iter().collect::<Vec<_>>())
    })
    .await;
    nodes.truncate(1);
    eventually("the lease is lost", TIMEOUT, || decides(&nodes[0]).is_empty()).await;

    let d = join(&nodes[0], &authority, forgetful).await;
    let Joined { membership, mesh, .. } = d.joined();
    eventually("they are connected", TIMEOUT, || mesh.peers().len() == 1).await;
    let epoch = nodes[0].core.ownership.owned_ranges().epoch;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!membership.is_member() && decides(&d).is_empty());
    assert!(decides(&nodes[0]).is_empty(), "a minority decides");
    assert_eq!(nodes[0].core.ownership.owned_ranges().epoch, epoch);
    assert!(!nodes[0].check("user", "u").await.allowed);
}

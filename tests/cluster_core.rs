//! Nodes on real sockets decide together: strict keys at their owner, eventual keys on the spot.

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::{Node, cluster};
use tidegate::decide::VerdictSource;
use tidegate_limiter::units::Span;
use tidegate_ownership::membership::{MemberState, View};
use tidegate_ownership::route::Topology;

const RULES: &str = "
domain: test
descriptors:
  - key: strict
    rate_limit: {unit: day, requests_per_unit: 20}
  - key: several
    rate_limit:
      - {unit: day, requests_per_unit: 5}
      - {window: 1d, requests_per_unit: 3, algorithm: gcra}
  - key: world
    scope: global
    rate_limit: {unit: day, requests_per_unit: 20}
  - key: eventual
    mode: eventual
    rate_limit: {unit: day, requests_per_unit: 100}
  - key: far
    mode: eventual
    rate_limit: {unit: day, requests_per_unit: 1000}
";

/// All nodes send a strict key's hits to one owner, which admits exactly the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strict_key_admits_its_limit_over_all_nodes() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, |_| {}).await;
    for key in ["ann", "bob", "cid", "dan"] {
        let mut allowed = 0;
        let mut owners = Vec::new();
        for turn in 0..60 {
            let answer = nodes[turn % 3].ask("strict", key).await;
            allowed += usize::from(answer.allowed);
            if answer.statuses[0].source == VerdictSource::Local {
                owners.push(turn % 3);
            } else {
                // The owner, or its refusal that still holds.
                let is_remembered = answer.statuses[0].source == VerdictSource::Remembered;
                assert!(answer.statuses[0].source == VerdictSource::Owner || is_remembered);
                assert!(!(answer.allowed && is_remembered));
            }
        }
        owners.dedup();
        assert_eq!((allowed, owners.len()), (20, 1), "{key}: one owner, and exactly its limit");
    }
}

/// A forwarded answer says what a local one would.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarded_answer_is_a_local_one() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, |_| {}).await;
    for turn in 0..8 {
        let answer = nodes[turn % 2].ask("several", "x").await;
        let status = &answer.statuses[0];
        let remaining: Vec<u32> = status.verdicts.iter().map(|verdict| verdict.remaining).collect();
        let left = 3_u32.saturating_sub(u32::try_from(turn).expect("small") + 1);
        assert_eq!(remaining, [left + 2, left], "turn {turn}: a refusal charges neither");
        assert_eq!(answer.allowed, turn < 3);
        assert_eq!(status.leading, Some(1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_has_its_own_limit_unless_the_rule_is_global() {
    let nodes = cluster(&[("a", "eu"), ("b", "us")], RULES, |_| {}).await;
    let mut allowed = [0, 0];
    for turn in 0..100 {
        allowed[0] += usize::from(nodes[turn % 2].ask("strict", "x").await.allowed);
        allowed[1] += usize::from(nodes[turn % 2].ask("world", "x").await.allowed);
    }
    assert_eq!(allowed, [40, 20]);
}

/// A node that leaves tells the others first, and takes no eventual count with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_is_not_missed() {
    let mut nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, |config| {
        config.cluster.sync_interval = Span::from_secs(10);
    })
    .await;
    for _ in 0..7 {
        nodes[2].ask("eventual", "x").await;
    }
    nodes.pop().expect("three nodes").stop().await;
    for node in &nodes {
        node.sees("two nodes", |view| view.owners().count() == 2).await;
        let answer = node.ask("strict", "y").await;
        assert!(answer.allowed && answer.statuses[0].source != VerdictSource::Policy);
    }
    let known: Vec<u32> = join(&nodes, "eventual", "x").await;
    assert!(known.contains(&93), "somebody heard of the 7 hits: {known:?}");
}

/// Nor does it take what it need not have told yet: 7 hits are far from a limit of 1,000.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_tells_what_it_hid() {
    let mut nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, |_| {}).await;
    let keys: Vec<String> = (0..20).map(|n| format!("x{n}")).collect();
    for key in &keys {
        nodes[2].ask("far", key).await;
    }
    // The first hit of each is told as any other.
    tokio::time::sleep(Duration::from_millis(400)).await;
    for key in &keys {
        for _ in 0..6 {
            nodes[2].ask("far", key).await;
        }
    }
    tokio::time::sleep(Duration::from_millis(400)).await;
    let mut hidden = 0;
    for key in &keys {
        hidden += usize::from(!join(&nodes[..2], "far", key).await.contains(&993));
    }
    assert!(hidden > 0, "the other six wait for the walk");
    nodes.pop().expect("three nodes").stop().await;
    for key in &keys {
        let known = join(&nodes, "far", key).await;
        assert!(known.contains(&993), "somebody heard of the 7 hits of {key}: {known:?}");
    }
}

/// While only the leaving node knows that it leaves, both its peers' clients and its own get the
/// answers that it has counted for so far.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaving_node_decides_its_keys_until_peers_have_heard() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, |_| {}).await;
    let [stays, leaves] = &nodes[..] else { unreachable!("two nodes") };
    let mut key = 0;
    while leaves.ask("strict", &format!("k{key}")).await.statuses[0].source != VerdictSource::Local
    {
        key += 1;
    }
    let key = format!("k{key}");

    let before = leaves.core.topology.load_full();
    let members = before.view.members().iter().cloned().map(|mut member| {
        if member.id == before.me {
            member.state = MemberState::Draining;
        }
        member
    });
    let (me, region) = (before.me.clone(), before.region.clone());
    let draining = Topology::new(me, region, View::new(members), 128).after(&before);
    leaves.core.topology.store(Arc::new(draining));

    for (turn, node) in [stays, leaves, stays, leaves].into_iter().enumerate() {
        let answer = node.ask("strict", &key).await;
        let status = &answer.statuses[0];
        assert_ne!(status.source, VerdictSource::Policy, "turn {turn}");
        assert_eq!(status.verdicts[0].remaining, 18 - u32::try_from(turn).expect("small"));
    }
}

/// After every node counted alone, all know all of it within two intervals of the slower link.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eventual_counts_become_equal() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "us")], RULES, |_| {}).await;
    for (node, hits) in nodes.iter().zip([5, 6, 7]) {
        for _ in 0..hits {
            assert!(node.ask("eventual", "x").await.allowed);
        }
    }
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(join(&nodes, "eventual", "x").await, [82, 82, 82]);
}

/// What every node says is left, without taking any.
async fn join(nodes: &[Node], key: &str, value: &str) -> Vec<u32> {
    let mut remaining = Vec::new();
    for node in nodes {
        let answer = node.ask_hits(key, value, 0).await;
        remaining.push(answer.statuses[0].verdicts[0].remaining);
    }
    remaining
}

//! Nodes on real sockets decide together: strict keys at their owner, eventual keys where the
//! request arrives.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::decide::{Counters, VerdictSource};
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::policy::Scope;
use tidegate_limiter::units::Span;
use tidegate_ownership::membership::{MemberState, View};
use tidegate_ownership::route::Topology;
use tidegate_testkit::in_process::{Node, cluster};
use tidegate_testkit::wait::until;

use crate::forwarding::bench;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_operator_looks_at_is_no_verdict() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, bench::patient).await;
    let node = &nodes[0];
    let counted = || {
        let Counters { local, forwarded, cached, fallback, granted, blocked, .. } =
            node.core.decider.counters();
        [local, forwarded, cached, fallback, granted, blocked].map(|it| it.load(Ordering::Relaxed))
    };
    for owner in ["a", "b"] {
        let value = bench::value_of(node, "strict", owner);
        assert!(node.check("strict", &value).await.allowed);
        let before = counted();
        let entries = [Entry { key: "strict", value: &value }];
        let peeked = node.core.decider.peek("test", &entries).await.expect("it has a limit");
        assert_eq!(peeked.verdicts[0].remaining, 19, "{owner}");
        assert_eq!(counted(), before, "{owner}");
    }
}

/// All nodes send a strict key's hits to one owner, which admits exactly the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strict_key_admits_its_limit_over_all_nodes() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, |_| {}).await;
    for key in ["ann", "bob", "cid", "dan"] {
        let mut allowed = 0;
        let mut owners = Vec::new();
        for turn in 0..60 {
            let answer = nodes[turn % 3].check("strict", key).await;
            allowed += usize::from(answer.allowed);
            if answer.statuses[0].source == VerdictSource::Local {
                owners.push(turn % 3);
            } else {
                // The owner, or its refusal from the negative cache.
                let is_remembered = answer.statuses[0].source == VerdictSource::NegativeCache;
                assert!(answer.statuses[0].source == VerdictSource::Owner || is_remembered);
                assert!(!(answer.allowed && is_remembered));
            }
        }
        owners.dedup();
        assert_eq!((allowed, owners.len()), (20, 1), "{key}: one owner, and exactly its limit");
    }
}

/// A forwarded answer equals a local one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarded_answer_is_a_local_one() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, |_| {}).await;
    for turn in 0..8 {
        let answer = nodes[turn % 2].check("several", "x").await;
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
        allowed[0] += usize::from(nodes[turn % 2].check("strict", "x").await.allowed);
        allowed[1] += usize::from(nodes[turn % 2].check("world", "x").await.allowed);
    }
    assert_eq!(allowed, [40, 20]);
}

/// A node that leaves announces it first, and its eventual counts stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_is_not_missed() {
    let mut nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, |config| {
        config.cluster.sync_interval = Span::from_secs(10);
    })
    .await;
    for _ in 0..7 {
        nodes[2].check("eventual", "x").await;
    }
    nodes.pop().expect("three nodes").stop().await;
    for node in &nodes {
        node.wait_for_view("two nodes", |view| view.owners().count() == 2).await;
        let answer = node.check("strict", "y").await;
        assert!(answer.allowed && answer.statuses[0].source != VerdictSource::Fallback);
    }
    let left = remaining(&nodes, "eventual", "x").await;
    assert!(left.contains(&93), "one node received the 7 hits: {left:?}");
}

/// Neither do hits get lost that lazy sync has not sent yet: 7 hits are far from a limit of 1,000.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_sends_what_lazy_sync_held_back() {
    let mut nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, |_| {}).await;
    // Hits go to the owner, so that one node alone receives them.
    let keys = owned_by("a", &nodes[2], "far", 20);
    for key in &keys {
        nodes[2].check("far", key).await;
    }
    // The first hit of a key goes through the sync queue.
    for key in &keys {
        until_remaining(&nodes[..1], "far", key, 999).await;
    }
    for key in &keys {
        for _ in 0..6 {
            nodes[2].check("far", key).await;
        }
    }
    // When this hit has arrived, so has everything that went through the sync queue before it.
    let mark = owned_by("a", &nodes[2], "eventual", 1).remove(0);
    nodes[2].check("eventual", &mark).await;
    until_remaining(&nodes[..1], "eventual", &mark, 99).await;
    let mut held_back = 0;
    for key in &keys {
        held_back += usize::from(remaining(&nodes[..1], "far", key).await != [993]);
    }
    assert!(held_back > 0, "the other six wait for the background scan");
    nodes.pop().expect("three nodes").stop().await;
    for key in &keys {
        let left = remaining(&nodes, "far", key).await;
        assert!(left.contains(&993), "one node received the 7 hits of {key}: {left:?}");
    }
}

/// Until its peers have received that it leaves, a node decides its keys for their clients and its
/// own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaving_node_decides_its_keys_until_peers_have_received_it() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, |_| {}).await;
    let [stays, leaves] = &nodes[..] else { unreachable!("two nodes") };
    let mut key = 0;
    while leaves.check("strict", &format!("k{key}")).await.statuses[0].source
        != VerdictSource::Local
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
        let answer = node.check("strict", &key).await;
        let status = &answer.statuses[0];
        assert_ne!(status.source, VerdictSource::Fallback, "turn {turn}");
        assert_eq!(status.verdicts[0].remaining, 18 - u32::try_from(turn).expect("small"));
    }
}

/// Every node counts by itself, and all nodes end with the sum.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eventual_counts_become_equal() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "us")], RULES, |_| {}).await;
    for (node, hits) in nodes.iter().zip([5, 6, 7]) {
        for _ in 0..hits {
            assert!(node.check("eventual", "x").await.allowed);
        }
    }
    until_remaining(&nodes, "eventual", "x", 82).await;
}

/// Values of `key` whose owner is `owner`, by the ring of `node`.
fn owned_by(owner: &str, node: &Node, key: &str, count: usize) -> Vec<String> {
    let topology = node.core.topology.load();
    let is_owner = |value: &String| {
        let token = bench::token(node, key, value);
        topology.owner(Scope::Region, token).is_some_and(|id| id.as_str() == owner)
    };
    (0..).map(|n| format!("x{n}")).filter(is_owner).take(count).collect()
}

/// What remains by each node's own count, without a hit.
async fn remaining(nodes: &[Node], key: &str, value: &str) -> Vec<u32> {
    let mut remaining = Vec::new();
    for node in nodes {
        let answer = node.check_hits(key, value, 0).await;
        remaining.push(answer.statuses[0].verdicts[0].remaining);
    }
    remaining
}

/// Waits until each node's own count leaves `expected`.
async fn until_remaining(nodes: &[Node], key: &str, value: &str, expected: u32) {
    let condition = async || {
        let left = remaining(nodes, key, value).await;
        if left.iter().all(|left| *left == expected) { Ok(()) } else { Err(format!("{left:?}")) }
    };
    let what = format!("{key}={value} has {expected} left at each node");
    until(&what, Duration::from_secs(20), condition).await;
}

//! Where a node sends a check while ranges are transferred.

use std::sync::Arc;

use tidegate::decide::VerdictSource;
use tidegate_limiter::policy::Scope;
use tidegate_ownership::ranges::Ranges;
use tidegate_testkit::in_process::{Node, cluster};
use tidegate_testkit::wait::eventually;

use super::bench::{
    RULES, TIMEOUT, count, forget_rings, holds, id, remaining, replaced, source, value, value_of,
    without,
};

async fn three() -> Vec<Node> {
    cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, |_| {}).await
}

/// Node c's view is stale: b has handed everything to a, which already sees a ring without b.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_named_holder_gets_the_check_once() {
    let nodes = three().await;
    let [a, b, c] = &nodes[..] else { unreachable!("three nodes") };
    let ring = without(a, "b");
    let now = c.core.topology.load_full();
    let key = value(c, "bucket", |token| {
        now.owner(Scope::Region, token) == Some(&id("b"))
            && ring.owner(Scope::Region, token) == Some(&id("a"))
    });
    a.core.topology.store(Arc::new(ring));
    forget_rings(c);
    holds(b, Ranges::EMPTY, Some("a"));
    holds(a, Ranges::all(), None);

    let answer = c.check("bucket", &key).await;
    assert_eq!((source(&answer), remaining(&answer)), (VerdictSource::Owner, 19));
    assert_eq!(count(c, |counters| &counters.retried), 1);
    assert_eq!(count(b, |counters| &counters.not_owner), 1);
    assert_eq!(count(a, |counters| &counters.served), 1);
    assert_eq!(count(c, |counters| &counters.fallback), 0);
}

/// Node b is on the ring and has not got its range; a, which owned it before, still holds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_previous_owner_gets_checks_until_the_new_one_has_the_range() {
    let nodes = three().await;
    let [a, b, c] = &nodes[..] else { unreachable!("three nodes") };
    let before = without(a, "b");
    let now = c.core.topology.load_full();
    let key = value(c, "bucket", |token| {
        now.owner(Scope::Region, token) == Some(&id("b"))
            && before.owner(Scope::Region, token) == Some(&id("a"))
    });
    replaced(c, &without(c, "b"));
    replaced(b, &without(b, "b"));
    a.core.topology.store(Arc::new(before));
    holds(b, Ranges::EMPTY, None);
    holds(a, Ranges::all(), None);

    for (node, left) in [(c, 19), (b, 18)] {
        let answer = node.check("bucket", &key).await;
        assert_eq!((source(&answer), remaining(&answer)), (VerdictSource::Owner, left));
    }
    assert_eq!(count(c, |counters| &counters.retried), 1);
    assert_eq!(count(a, |counters| &counters.served), 2);
}

/// A frozen range has no owner for a moment, and no client gets an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_waits_for_a_frozen_range() {
    let nodes = three().await;
    let [a, b, _] = &nodes[..] else { unreachable!("three nodes") };
    let key = value_of(a, "bucket", "b");
    holds(b, Ranges::EMPTY, None);
    let arrives = async {
        eventually("a retries", TIMEOUT, || count(b, |counters| &counters.not_owner) >= 3).await;
        holds(b, Ranges::all(), None);
    };
    let (at_peer, at_owner, ()) =
        tokio::join!(a.check("bucket", &key), b.check("bucket", &key), arrives);
    assert_eq!((source(&at_peer), source(&at_owner)), (VerdictSource::Owner, VerdictSource::Local));
    assert_eq!(remaining(&a.check_hits("bucket", &key, 0).await), 18, "each was counted once");
}

/// Node b owns a key by the ring and forwards to a, which has just transferred it to b.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_named_to_itself_decides() {
    let nodes = three().await;
    let [a, b, _] = &nodes[..] else { unreachable!("three nodes") };
    let (before, now) = (without(b, "b"), b.core.topology.load_full());
    let key = value(b, "bucket", |token| {
        now.owner(Scope::Region, token) == Some(&id("b"))
            && before.owner(Scope::Region, token) == Some(&id("a"))
    });
    replaced(b, &before);
    holds(a, Ranges::EMPTY, Some("b"));
    holds(b, Ranges::EMPTY, None);
    let arrives = async {
        eventually("b forwards to a", TIMEOUT, || count(a, |counters| &counters.not_owner) >= 1)
            .await;
        holds(b, Ranges::all(), None);
    };
    let (answer, ()) = tokio::join!(b.check("bucket", &key), arrives);
    assert_eq!((source(&answer), remaining(&answer)), (VerdictSource::Local, 19));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_lease_answers_its_own_keys_by_policy() {
    let mut nodes = three().await;
    let b = nodes.remove(1);
    let key = value_of(&b, "bucket", "b");
    assert_eq!(source(&b.check("bucket", &key).await), VerdictSource::Local);
    drop(nodes);
    let ownership = &b.core.ownership;
    eventually("the lease ran out", TIMEOUT, || !ownership.has_lease()).await;
    assert_eq!(source(&b.check("bucket", &key).await), VerdictSource::Fallback);
}

//! Refusals that the forwarding node remembers.

use std::sync::Arc;

use tidegate::decide::VerdictSource;
use tidegate_testkit::in_process::{Node, cluster};
use tidegate_testkit::rules::book;
use tidegate_testkit::wait::eventually;

use super::bench::{RULES, TIMEOUT, count, remaining, source, value_of};

async fn two() -> Vec<Node> {
    cluster(&[("a", "eu"), ("b", "eu")], RULES, |_| {}).await
}

/// Leaves 5 of the 20 of a key of b, and lets a be refused 10. Returns the key.
async fn refused(a: &Node) -> String {
    let key = value_of(a, "bucket", "b");
    assert_eq!(remaining(&a.check_hits("bucket", &key, 15).await), 5);
    let refusal = a.check_hits("bucket", &key, 10).await;
    assert_eq!((refusal.allowed, source(&refusal)), (false, VerdictSource::Owner));
    key
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_key_costs_its_owner_nothing() {
    let nodes = two().await;
    let [a, b] = &nodes[..] else { unreachable!("two nodes") };
    let key = refused(a).await;
    let served = count(b, |counters| &counters.served);
    for hits in [10, 11, 20] {
        let answer = a.check_hits("bucket", &key, hits).await;
        assert_eq!(
            (answer.allowed, source(&answer)),
            (false, VerdictSource::NegativeCache),
            "{hits} hits"
        );
    }
    assert_eq!(count(b, |counters| &counters.served), served);
    assert_eq!(count(a, |counters| &counters.cached), 3);
    let owners = b.check_hits("bucket", &key, 10).await;
    let remembered = a.check_hits("bucket", &key, 10).await;
    let wait = |answer: &tidegate::decide::CheckResponse| {
        answer.statuses[0].verdicts[0].retry.after().unwrap().as_secs_ceil()
    };
    assert!(wait(&owners).abs_diff(wait(&remembered)) <= 1, "it equals the answer of the owner");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fewer_hits_and_looks_pass_through() {
    let nodes = two().await;
    let [a, _] = &nodes[..] else { unreachable!("two nodes") };
    let key = refused(a).await;
    let read = a.check_hits("bucket", &key, 0).await;
    assert_eq!((source(&read), remaining(&read)), (VerdictSource::Owner, 5));
    let fewer = a.check_hits("bucket", &key, 5).await;
    assert_eq!((fewer.allowed, source(&fewer)), (true, VerdictSource::Owner));
}

/// Refunded at the node that remembers the refusal, or at the owner, which notifies that node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refunded_hits_can_be_used() {
    let nodes = two().await;
    let [a, b] = &nodes[..] else { unreachable!("two nodes") };
    for at in [a, b] {
        let key = refused(a).await;
        assert_eq!(source(&a.check_hits("bucket", &key, 10).await), VerdictSource::NegativeCache);
        at.check_hits("bucket", &key, -15).await;
        let mut answer = a.check_hits("bucket", &key, 10).await;
        // The notice of b may still be on its way.
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        while source(&answer) == VerdictSource::NegativeCache
            && tokio::time::Instant::now() < deadline
        {
            answer = a.check_hits("bucket", &key, 10).await;
        }
        assert_eq!((answer.allowed, source(&answer)), (true, VerdictSource::Owner));
        a.check_hits("bucket", &key, -10).await;
    }
}

/// The owner notifies all nodes that may remember a refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refunded_hits_reach_all_nodes_that_remember_a_refusal() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, |_| {}).await;
    let [a, _, c] = &nodes[..] else { unreachable!("three nodes") };
    let key = refused(a).await;
    c.check_hits("bucket", &key, 10).await;
    assert_eq!(source(&c.check_hits("bucket", &key, 10).await), VerdictSource::NegativeCache);
    a.check_hits("bucket", &key, -15).await;
    let remembered = || count(c, |counters| &counters.cached);
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        let before = remembered();
        let answer = c.check_hits("bucket", &key, 10).await;
        if remembered() == before {
            assert!(answer.allowed);
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "c was never notified");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_rule_is_checked_at_the_owner() {
    let nodes = two().await;
    let [a, _] = &nodes[..] else { unreachable!("two nodes") };
    let key = refused(a).await;
    let raised = book(&RULES.replace("requests_per_unit: 20", "requests_per_unit: 40"));
    for node in &nodes {
        node.core.book.store(Arc::clone(&raised.load()));
    }
    let answer = a.check_hits("bucket", &key, 10).await;
    assert_eq!((answer.allowed, source(&answer)), (true, VerdictSource::Owner));
    eventually("nothing was answered from memory", TIMEOUT, || {
        count(a, |counters| &counters.cached) == 0
    })
    .await;
}

//! A whole node: ready with its first rules, and its counts outlive every change of them.

use tidegate::front::rls::message::Code;

use crate::TIDEGATE;
use tidegate_testkit::xds::Node;
use tidegate_testkit::xds::Server;
use tidegate_testkit::xds::{mistaken_rules, rules, state};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_ready_with_its_first_rules_and_counts_on_through_updates() {
    let mut server = Server::start().await;
    let mut node = Node::start(TIDEGATE, server.addr);
    let mut stream = server.accept().await;
    stream.request().await;
    let text = node.readiness("no rules were loaded yet").await;
    assert!(text.contains(" 503 "), "{text}");

    stream.ask(state("1", &[mistaken_rules("shop")])).await;
    node.readiness("no rules were loaded yet").await;
    stream.ask(state("2", &[rules("shop", 5)])).await;
    node.readiness(" 200 ").await;
    assert_eq!(counted(&node, 3).await, (Code::Ok, 5, 2));

    // The count goes on under the new limit.
    let answer = stream.ask(state("3", &[rules("shop", 10), rules("other", 1)])).await;
    assert_eq!(answer.error_detail, None);
    assert_eq!(counted(&node, 1).await, (Code::Ok, 10, 6));

    let answer = stream.ask(state("4", &[mistaken_rules("shop")])).await;
    assert!(answer.error_detail.is_some());
    assert_eq!(counted(&node, 6).await, (Code::Ok, 10, 0));
    assert_eq!(counted(&node, 1).await, (Code::OverLimit, 10, 0));

    // No rules at all are a state of the world too.
    stream.ask(state("5", &[])).await;
    node.readiness(" 200 ").await;
    assert_eq!(node.ask("shop", 1).await.current_limit, None);
}

/// Code, limit and what remains of it.
async fn counted(node: &Node, hits: u32) -> (Code, u32, u32) {
    let status = node.ask("shop", hits).await;
    let limit = status.current_limit.as_ref().unwrap().requests_per_unit;
    (status.code(), limit, status.limit_remaining)
}

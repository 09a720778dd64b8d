//! A node with a management server: ready with its first rules, and no change of them resets a
//! count.

use std::net::TcpListener;

use tidegate::front::rls::message::Code;
use tidegate_testkit::xds::{Node, Server, mistaken_rules, rules, state};

use crate::TIDEGATE;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_ready_with_its_first_rules_and_counts_on_through_updates() {
    let mut server = Server::start().await;
    let mut node = Node::start(TIDEGATE, server.addr);
    let mut stream = server.accept().await;
    stream.request().await;
    node.wait_for_readiness(503, "no rules have been loaded yet").await;

    stream.exchange(state("1", &[mistaken_rules("shop")])).await;
    node.wait_for_readiness(503, "invalid rate limit unit 'UNKNOWN'").await;
    stream.exchange(state("2", &[rules("shop", 5)])).await;
    node.wait_for_readiness(200, "").await;
    assert_eq!(counted(&node, 3).await, (Code::Ok, 5, 2));

    // The count continues under the new limit.
    let answer = stream.exchange(state("3", &[rules("shop", 10), rules("other", 1)])).await;
    assert_eq!(answer.error_detail, None);
    assert_eq!(counted(&node, 1).await, (Code::Ok, 10, 6));

    let answer = stream.exchange(state("4", &[mistaken_rules("shop")])).await;
    assert!(answer.error_detail.is_some());
    assert_eq!(counted(&node, 6).await, (Code::Ok, 10, 0));
    assert_eq!(counted(&node, 1).await, (Code::OverLimit, 10, 0));

    // No rules at all are a valid state of the world.
    stream.exchange(state("5", &[])).await;
    node.wait_for_readiness(200, "").await;
    assert_eq!(node.check("shop", 1).await.current_limit, None);
}

/// It accepts connections and answers nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_management_server_that_sends_nothing_is_named_as_the_reason() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut node = Node::start(TIDEGATE, silent.local_addr().unwrap());
    node.wait_for_readiness(503, "it has sent no rules yet").await;
}

/// Code, limit and remaining hits.
async fn counted(node: &Node, hits: u32) -> (Code, u32, u32) {
    let status = node.check("shop", hits).await;
    let limit = status.current_limit.as_ref().unwrap().requests_per_unit;
    (status.code(), limit, status.limit_remaining)
}

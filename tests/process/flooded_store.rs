//! A flood of keys that are used once: a blocked key stays blocked, and memory is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_testkit::http_client::check_body;
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::TIDEGATE;

/// The junk lives as long as what it is to push out.
const RULES: &str = "
domain: flood
descriptors:
  - {key: user, rate_limit: {window: 7d, requests_per_unit: 5}}
  - {key: junk, rate_limit: {window: 7d, requests_per_unit: 100}}
";
const LIMIT: usize = 5;
const BLOCKED: usize = 50;
const JUNK: u64 = 1_000_000;
const KEYS_MAX: u64 = 50_000;
/// As many as a request may carry.
const DESCRIPTORS: u64 = 32;
const CLIENTS: usize = 6;
/// The counters at twice what one costs, and what is on its way.
const GROWTH_MAX: u64 = KEYS_MAX * 100 + 64 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_key_stays_blocked_through_a_million_others() {
    let sets = &["limits.keys_max=50000", "cluster.deadline=1000ms"];
    let cluster = Cluster::start_alone(
        TIDEGATE,
        ClusterOptions {
            nodes: THREE,
            rules: RULES,
            config: "",
            sets,
            ..ClusterOptions::default()
        },
    )
    .await;
    let listeners: Vec<_> = cluster.nodes.iter().map(|node| node.http).collect();
    let blocked = || (0..BLOCKED).map(|number| format!("blocked-{number}"));
    for key in blocked() {
        for turn in 0..=LIMIT {
            let body = check_body("flood", "user", &key);
            let reply = cluster.http.check(listeners[turn % 3], &body).await.unwrap();
            assert_eq!(reply.status, if turn < LIMIT { 200 } else { 429 }, "{reply:?}");
        }
    }
    let before: Vec<u64> = cluster.nodes.iter().map(Node::resident_bytes).collect();

    let (start, next) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (http, next, listener) = (cluster.http.clone(), next.clone(), listeners[client % 3]);
        clients.spawn(async move {
            loop {
                let first = next.fetch_add(DESCRIPTORS, Ordering::Relaxed);
                if first >= JUNK {
                    break;
                }
                let junk = |number: u64| {
                    serde_json::json!({"entries": [{"key": "junk", "value": number.to_string()}]})
                };
                let junk: Vec<_> = (first..first + DESCRIPTORS).map(junk).collect();
                let body = serde_json::json!({"domain": "flood", "descriptors": junk});
                let reply = http.check(listener, &body).await.unwrap();
                assert!([200, 429].contains(&reply.status), "{reply:?}");
            }
        });
    }
    clients.join_all().await;
    println!("{JUNK} junk keys in {:.1?}", start.elapsed());

    for key in blocked() {
        for listener in &listeners {
            let reply = cluster.http.check(*listener, &check_body("flood", "user", &key)).await;
            assert_eq!(reply.unwrap().status, 429, "{key}");
        }
    }
    for (node, before) in cluster.nodes.iter().zip(before) {
        let store = node.status().await.unwrap().store;
        let grown = node.resident_bytes().saturating_sub(before);
        println!("{} holds {} keys and grew by {} KiB", node.id, store.keys, grown / 1024);
        assert!(store.keys <= KEYS_MAX, "{store:?}");
        assert!(store.shared > 0, "the flood was larger than the store: {store:?}");
        assert!(grown <= GROWTH_MAX, "{} grew by {grown} bytes", node.id);
    }
}

//! A flood of keys that are used once must not evict a blocked key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;

use crate::cluster::{Cluster, Setup};
use crate::group::{DOMAIN, Group, JUNK, Key};

/// Far fewer than the keys of the flood.
const KEYS_MAX: u64 = 50_000;
/// Permitted growth of a node's memory: its counters at twice their cost, and buffers.
const GROWTH_MAX: u64 = KEYS_MAX * 100 + 64 * 1024 * 1024;
/// The default maximum of a request.
const DESCRIPTORS: u64 = 32;
const CLIENTS: usize = 8;

pub(super) fn prepare(setup: &mut Setup) {
    setup.sections = format!("[limits]\nkeys_max = {KEYS_MAX}\n");
}

pub(super) async fn pour(cluster: &mut Cluster, junk: u64) {
    // Every key of the load gets its counter before the store is full, and some are blocked.
    let blocked: Vec<Key> =
        (0..Group::Strict.keys()).map(|index| Key { group: Group::Strict, index }).collect();
    cluster.reach_limits(&[Group::Strict]).await;
    for group in [Group::Count, Group::Durable, Group::Local] {
        for index in 0..group.keys() {
            let node_index = cluster.draw();
            cluster.load.hit(node_index, Key { group, index }).await;
        }
    }
    let before: Vec<u64> = cluster
        .nodes
        .iter()
        .filter(|node| node.is_running())
        .map(crate::node::Node::resident_bytes)
        .collect();

    let next = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let next = next.clone();
        let running = cluster.running();
        let node = &cluster.nodes[running[client % running.len()]];
        let (http, listener) = (node.http(), node.http);
        clients.spawn(async move {
            loop {
                let first = next.fetch_add(DESCRIPTORS, Ordering::Relaxed);
                if first >= junk {
                    break;
                }
                let descriptors: Vec<_> = (first..first + DESCRIPTORS)
                    .map(|key| {
                        let entry = serde_json::json!({"key": JUNK, "value": key.to_string()});
                        serde_json::json!({"entries": [entry]})
                    })
                    .collect();
                let body = serde_json::json!({"domain": DOMAIN, "descriptors": descriptors});
                http.check(listener, &body).await.unwrap();
            }
        });
    }
    clients.join_all().await;

    for key in blocked {
        let node_index = cluster.draw();
        if cluster.load.hit(node_index, key).await.is_allowed() {
            cluster.violations.push(format!("{key:?} was blocked and is now admitted"));
        }
    }
    for (node_index, before) in cluster.running().into_iter().zip(before) {
        let node = &cluster.nodes[node_index];
        let grown = node.resident_bytes().saturating_sub(before);
        if grown > GROWTH_MAX {
            cluster.violations.push(format!("{} grew by {grown} bytes", node.id));
        }
        let keys = node.status().await.unwrap().store.keys;
        if keys > KEYS_MAX {
            cluster.violations.push(format!("{} holds {keys} keys, more than {KEYS_MAX}", node.id));
        }
    }
}

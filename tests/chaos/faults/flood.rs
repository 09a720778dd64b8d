//! Millions of keys that are used once: they must not evict a blocked key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;

use crate::arena::{Arena, Setup};
use crate::group::{DOMAIN, Group, JUNK, Key};

/// Far fewer than the junk.
const KEYS_MAX: u64 = 50_000;
/// What a node may hold beyond what it held before the flood: its counters, at twice what one
/// costs, and what is on its way.
const GROWTH_MAX: u64 = KEYS_MAX * 100 + 64 * 1024 * 1024;
/// As many as a request may carry by default.
const DESCRIPTORS: u64 = 32;
const CLIENTS: usize = 8;

pub(super) fn prepare(setup: &mut Setup) {
    setup.more = format!("[limits]\nkeys_max = {KEYS_MAX}\n");
}

pub(super) async fn pour(arena: &mut Arena, junk: u64) {
    // Each key of the load has its counter before the store is full, and some are blocked.
    let blocked: Vec<Key> =
        (0..Group::Strict.keys()).map(|index| Key { group: Group::Strict, index }).collect();
    arena.reach_limits(&[Group::Strict]).await;
    for group in [Group::Count, Group::Durable, Group::Local] {
        for index in 0..group.keys() {
            let token = arena.draw();
            arena.load.hit(token, Key { group, index }).await;
        }
    }
    let before: Vec<u64> = arena
        .nodes
        .iter()
        .filter(|node| node.is_running())
        .map(crate::node::Node::resident_bytes)
        .collect();

    let next = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let next = next.clone();
        let running = arena.running();
        let node = &arena.nodes[running[client % running.len()]];
        let (http, listener) = (node.http(), node.http);
        clients.spawn(async move {
            loop {
                let first = next.fetch_add(DESCRIPTORS, Ordering::Relaxed);
                if first >= junk {
                    break;
                }
                let descriptors: Vec<_> = (first..first + DESCRIPTORS)
                    .map(|key| serde_json::json!({"entries": [{"key": JUNK, "value": key.to_string()}]}))
                    .collect();
                let body = serde_json::json!({"domain": DOMAIN, "descriptors": descriptors});
                http.check(listener, &body).await.unwrap();
            }
        });
    }
    clients.join_all().await;

    for key in blocked {
        let token = arena.draw();
        if arena.load.hit(token, key).await.is_allowed() {
            arena.broken.push(format!("{key:?} was blocked and passes"));
        }
    }
    for (token, before) in arena.running().into_iter().zip(before) {
        let node = &arena.nodes[token];
        let grown = node.resident_bytes().saturating_sub(before);
        if grown > GROWTH_MAX {
            arena.broken.push(format!("{} grew by {grown} bytes", node.id));
        }
        let keys = node.status().await.unwrap().store.keys;
        if keys > KEYS_MAX {
            arena.broken.push(format!("{} holds {keys} keys, more than {KEYS_MAX}", node.id));
        }
    }
}

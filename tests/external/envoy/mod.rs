//! A real Envoy in front of three nodes: what its clients get.
//!
//! Envoy runs `docs/examples/envoy.yaml` with nothing changed but its ports and, where a test names
//! it, its timeout. `scripts/envoy-tools` fetches Envoy.

mod answers;
mod day;
mod demo;
mod exact_limit;
mod killed_node;
mod management_server;
mod python_client;
mod retry_after;
mod rules_reload;

//! A real Envoy in front of three nodes: what its clients get.
//!
//! Envoy runs `docs/examples/envoy.yaml`, the file that people copy, with nothing changed but its
//! ports. `scripts/envoy-tools` fetches Envoy; the nodes, the upstream and the clients are those of
//! `tests/process`.

mod answers;
mod day;
mod demo;
mod exact_limit;
mod killed_node;
mod management_server;
mod python_client;
mod retry_after;
mod rules_reload;

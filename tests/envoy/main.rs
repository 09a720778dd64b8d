//! A real Envoy in front of three nodes: what its clients get.
//!
//! Envoy runs `docs/examples/envoy.yaml`, the file that people copy, with nothing changed but its
//! ports. `scripts/envoy-tools` fetches Envoy; the nodes, the upstream and the clients are those of
//! `tests/process`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what was measured belongs in the output of the test")]
#![allow(clippy::print_stderr, reason = "a failure shows the logs of the processes")]

mod answers;
mod day;
mod demo;
mod exact_limit;
#[allow(dead_code, unused_imports, reason = "the process tests use all of it")]
#[path = "../process/harness/mod.rs"]
mod harness;
mod killed_node;
mod management_server;
mod proxy;
mod python_client;
mod retry_after;
mod rules_reload;
#[allow(dead_code, reason = "the tests of xDS use all of it")]
#[path = "../xds/serving.rs"]
mod serving;
mod tools;

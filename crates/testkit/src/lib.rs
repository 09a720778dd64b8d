//! Scaffolding that all tests share: nodes in this process, nodes as processes, proxies in front of
//! them and the application behind, clients, and waiting.
//!
//! - [`in_process`]: nodes on tasks of the test, on real sockets of the loopback.
//! - [`process`]: `tidegate serve` as child processes, alone or as a cluster with certificates.
//! - [`http_client`]: an HTTP client without retries.
//! - [`loadgen`]: load from one thread, over prepared bytes, for programs that measure.
//! - [`mesh_peer`]: a QUIC peer driven by hand, with or without a valid certificate.
//! - [`cgroup`]: a share of a core for processes.
//! - [`network`]: a network namespace in which the mesh can be partitioned.
//! - [`relay`]: a UDP relay that drops, duplicates, delays or cuts.
//! - [`nginx`], [`envoy`], [`upstream`]: proxies and the application behind them.
//! - [`xds`]: a management server, and a node that follows one.
//! - [`wait`], [`exclusive`]: waiting for conditions, and for other tests.
//! - [`site`]: certificates of listeners and of their clients.
//! - [`token_issuer`]: signed tokens of pods.
//! - [`gubernator`]: responses in JSON.
//! - [`certificates`], [`rules`], [`clock`], [`random`]: what nodes and tests are given.
//! - [`ports`], [`tools`]: free ports, programs that `scripts/envoy-tools` fetched.
//! - [`variable`]: what makes a test shorter or longer.

#![allow(missing_docs, reason = "used by tests only")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a failure shows the logs of the processes")]

pub mod certificates;
pub mod cgroup;
pub mod clock;
pub mod envoy;
pub mod exclusive;
pub mod gubernator;
pub mod http_client;
pub mod in_process;
pub mod loadgen;
pub mod mesh_peer;
pub mod network;
pub mod nginx;
pub mod ports;
pub mod process;
pub mod random;
pub mod regions;
pub mod relay;
pub mod rules;
pub mod site;
pub mod token_issuer;
pub mod tools;
pub mod upstream;
pub mod variable;
pub mod wait;
pub mod xds;

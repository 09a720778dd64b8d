//! Nodes and their parts in this process: no `tidegate serve` runs beside it, and nothing has to be
//! installed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what was measured belongs in the output of the test")]

mod admin_dashboard;
mod admin_roles;
mod admin_router;
mod chaos_checks;
mod clock;
mod cluster_core;
mod config_load;
mod demo_config;
mod edges;
mod envoy_ratelimit_settings;
mod eventual_convergence;
mod forwarding;
mod front;
mod golden_support;
mod gubernator;
mod leased;
mod mesh_deferred_answers;
mod mesh_gossip;
mod mesh_intruders;
mod mesh_peers;
mod ownership_cluster;
mod pki_identity;
mod recovered_cluster;
mod regions;
mod replication;
mod reservations;
mod resp;
mod rls_golden;
mod rls_semantics;
mod rules_cli;
mod rules_reload;
mod signer;
mod stats_export;
mod storage;
mod wire_compat;
mod xds;

/// The binary that cargo built for these tests.
const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

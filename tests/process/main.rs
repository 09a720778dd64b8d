//! Real processes: `tidegate` as people run it, and clients on the loopback.
//!
//! Everything here runs the built binary, with certificates that it made itself. One cluster runs
//! at a time, because two cores have to carry it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what was measured belongs in the output of the test")]
#![allow(clippy::print_stderr, reason = "a failure shows the logs of the processes")]

mod admin_tokens;
mod agreed_membership;
mod bad_input;
mod cli_binary;
mod concurrency;
mod crashed_owner;
mod dashboard;
mod demo;
mod documented_commands;
mod drained_node;
mod edges;
mod envoy_ratelimit_command;
mod flooded_store;
mod full_disk;
mod gubernator;
mod joined_pods;
mod joined_with_token;
mod keys_by_hand;
mod killed_node;
mod long_windows;
mod lost_region;
mod moved_keys;
mod nftables;
mod no_open_files;
mod one_owner;
mod operated_cluster;
mod partitioned_members;
mod partitioned_regions;
mod paused_owner;
mod proxy_command;
mod replaced_voters;
mod reservations;
mod revoked_nodes;
mod rotated_certificates;
mod rules_reload;
mod secured_listeners;
mod soft_limits;
mod stats_bounds;
mod systemd;
mod top;
#[cfg(feature = "otel")]
mod traces;
mod xds;

/// The binary that cargo built for these tests.
const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

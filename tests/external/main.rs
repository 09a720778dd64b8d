//! Programs that others wrote, around real nodes: nginx, Node, Envoy, clients of Redis, Python.
//!
//! `scripts/test` installs what is missing. Each test names the program that it lacks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what was measured belongs in the output of the test")]

mod envoy;
mod gubernator;
mod nginx;
mod proxy;
mod redis_clients;

/// The binary that cargo built for these tests.
const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

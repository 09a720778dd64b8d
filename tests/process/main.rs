//! Real processes: `tidegate serve`, nginx, and clients on the loopback.
//!
//! Everything here runs the built binary as people run it, with certificates that it made itself.
//! One cluster runs at a time, because two cores have to carry it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what was measured belongs in the output of the test")]
#![allow(clippy::print_stderr, reason = "a failure shows the logs of the processes")]

mod bad_input;
mod crashed_owner;
mod drained_node;
mod exact_limits;
mod flooded_store;
mod harness;
mod killed_node;
mod long_windows;
mod moved_keys;
mod one_owner;
mod paused_owner;
mod reference_process;
mod rules_reload;

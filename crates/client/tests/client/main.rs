//! The pacer: the vectors that all clients share, input from servers, tasks, and real HTTP.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what was measured belongs in the output of the test")]

mod pacer;
mod pacing;
mod server;
mod untrusted;
mod vectors;
mod workers;

//! Real processes, for minutes: what `cargo test` has no time for. `scripts/check-long` runs each
//! module as a step, with the release build.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what was measured belongs in the output of the test")]
#![allow(clippy::disallowed_methods, reason = "clocks of the machine that is measured")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "figures of a report, and numbers of listeners"
)]

mod edges;
mod far_regions;
mod flooded_domain;
mod idle_cost;
mod overloaded_node;
mod page_cost;
mod replaced_under_load;
mod taken_over;

/// The binary that cargo built for these tests.
const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

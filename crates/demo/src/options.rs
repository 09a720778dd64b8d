//! What to run, and how to print it.

use std::path::PathBuf;

/// What to run, and how to print it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `tidegate` binary.
    pub executable: PathBuf,
    /// End after the last step. Otherwise the cluster stays up until `shutdown`.
    pub once: bool,
    /// Add a step with Envoy: the one in the `PATH`, or the one that `scripts/envoy-tools` fetched.
    pub envoy: bool,
    /// Use colours, as on a terminal.
    pub color: bool,
}

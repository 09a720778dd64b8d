//! `[storage]`: what outlives the process.

use std::path::PathBuf;

use serde::Deserialize;
use tidegate_limiter::units::Span;

use super::duration;

/// `[storage]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Storage {
    /// File that keeps the counts of windows of an hour and longer over a restart of the whole
    /// cluster. Made when it is not there; its folder has to be. One file a node.
    ///
    /// Default none: counts live in memory, on their owner and its replicas.
    pub path: Option<PathBuf>,
    /// How often changed counts are written, 100ms to 10m: what a crash of the whole cluster may
    /// give back.
    ///
    /// Default `3s`.
    #[serde(deserialize_with = "duration::read")]
    pub interval: Span,
}

impl Default for Storage {
    fn default() -> Self {
        Self { path: None, interval: Span::from_secs(3) }
    }
}

//! `[limits]` and `[storage]`: bounds of a node, and persistence of its counters.

use std::path::PathBuf;

use serde::Deserialize;
use tidegate_limiter::store::{OnFull, Options};
use tidegate_limiter::units::Span;

use super::value::duration;

/// `[limits]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Maximum number of counters on a node, 1 to 1,000,000,000. At the bound `on_full` applies;
    /// counters in use are never evicted.
    ///
    /// Default 1,000,000: some 50 MB. Set it to the number of keys active within a window.
    pub keys_max: usize,
    /// Treatment of a new key when the store is full: `share` or `refuse`.
    ///
    /// Default `share`: new clients share one limit, so a flood of invented keys neither locks them
    /// out nor multiplies the limit.
    pub on_full: OnFull,
    /// Maximum number of connections of a listener, 1 to 1,000,000. Further ones wait in the
    /// system's accept queue.
    ///
    /// Default 10,000: at most some 200 MB of connection state. Keep it below `ulimit -n`.
    pub connections_max: usize,
    /// Maximum size of a request body in bytes, 1,024 to 16,777,216. Larger ones are refused (413).
    ///
    /// Default 65,536: several times the largest request within the other default bounds.
    pub body_bytes_max: usize,
    /// Maximum number of descriptors in a request, 1 to 1,000.
    ///
    /// Default 32: each costs a lookup and possibly a forwarded check, so this bounds the work of
    /// one request.
    pub descriptors_max: usize,
    /// Maximum number of entries in a descriptor, 1 to 100.
    ///
    /// Default 16: deeper than rules in practice.
    pub entries_max: usize,
    /// Maximum length of a key or value in bytes, 1 to 65,536.
    ///
    /// Default 1,024: a long path or token fits.
    pub value_bytes_max: usize,
    /// How long a client may take to send its request header, 10ms to 10m. Slower ones are
    /// disconnected.
    ///
    /// Default `5s`: bounds how long a slow-loris attack holds a connection.
    #[serde(deserialize_with = "duration")]
    pub header_timeout: Span,
    /// How long a draining node waits for requests in flight, 0s to 10m.
    ///
    /// Default `10s`: a third of the 30 s that Kubernetes gives a pod to terminate.
    #[serde(deserialize_with = "duration")]
    pub drain_timeout: Span,
}

/// `[storage]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Storage {
    /// File that keeps counters of windows of an hour and longer across a restart of the whole
    /// cluster. Created when missing; its folder must exist. Every node needs its own.
    ///
    /// Default none: counters are in memory only, on their owner and its replicas.
    pub path: Option<PathBuf>,
    /// Interval at which changed counters are written, 100ms to 10m: the hits that a crash of the
    /// whole cluster may lose.
    ///
    /// Default `3s`.
    #[serde(deserialize_with = "duration")]
    pub interval: Span,
}

impl Limits {
    /// The options of the store.
    pub fn store(&self) -> Options {
        Options { keys_max: self.keys_max, on_full: self.on_full, shards: None }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            keys_max: 1_000_000,
            on_full: OnFull::Share,
            connections_max: 10_000,
            body_bytes_max: 64 * 1024,
            descriptors_max: 32,
            entries_max: 16,
            value_bytes_max: 1024,
            header_timeout: Span::from_secs(5),
            drain_timeout: Span::from_secs(10),
        }
    }
}

impl Default for Storage {
    fn default() -> Self {
        Self { path: None, interval: Span::from_secs(3) }
    }
}

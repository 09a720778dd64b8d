//! `[limits]`: every bound a deployment may want to move.

use serde::Deserialize;
use tidegate_limiter::store::{OnFull, Options};

/// `[limits]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Most counters a node keeps, 1 to 1,000,000,000. At the bound, `on_full` decides; counters in
    /// use are never thrown out.
    ///
    /// Default 1,000,000: some 50 MB. Raise it to the keys that are active within a window.
    pub keys_max: usize,
    /// What a new key gets when the store is full: `share` or `refuse`.
    ///
    /// Default `share`: honest new clients still get something, a flood of made-up keys gets one
    /// limit between them.
    pub on_full: OnFull,
    /// Most connections a front door holds, 1 to 1,000,000. At the bound, new ones wait in the
    /// system's accept queue.
    ///
    /// Default 10,000: some 200 MB of connection state at worst. Keep it below `ulimit -n`.
    pub connections_max: usize,
    /// Largest request body in bytes, 1,024 to 16,777,216. Larger ones are refused (413).
    ///
    /// Default 65,536: a request at every other bound's default fits a few times over.
    pub body_bytes_max: usize,
    /// Most descriptors in one request, 1 to 1,000. More are refused.
    ///
    /// Default 32: each costs a lookup and perhaps a forward, so this bounds what one request can
    /// ask of the cluster.
    pub descriptors_max: usize,
    /// Most entries in one descriptor, 1 to 100. More are refused.
    ///
    /// Default 16: deeper than the rules people write.
    pub entries_max: usize,
    /// Longest key or value in bytes, 1 to 65,536. Longer ones are refused.
    ///
    /// Default 1,024: a long path or token fits.
    pub value_bytes_max: usize,
    /// How long a client may take to send its request header, in milliseconds, 10 to 600,000.
    /// Slower ones are cut off.
    ///
    /// Default 5,000: a gateway needs a few; a slow-loris attack holds a connection no longer.
    pub header_timeout_ms: u64,
    /// How long a draining node waits for requests in flight, in milliseconds, 0 to 600,000.
    ///
    /// Default 10,000: a third of the 30 s that Kubernetes gives a pod to end.
    pub drain_timeout_ms: u64,
}

impl Limits {
    /// What bounds the store of a node with these limits.
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
            header_timeout_ms: 5_000,
            drain_timeout_ms: 10_000,
        }
    }
}

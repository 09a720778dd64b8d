//! What happened to ownership since the start.

use std::sync::atomic::AtomicU64;

/// Events since the start, for the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Times that no majority of the voters granted this node a lease any more.
    pub leases_lost: AtomicU64,
    /// Times that this node's clock had stood still.
    pub standstills: AtomicU64,
    /// Times that this node was evicted and dropped all that it held.
    pub evictions: AtomicU64,
    /// Ranges handed over to another node.
    pub handed_over: AtomicU64,
    /// Ranges accepted from another node.
    pub taken_over: AtomicU64,
    /// States copied to their owners before a handoff.
    pub copied: AtomicU64,
    /// Transfer steps that failed and were retried.
    pub failed: AtomicU64,
    /// Transfer steps after which the ranges stayed, because the peer refused some of their states.
    pub rejected: AtomicU64,
    /// Members to which ranges were handed over without the states that they refused.
    pub given_up: AtomicU64,
    /// Releases of other nodes that were not accepted.
    pub refused: AtomicU64,
    /// Evicted members of which this node took ranges over.
    pub takeovers: AtomicU64,
    /// Ranges taken over so, and those of them that had no replica any more.
    pub takeover_ranges: AtomicU64,
    pub takeover_ranges_without_copy: AtomicU64,
    /// Counters with which these ranges go on.
    pub takeover_keys: AtomicU64,
}

//! What happened to ownership, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

/// What happened to ownership since the start; read by the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Times a quorum did not recognise this node in time.
    pub leases_lost: AtomicU64,
    /// Times it was recognised again and had to begin as a newcomer.
    pub leases_interrupted: AtomicU64,
    /// Ranges handed to another node.
    pub handed_over: AtomicU64,
    /// Ranges that another node handed over.
    pub taken_over: AtomicU64,
    /// States copied to their owners before a handover.
    pub copied: AtomicU64,
    /// Copies, flushes and messages of handovers that failed and were begun anew.
    pub failed: AtomicU64,
    /// Releases that were refused: of another epoch, or of places that are not this node's.
    pub refused: AtomicU64,
}

/// Relaxed: statistics order nothing.
pub(super) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

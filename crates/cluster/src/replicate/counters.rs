//! What was replicated since the start; read by the metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// What was replicated since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// States sent to peers.
    pub sent: AtomicU64,
    /// States that peers sent and this node joined.
    pub received: AtomicU64,
    /// States that peers sent and this node refused: not theirs to tell, or implausible.
    pub refused: AtomicU64,
    /// Messages that were not answered; what they told is told again.
    pub failed: AtomicU64,
    /// States put in line again because a replica's copy differed.
    pub repaired: AtomicU64,
    /// Counts that a replica confirmed before they were answered.
    pub confirmed: AtomicU64,
    /// Counts that no replica confirmed in time.
    pub unconfirmed: AtomicU64,
}

/// Relaxed: statistics order nothing.
pub(super) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

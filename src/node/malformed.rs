//! Messages of peers that are malformed or out of bounds: each is counted, and logged when their
//! number has doubled, so that a peer that goes on sending them fills no log.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_ownership::identity::NodeId;

/// The messages of all peers since the start of this node.
#[derive(Debug, Default)]
pub(super) struct Malformed(AtomicU64);

// === impl Malformed ===

impl Malformed {
    pub(super) fn count(&self, from: &NodeId) {
        let messages = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        if messages.is_power_of_two() {
            tracing::warn!(
                peer = %from,
                messages,
                "peer sent a message that this node does not take; the next is logged when there \
                 are twice as many (tidegate_mesh_malformed_total)"
            );
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

//! This node's own id and generation, shared by all that speak for it.
//!
//! The generation grows while the node runs only when a peer remembers a newer start: then the
//! clock was set back between the two starts. A peer that goes on to remember newer ones is hearing
//! of another node that runs under the same id, and both would outlive each other for ever; after
//! [`BUMPS_MAX`] times this node counts as *displaced*, and its operator has to decide.

use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_limiter::engine::ActorId;
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::identity::{Generation, NodeId, node_actor};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How often a start may outlive another before two nodes with one id are the likelier story. Each
/// peer may tell of a different one, so a clock that was set back once needs few.
pub const BUMPS_MAX: u32 = 5;

/// This node's own id and generation.
#[derive(Debug)]
pub struct Incarnation {
    node: NodeId,
    generation: watch::Sender<Generation>,
    outlives: AtomicU32,
    displaced: CancellationToken,
}

impl Incarnation {
    /// The start of `node` at `now`.
    pub fn new(node: NodeId, now: Timestamp) -> Self {
        let (generation, _) = watch::channel(Generation(now.as_nanos() / 1_000_000));
        Self { node, generation, outlives: AtomicU32::new(0), displaced: CancellationToken::new() }
    }

    /// This node's id.
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// This start.
    pub fn generation(&self) -> Generation {
        *self.generation.borrow()
    }

    /// The column that this start writes.
    pub fn actor(&self) -> ActorId {
        node_actor(&self.node, self.generation())
    }

    /// Grows beyond `met`, which a peer remembers, unless this start is that one or newer.
    pub fn bump(&self, met: Generation) {
        let has_grown = self.generation.send_if_modified(|own| {
            let is_newer = met > *own && met.0 < u64::MAX;
            if is_newer {
                *own = Generation(met.0 + 1);
            }
            is_newer
        });
        if has_grown && self.outlives.fetch_add(1, Ordering::Relaxed) >= BUMPS_MAX {
            self.displaced.cancel();
        }
    }

    /// Grows by one: what peers know of this start is to be forgotten.
    pub fn renew(&self) {
        self.generation.send_modify(|own| own.0 = own.0.saturating_add(1));
    }

    /// Tells when the generation grows.
    pub fn changes(&self) -> watch::Receiver<Generation> {
        self.generation.subscribe()
    }

    /// Ends when another node turns out to run under this id. Cancel-safe.
    pub async fn displaced(&self) {
        self.displaced.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Incarnation {
        Incarnation::new(NodeId::new("n1").expect("valid"), Timestamp::from_secs(1))
    }

    #[test]
    fn a_start_outlives_the_one_that_a_peer_remembers() {
        let start = start();
        assert_eq!(start.generation(), Generation(1_000));
        for (met, generation) in [(999, 1_000), (1_000, 1_000), (5_000, 5_001), (u64::MAX, 5_001)] {
            start.bump(Generation(met));
            assert_eq!(start.generation(), Generation(generation), "after meeting {met}");
        }
    }

    #[test]
    fn two_nodes_with_one_id_do_not_outlive_each_other_for_ever() {
        let (one, other) = (start(), start());
        for _ in 0..=BUMPS_MAX {
            other.bump(one.generation());
            other.renew();
            one.bump(other.generation());
        }
        assert!(one.displaced.is_cancelled());
        let once = start();
        once.bump(Generation(9_000));
        assert!(!once.displaced.is_cancelled());
    }
}

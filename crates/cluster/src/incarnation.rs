//! This node's id and generation.
//!
//! The generation is bumped while the node runs when a peer has seen a higher one: the clock was
//! set back between two starts of the node.
//!
//! Of two processes that run under one id, one ends. The cluster map says which: a process that was
//! a member and finds another run of its id in a newer map ([`Incarnation::displaced_by`]). Where
//! no map tells them apart they bump their generations in turn, and one that has done so more than
//! [`BUMPS_MAX`] times ends.

use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_limiter::engine::ActorId;
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::cluster_map::MapMember;
use tidegate_ownership::identity::{Generation, NodeId, node_actor};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Bumps after which a duplicate id is more likely than a clock that was set back. One set-back
/// clock needs a few, because each peer may have seen a different generation.
pub const BUMPS_MAX: u32 = 5;

#[derive(Debug)]
pub struct Incarnation {
    node: NodeId,
    generation: watch::Sender<Generation>,
    bumps: AtomicU32,
    duplicate_id: CancellationToken,
}

impl Incarnation {
    /// An incarnation of `node` that starts at `now`.
    pub fn new(node: NodeId, now: Timestamp) -> Self {
        let (generation, _) = watch::channel(Generation(now.as_nanos() / 1_000_000));
        let (bumps, duplicate_id) = (AtomicU32::new(0), CancellationToken::new());
        Self { node, generation, bumps, duplicate_id }
    }

    pub fn node(&self) -> &NodeId {
        &self.node
    }

    pub fn generation(&self) -> Generation {
        *self.generation.borrow()
    }

    /// The actor of the per-actor counters that this incarnation increments.
    pub fn actor(&self) -> ActorId {
        node_actor(&self.node, self.generation())
    }

    /// Raises the generation above `highest_seen`, which a peer reported, unless it is not lower.
    pub fn bump(&self, highest_seen: Generation) {
        let has_grown = self.generation.send_if_modified(|own| {
            let is_newer = highest_seen > *own && highest_seen.0 < u64::MAX;
            if is_newer {
                *own = Generation(highest_seen.0 + 1);
            }
            is_newer
        });
        if has_grown && self.bumps.fetch_add(1, Ordering::Relaxed) >= BUMPS_MAX {
            self.duplicate_id.cancel();
        }
    }

    /// Raises the generation by one, so that peers discard what they hold of the current one.
    pub fn renew(&self) {
        self.generation.send_modify(|own| own.0 = own.0.saturating_add(1));
    }

    /// The cluster map has admitted another run of this node.
    pub fn displaced_by(&self, member: &MapMember) {
        tracing::error!(
            node = %self.node, member = member.id.0, addr = %member.addr,
            "another process runs under this node's id and has taken its place in the cluster map"
        );
        self.duplicate_id.cancel();
    }

    /// Notifies when the generation changes.
    pub fn subscribe(&self) -> watch::Receiver<Generation> {
        self.generation.subscribe()
    }

    /// Completes when another node runs under this id. Cancel-safe.
    pub async fn duplicate_id(&self) {
        self.duplicate_id.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Incarnation {
        Incarnation::new(NodeId::new("n1").expect("valid"), Timestamp::from_secs(1))
    }

    #[test]
    fn a_bump_exceeds_what_a_peer_has_seen() {
        let start = start();
        assert_eq!(start.generation(), Generation(1_000));
        for (seen, generation) in [(999, 1_000), (1_000, 1_000), (5_000, 5_001), (u64::MAX, 5_001)]
        {
            start.bump(Generation(seen));
            assert_eq!(start.generation(), Generation(generation), "a peer has seen {seen}");
        }
    }

    #[test]
    fn two_nodes_with_one_id_report_a_duplicate() {
        let (one, other) = (start(), start());
        for _ in 0..=BUMPS_MAX {
            other.bump(one.generation());
            other.renew();
            one.bump(other.generation());
        }
        assert!(one.duplicate_id.is_cancelled());
        let once = start();
        once.bump(Generation(9_000));
        assert!(!once.duplicate_id.is_cancelled());
    }
}

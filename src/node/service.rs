//! Answers the calls of peers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_cluster::environment::Clock;
use tidegate_cluster::gossip::Gossip;
use tidegate_cluster::mesh::wire::{Call, Check, Digest, Reply};
use tidegate_cluster::mesh::{Peer, Service, ServiceReply};
use tidegate_cluster::ownership::Driver;
use tidegate_cluster::replication::{self, Replicator};
use tidegate_cluster::sync::Synchroniser;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::{Epochs, OwnershipStatus};
use tokio::time::Instant;

use crate::decide::Decider;

/// Answers the calls of peers without blocking.
pub(super) struct PeerService {
    pub(super) decider: Decider,
    pub(super) synchroniser: Arc<Synchroniser>,
    pub(super) replicator: Arc<Replicator>,
    pub(super) gossip: Arc<Gossip>,
    pub(super) ownership_driver: Arc<Driver>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) counters: Arc<PeerCounters>,
}

/// Rejected messages of peers; read by the metrics.
#[derive(Debug, Default)]
pub(super) struct PeerCounters {
    /// Malformed frames, and calls out of bounds.
    pub(super) malformed: AtomicU64,
}

impl Service for PeerService {
    fn handle_call(&self, from: &Peer, call: Call) -> ServiceReply {
        let reply = match call {
            Call::Ping { ownership_status, .. } => {
                let (epochs, grant) = self.ownership_driver.ping_received(from, ownership_status);
                Reply::Pong { clock: self.clock.system(), epochs, grant }
            }
            Call::Handoff(handoff) => {
                Reply::Handoff(self.ownership_driver.handoff_received(from, handoff))
            }
            Call::Digests(told) => return self.digests(from, told),
            Call::Refunded { token } => {
                self.decider.refunded(token);
                Reply::Done
            }
            Call::Check(check) => return self.check(from, &check),
            Call::Sync(sync) => self.synchroniser.receive(from, sync),
            Call::States(entries) => self.replicator.receive(&from.id, entries),
            Call::Gossip(bytes) => {
                self.gossip.deliver(from.advertise, &bytes);
                Reply::Done
            }
        };
        ServiceReply::Ready(self.noted(from, reply))
    }

    fn ownership_status(&self, peer: &Peer) -> OwnershipStatus {
        self.ownership_driver.ownership_status(peer)
    }

    fn pong_received(
        &self,
        from: &Peer,
        sent: Instant,
        epochs: Option<Epochs>,
        grant: Option<u64>,
    ) {
        self.ownership_driver.pong_received(from, sent, epochs, grant);
    }

    fn malformed(&self, from: &NodeId) {
        self.counters.malformed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(peer = %from, "peer sent a malformed message");
    }
}

impl PeerService {
    /// Decides a check; with durability `replicated` the verdicts wait for a replica.
    fn check(&self, from: &Peer, check: &Check) -> ServiceReply {
        let sender = (&from.id, from.generation);
        let reply = self.noted(from, self.decider.decide_for_peer(sender, check));
        let Reply::Verdicts(verdicts) = &reply else { return ServiceReply::Ready(reply) };
        match self.decider.confirmation(check, verdicts) {
            Some(confirmed) => ServiceReply::Deferred(Box::pin(confirmed)),
            None => ServiceReply::Ready(reply),
        }
    }

    /// Compares copies with their owner's digests, which scans the store.
    fn digests(&self, from: &Peer, told: Vec<Digest>) -> ServiceReply {
        if !replication::are_valid_digests(&told) {
            return ServiceReply::Ready(self.noted(from, Reply::Malformed));
        }
        let (replicator, from) = (self.replicator.clone(), from.id.clone());
        ServiceReply::Deferred(Box::pin(
            async move { replicator.compare_digests(&from, told).await },
        ))
    }

    fn noted(&self, from: &Peer, reply: Reply) -> Reply {
        if reply == Reply::Malformed {
            self.malformed(&from.id);
        }
        reply
    }
}

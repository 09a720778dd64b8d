//! What this node does for its peers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_cluster::environment::Clock;
use tidegate_cluster::gossip::Gossip;
use tidegate_cluster::mesh::wire::{Call, Check, Digest, Reply};
use tidegate_cluster::mesh::{Answer, Peer, Service};
use tidegate_cluster::ownership::Driver;
use tidegate_cluster::replicate::{self, Replicator};
use tidegate_cluster::sync::Synchroniser;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::{Epochs, OwnershipStatus};
use tokio::time::Instant;

use crate::decide::Decider;

/// Answers peers' calls; every arm is short and never waits.
pub(super) struct PeerService {
    pub(super) decider: Decider,
    pub(super) synchroniser: Synchroniser,
    pub(super) replicator: Replicator,
    pub(super) gossip: Gossip,
    pub(super) ownership_driver: Driver,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) counters: Arc<PeerCounters>,
}

/// What peers sent that was not taken; read by the metrics.
#[derive(Debug, Default)]
pub(super) struct PeerCounters {
    /// Frames that were none, or calls out of bounds.
    pub(super) malformed: AtomicU64,
}

impl Service for PeerService {
    fn answer(&self, from: &Peer, call: Call) -> Answer {
        let reply = match call {
            Call::Ping { ownership_status, .. } => {
                let (epochs, grant) = self.ownership_driver.pinged(from, ownership_status);
                Reply::Pong { clock: self.clock.system(), epochs, grant }
            }
            Call::Handoff(handoff) => Reply::Handoff(self.ownership_driver.answer(from, handoff)),
            Call::Digests(told) => return self.digests(from, told),
            Call::Refunded { token } => {
                self.decider.refunded(token);
                Reply::Done
            }
            Call::Check(check) => return self.check(from, &check),
            Call::Sync(sync) => self.synchroniser.answer(from, sync),
            Call::States(entries) => self.replicator.join(&from.id, entries),
            Call::Gossip(bytes) => {
                self.gossip.deliver(from.advertise, &bytes);
                Reply::Done
            }
        };
        Answer::Now(self.noted(from, reply))
    }

    fn ownership_status(&self, peer: &Peer) -> OwnershipStatus {
        self.ownership_driver.ownership_status(peer)
    }

    fn ponged(&self, from: &Peer, sent: Instant, epochs: Option<Epochs>, grant: Option<u64>) {
        self.ownership_driver.ponged(from, sent, epochs, grant);
    }

    fn malformed(&self, from: &NodeId) {
        self.counters.malformed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(peer = %from, "a peer sent something malformed");
    }
}

impl PeerService {
    /// Decides a check; where its rule asks for it, the verdicts wait for a replica.
    fn check(&self, from: &Peer, check: &Check) -> Answer {
        let sender = (&from.id, from.generation);
        let reply = self.noted(from, self.decider.decide_for_peer(sender, check));
        let Reply::Verdicts(verdicts) = &reply else { return Answer::Now(reply) };
        match self.decider.confirmation(check, verdicts) {
            Some(confirmed) => Answer::Later(Box::pin(confirmed)),
            None => Answer::Now(reply),
        }
    }

    /// Compares copies with their owner's digests, which takes a walk over the store.
    fn digests(&self, from: &Peer, told: Vec<Digest>) -> Answer {
        if !replicate::are_digests(&told) {
            return Answer::Now(self.noted(from, Reply::Malformed));
        }
        let (replicator, from) = (self.replicator.clone(), from.id.clone());
        Answer::Later(Box::pin(async move { replicator.digests(&from, told).await }))
    }

    fn noted(&self, from: &Peer, reply: Reply) -> Reply {
        if reply == Reply::Malformed {
            self.malformed(&from.id);
        }
        reply
    }
}

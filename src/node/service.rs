//! What this node does for its peers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use crate::cluster::gossip::Gossip;
use crate::cluster::identity::NodeId;
use crate::cluster::mesh::wire::{Call, Reply, STATE_ENTRIES_MAX, StateEntry};
use crate::cluster::mesh::{Peer, Service};
use crate::cluster::sync::Synchroniser;
use crate::cluster::tenure::{Driver, Epochs};
use crate::decide::Decider;
use crate::engine::State;
use crate::rules::quota::WINDOW_MAX;
use crate::seam::Clock;
use crate::store::Counted;
use crate::units::{Span, Timestamp};

/// Answers peers' calls; every arm is short and never waits.
pub(super) struct PeerService {
    pub(super) decider: Decider,
    pub(super) synchroniser: Synchroniser,
    pub(super) gossip: Gossip,
    pub(super) tenure: Driver,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) counters: Arc<PeerCounters>,
}

/// What peers sent that was not taken; read by the metrics.
#[derive(Debug, Default)]
pub(super) struct PeerCounters {
    /// Frames that were none, or calls out of bounds.
    pub(super) malformed: AtomicU64,
    /// States that were refused as implausible.
    pub(super) states_refused: AtomicU64,
}

/// How far ahead of ours a peer's clock may be.
const AHEAD_MAX: Span = Span::from_secs(5);

impl Service for PeerService {
    fn answer(&self, from: &Peer, call: Call) -> Reply {
        let reply = match call {
            Call::Ping { epochs, .. } => {
                let (epochs, grant) = self.tenure.pinged(from, epochs);
                Reply::Pong { clock: self.clock.system(), epochs, grant }
            }
            Call::Handoff(handoff) => Reply::Handoff(self.tenure.answer(from, handoff)),
            Call::Digests(_) => Reply::Differing(Vec::new()),
            Call::Refunded { place } => {
                self.decider.refunded(place);
                Reply::Done
            }
            Call::Check(check) => self.decider.decide_as_owner((&from.id, from.generation), &check),
            Call::Sync(sync) => self.synchroniser.answer(from, sync),
            Call::States(entries) => self.join(entries),
            Call::Gossip(bytes) => {
                self.gossip.deliver(from.advertise, &bytes);
                Reply::Done
            }
        };
        if reply == Reply::Malformed {
            self.malformed(&from.id);
        }
        reply
    }

    fn epochs(&self) -> Epochs {
        self.tenure.epochs()
    }

    fn ponged(&self, from: &Peer, sent: Instant, epochs: Option<Epochs>, grant: Option<u64>) {
        self.tenure.ponged(from, sent, epochs, grant);
    }

    fn malformed(&self, from: &NodeId) {
        self.counters.malformed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(peer = %from, "a peer sent something malformed");
    }
}

impl PeerService {
    /// Joins strict states of a peer: what replication and handoff ride on.
    fn join(&self, entries: Vec<StateEntry>) -> Reply {
        if entries.len() > STATE_ENTRIES_MAX {
            return Reply::Malformed;
        }
        let now = self.clock.now();
        for StateEntry { key, state, expires } in entries {
            if is_plausible(&state, expires, now) {
                self.decider.parts().store.merge(Counted { key, state, expires }, now);
            } else {
                self.counters.states_refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        Reply::Done
    }
}

/// Whether any honest node could hold this: a state that matters for longer than two of the longest
/// windows would refuse its key for years. Columns travel by synchronisation, which checks whose
/// they are.
fn is_plausible(state: &State, expires: Timestamp, now: Timestamp) -> bool {
    let last = now.plus(AHEAD_MAX).plus(WINDOW_MAX).plus(WINDOW_MAX);
    let matters_until = match state {
        State::Tat(tat) => tat.ceil(),
        State::Columns(_) => Timestamp::NEVER,
        _ => expires,
    };
    expires <= last && matters_until <= expires
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Columns, decide};
    use crate::rules::quota::{Algorithm, Quota};
    use crate::units::Hits;

    #[test]
    fn only_states_that_an_honest_node_could_hold_are_joined() {
        let now = Timestamp::from_secs(1_700_000_000);
        let quota = Quota::simple(Algorithm::Gcra, 10, Span::from_secs(60)).expect("valid");
        let mut bucket = State::Absent;
        decide(&mut bucket, &quota, Hits::ONE, now);
        let honest = bucket.absent_at(&quota);
        assert!(is_plausible(&bucket, honest, now));
        assert!(!is_plausible(&bucket, now, now), "it would be dropped while it matters");
        assert!(!is_plausible(&bucket, Timestamp::NEVER, now), "it would never be dropped");
        let columns = State::Columns(Box::new(Columns::new(&quota)));
        assert!(!is_plausible(&columns, honest, now), "columns have their own way");
    }
}

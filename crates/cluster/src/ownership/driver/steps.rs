//! Carrying out what the machines ask for: messages, copies, flushes.

use std::time::Duration;

use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::KeyHash;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::{Epoch, HandoffReply, Ring, Step};

use super::counters::count;
use super::{Driver, Machines, RINGS};
use crate::mesh::wire::{Call, Handoff, HandoffStep, Reply};
use crate::mesh::{Mesh, StreamClass};
use crate::replication::Replicator;

/// How long one message of a handover may take; then it is sent again.
const MESSAGE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a range may stay frozen for its last changes; then it thaws and begins anew.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

impl Driver {
    /// What is to be done for each peer that nothing is done for yet.
    pub(super) fn take_steps(&self, machines: &mut Machines) -> Vec<(Scope, NodeId, Epoch, Step)> {
        let mut due = Vec::new();
        if !machines.is_open {
            return due;
        }
        let now = self.shared.ownership.monotonic();
        for scope in RINGS {
            let is_region = scope == Scope::Region;
            let ring = machines.ring(scope);
            let peers: Vec<NodeId> = ring.members().entries.keys().cloned().collect();
            for peer in peers {
                if machines.busy.contains(&(is_region, peer.clone())) {
                    continue;
                }
                let ring = machines.ring_mut(scope);
                if let Some(step) = ring.next(&peer, now) {
                    let epoch = ring.epoch();
                    machines.busy.insert((is_region, peer.clone()));
                    due.push((scope, peer, epoch, step));
                }
            }
        }
        // A step may have frozen something.
        self.publish(machines);
        due
    }

    /// Carries out one step and tells the machine what came of it. Returns whether it came to
    /// something.
    pub(super) async fn carry_out(
        &self,
        scope: Scope,
        peer: &NodeId,
        epoch: Epoch,
        step: Step,
        mesh: &Mesh,
        replicator: &Replicator,
    ) -> bool {
        let send = async |epoch, step| {
            let call = Call::Handoff(Handoff { scope, epoch, step });
            match mesh.call(peer, StreamClass::Bulk, call, MESSAGE_TIMEOUT).await {
                Ok(Reply::Handoff(reply)) => Some(reply),
                Ok(_) | Err(_) => None,
            }
        };
        match step {
            Step::Offer(epoch) => {
                let Some(reply) = send(epoch, HandoffStep::Offer).await else { return false };
                self.on_ring(scope, |ring| ring.offer_answered(peer, epoch, reply));
                reply == HandoffReply::Ready
            }
            Step::Copy { follows, copies } => {
                let following = (scope == Scope::Region, peer.clone());
                self.shared.machines.lock().following.insert(following);
                replicator.subscribe(scope, peer.clone(), follows.clone());
                let tokens = follows.with(&copies);
                let wants = |key: KeyHash| {
                    key.is_owned() && key.scope() == scope && tokens.contains(key.token)
                };
                let copied =
                    if tokens.is_empty() { Ok(0) } else { replicator.copy(peer, wants).await };
                let Ok(copied) = copied else { return false };
                count(&self.shared.counters.copied, copied);
                self.on_ring(scope, |ring| ring.copied(peer, epoch));
                true
            }
            Step::Flush => {
                // Every decision that was permitted before the freeze is in line behind this.
                self.shared.store.barrier();
                let flushed = tokio::time::timeout(FLUSH_TIMEOUT, replicator.flush(peer)).await;
                let is_done = matches!(flushed, Ok(Ok(())));
                self.on_ring(scope, |ring| ring.flushed(peer, epoch, is_done));
                is_done
            }
            Step::Release { epoch, number, ranges } => {
                let count_of = ranges.iter().len() as u64;
                let step = HandoffStep::Release { number, ranges };
                let Some(reply) = send(epoch, step).await else { return false };
                self.on_ring(scope, |ring| ring.release_answered(peer, number, reply));
                if reply == HandoffReply::Taken {
                    replicator.unsubscribe(scope, peer);
                    let following = (scope == Scope::Region, peer.clone());
                    self.shared.machines.lock().following.remove(&following);
                    count(&self.shared.counters.handed_over, count_of);
                }
                reply == HandoffReply::Taken
            }
        }
    }

    fn on_ring(&self, scope: Scope, tell: impl FnOnce(&mut Ring)) {
        let machines = &mut *self.shared.machines.lock();
        tell(machines.ring_mut(scope));
        self.publish(machines);
        self.shared.wake.notify_one();
    }
}

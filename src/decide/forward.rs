//! Forwarding a check to the node that owns its key, until one decides or the deadline passes.
//!
//! A check is counted once, whatever happens to the messages that carry it:
//!
//! - *Refused* (`NotOwner`) or *not sent* (no connection, an unresponsive peer, a full queue):
//!   nothing was counted, so another node is tried. [`RoutingAttempts`] chooses it.
//! - *Lost* (the connection broke before the reply): the peer may have counted the check. It is
//!   sent again under the same id to the same incarnation of the same node, which recognises it
//!   (`dedup_cache.rs`), and to no other node.
//! - *Too late*: the rule's `on_unavailable` decides. The owner may still count the check, once.

use std::sync::atomic::Ordering;
use std::time::Duration;

use backon::BackoffBuilder;
use tidegate_cluster::backoff::exponential;
use tidegate_cluster::mesh::wire::{Call, Check, Reply};
use tidegate_cluster::mesh::{CallError, Mesh, Peer, StreamClass, running};
use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::Verdicts;
use tidegate_limiter::units::Hits;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::route::Topology;
use tokio::time::Instant;

use super::check::VerdictSource;
use super::decider::{Decided, Decider, NoVerdict, Shared};
use super::plan::PlannedCheck;
use super::routing_attempts::{ATTEMPTS_MAX, Next, RoutingAttempts};

/// The result of one attempt at one peer.
enum Attempt {
    Verdicts(Verdicts),
    /// The peer does not own the key; it handed the key to this node if it ever did.
    NotOwner(Option<NodeId>),
    /// Not sent: the connection is gone.
    NotConnected,
    /// Not sent: the peer is connected but unresponsive, or its queue is full.
    Overloaded,
    /// Sent, and the connection broke before the reply.
    Lost,
    /// No further attempt helps.
    Failed(NoVerdict),
}

/// The first pause before a broken connection is tried again, doubled up to [`RECONNECT_MAX`].
const RECONNECT_MIN: Duration = Duration::from_millis(1);
const RECONNECT_MAX: Duration = Duration::from_millis(32);

impl Decider {
    /// Has `check` decided by the owner of its key, after this node found that it is not the owner.
    /// It may become the owner meanwhile and then decides itself. Cancel-safe, though the owner may
    /// still count a check whose caller has gone.
    pub(super) async fn forward(
        &self,
        check: &PlannedCheck,
        hits: Hits,
    ) -> Result<Decided, NoVerdict> {
        let Shared { node, peers, counters, next_check_id, .. } = &*self.shared;
        let mesh = &peers.as_ref().ok_or(NoVerdict::Unavailable)?.mesh;
        let token = check.key().ok_or(NoVerdict::Unavailable)?.token;
        let PlannedCheck { rule, counters: limits, .. } = check;
        let scope = rule.scope;
        let id = next_check_id.fetch_add(1, Ordering::Relaxed);
        let patience = self.deadline(scope);
        let expires = running(node.clock.monotonic().plus(patience.into()));
        let message = || Check {
            id,
            scope,
            counters: limits.clone(),
            hits,
            durability: rule.durability,
            deadline: expires,
        };
        let deadline = Instant::now() + patience;
        let handed_to = || node.ownership.transferred_to(token);

        let mut attempts = RoutingAttempts::new(scope, token);
        attempts.not_owned_here(&node.topology.load(), handed_to());
        loop {
            let topology = node.topology.load_full();
            let has_leases = || self.has_leases(scope, token, &topology);
            let target = match attempts.next(&topology, has_leases) {
                Next::Try(target) => target,
                Next::Wait(pause) => {
                    wait(pause, deadline).await?;
                    continue;
                }
                Next::GiveUp => return Err(NoVerdict::Unavailable),
            };
            if attempts.count > 1 {
                counters.retried.fetch_add(1, Ordering::Relaxed);
            }
            if target == topology.me {
                let decided = self.decide_if_owned(scope, limits, hits, node.clock.now());
                let Some(verdicts) = decided else {
                    attempts.not_owner(handed_to());
                    continue;
                };
                self.announce_refund(scope, limits, hits);
                let left = deadline.saturating_duration_since(Instant::now());
                let needs_replica = self.needs_replica(rule.durability, hits, &verdicts);
                if needs_replica && !self.is_confirmed(limits, hits, left).await {
                    return Err(NoVerdict::Unconfirmed);
                }
                return Ok((verdicts, VerdictSource::Local));
            }
            let Some(peer) = mesh.peer(&target) else { continue };
            match send(mesh, &peer, message(), deadline).await {
                Attempt::Verdicts(verdicts) => return Ok((verdicts, VerdictSource::Owner)),
                Attempt::NotOwner(holder) => attempts.not_owner(holder),
                Attempt::NotConnected => {}
                Attempt::Overloaded => attempts.overloaded(),
                Attempt::Lost => {
                    // Boxed: its state is large, and connections rarely break.
                    let resent = Box::pin(self.resend(mesh, &peer, message, deadline));
                    let verdicts = resent.await?;
                    return Ok((verdicts, VerdictSource::Owner));
                }
                Attempt::Failed(reason) => return Err(reason),
            }
        }
    }

    /// Whether this node has every lease that it needs to decide the key at `token`, or to learn
    /// who does: its own, and that of its region for a global key at home in it.
    fn has_leases(&self, scope: Scope, token: u64, topology: &Topology) -> bool {
        let ownership = &self.shared.node.ownership;
        let is_of_region = scope == Scope::Global && topology.homes().is_here(token);
        ownership.has_lease() && (!is_of_region || ownership.has_region_lease())
    }

    /// Sends a check again to the incarnation that `broken` was connected to, as often as the
    /// connection comes back in time.
    async fn resend(
        &self,
        mesh: &Mesh,
        broken: &Peer,
        message: impl Fn() -> Check,
        deadline: Instant,
    ) -> Result<Verdicts, NoVerdict> {
        let pauses = exponential(RECONNECT_MIN, RECONNECT_MAX).build();
        for pause in pauses.take(ATTEMPTS_MAX as usize) {
            wait(pause, deadline).await?;
            let Some(peer) = mesh.peer(&broken.id) else { continue };
            if peer.generation != broken.generation {
                // The count of the old incarnation is lost, or survives at its replicas: another
                // attempt might count a second time.
                return Err(NoVerdict::Unavailable);
            }
            self.shared.counters.retried.fetch_add(1, Ordering::Relaxed);
            match send(mesh, &peer, message(), deadline).await {
                Attempt::Verdicts(verdicts) => return Ok(verdicts),
                Attempt::NotConnected | Attempt::Overloaded | Attempt::Lost => {}
                Attempt::Failed(reason) => return Err(reason),
                // It did not decide this time; the first time it may have.
                Attempt::NotOwner(_) => return Err(NoVerdict::Unavailable),
            }
        }
        Err(NoVerdict::Unavailable)
    }
}

/// One attempt over one connection, within the time that is left.
async fn send(mesh: &Mesh, peer: &Peer, check: Check, deadline: Instant) -> Attempt {
    let left = deadline.saturating_duration_since(Instant::now());
    let limits = check.counters.len();
    match mesh.call_peer(peer, StreamClass::Checks, Call::Check(check), left).await {
        Ok(Reply::Verdicts(verdicts)) if verdicts.len() == limits => Attempt::Verdicts(verdicts),
        Ok(Reply::NotOwner { holder, .. }) => Attempt::NotOwner(holder),
        Ok(Reply::Unconfirmed) => Attempt::Failed(NoVerdict::Unconfirmed),
        Ok(Reply::Expired) | Err(CallError::Timeout | CallError::Declined) => {
            Attempt::Failed(NoVerdict::Unavailable)
        }
        Ok(reply) => {
            tracing::warn!(
                owner = %peer.id,
                ?reply,
                "unexpected reply to a forwarded check; on_unavailable decides"
            );
            Attempt::Failed(NoVerdict::Unavailable)
        }
        Err(CallError::NotConnected) => Attempt::NotConnected,
        Err(CallError::Unreachable | CallError::Busy) => Attempt::Overloaded,
        Err(CallError::Closed) => Attempt::Lost,
    }
}

/// Waits for `pause`; fails at once when the deadline passes before.
async fn wait(pause: Duration, deadline: Instant) -> Result<(), NoVerdict> {
    if Instant::now() + pause >= deadline {
        return Err(NoVerdict::Unavailable);
    }
    tokio::time::sleep(pause).await;
    Ok(())
}

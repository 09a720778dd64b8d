//! Asking whoever holds a key, until one decides or the deadline passes.
//!
//! A check is counted once, whatever happens to the messages about it:
//!
//! - *Refused* (`NotOwner`) or *not sent* (no connection, a silent peer, a full lane): nothing was
//!   counted, so another node may be asked. [`RoutingAttempts`] says which.
//! - *Unknown* (the connection broke while the check was under way): only the same start of the
//!   same node may be asked again, under the same id; it knows whether it has counted the check.
//!   Nobody else is asked any more.
//! - *Too late*: the policy answers. The owner may have counted the check or still do so, once.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_cluster::mesh::wire::{Call, Check, Reply};
use tidegate_cluster::mesh::{CallError, Peer, StreamClass};
use tidegate_limiter::store::Verdicts;
use tidegate_ownership::identity::NodeId;
use tokio::time::Instant;

use super::parts::Remote;
use super::routing_attempts::{ATTEMPTS_MAX, Next, RoutingAttempts};
use super::{Decider, VerdictSource};

/// Why nobody gave a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoVerdict {
    /// Nobody who could be asked decides the key, or none did in time.
    Unavailable,
    /// It was decided and counted, but no replica confirmed that in time.
    Unconfirmed,
}

/// What one ask of a peer came to.
enum Heard {
    /// It decided.
    Verdicts(Verdicts),
    /// It does not hold the key, and handed it to this node if it did.
    NotOwner(Option<NodeId>),
    /// It was sent nothing, because the connection is gone.
    Absent,
    /// It was sent nothing, because it is silent or has too much to do.
    Deaf,
    /// It was asked, and nobody knows what became of it.
    Unknown,
    /// There will be no verdict.
    Failed(NoVerdict),
}

/// The first wait for a broken connection to come back, doubled up to [`RECONNECT_MAX`].
const RECONNECT_MIN: Duration = Duration::from_millis(1);
const RECONNECT_MAX: Duration = Duration::from_millis(32);

impl Decider {
    /// Has `check` decided by whoever holds its key; this node found a moment ago that it does not.
    /// Says who decided. Cancel-safe, though the owner may count an ask whose caller has gone.
    pub(super) async fn forward_check(
        &self,
        check: &Check,
    ) -> Result<(Verdicts, VerdictSource), NoVerdict> {
        let parts = self.parts();
        let remote = parts.remote.as_ref().ok_or(NoVerdict::Unavailable)?;
        let token = check.counters.first().ok_or(NoVerdict::Unavailable)?.key.token;
        let deadline = Instant::now() + remote.deadline(check.scope);
        let handed_to = || parts.ownership.transferred_to(check.scope, token);

        let mut routing_attempts = RoutingAttempts::new(check.scope, token);
        routing_attempts.not_here(&parts.topology.load(), handed_to());
        loop {
            let topology = parts.topology.load_full();
            let to = match routing_attempts.next(&topology, parts.ownership.has_lease(check.scope))
            {
                Next::CheckRequest(to) => to,
                Next::Wait(pause) => {
                    wait(pause, deadline).await?;
                    continue;
                }
                Next::Nobody => return Err(NoVerdict::Unavailable),
            };
            if routing_attempts.attempts() > 1 {
                self.counters().retried.fetch_add(1, Ordering::Relaxed);
            }
            if to == topology.me {
                match self.decide_if_held(check, parts.clock.now()) {
                    Some(verdicts) => return self.decided_here(check, verdicts, deadline).await,
                    None => routing_attempts.refused(handed_to()),
                }
                continue;
            }
            let Some(peer) = remote.mesh.peer(&to) else { continue };
            match ask(remote, &peer, check, deadline).await {
                Heard::Verdicts(verdicts) => return Ok((verdicts, VerdictSource::Owner)),
                Heard::NotOwner(holder) => routing_attempts.refused(holder),
                Heard::Absent => {}
                Heard::Deaf => routing_attempts.deaf(),
                Heard::Unknown => {
                    let verdicts = self.ask_again(remote, &peer, check, deadline).await?;
                    return Ok((verdicts, VerdictSource::Owner));
                }
                Heard::Failed(why) => return Err(why),
            }
        }
    }

    async fn decided_here(
        &self,
        check: &Check,
        verdicts: Verdicts,
        deadline: Instant,
    ) -> Result<(Verdicts, VerdictSource), NoVerdict> {
        self.tell_refund(check);
        let left = deadline.saturating_duration_since(Instant::now());
        let is_confirmed = self.is_confirmed(check, &verdicts, left).await;
        is_confirmed.then_some((verdicts, VerdictSource::Local)).ok_or(NoVerdict::Unconfirmed)
    }

    /// Asks the same start of the same node again, as often as its connection comes back in time.
    async fn ask_again(
        &self,
        remote: &Remote,
        broken: &Peer,
        check: &Check,
        deadline: Instant,
    ) -> Result<Verdicts, NoVerdict> {
        let mut pause = RECONNECT_MIN;
        for _ in 0..ATTEMPTS_MAX {
            wait(pause, deadline).await?;
            pause = (pause * 2).min(RECONNECT_MAX);
            let Some(peer) = remote.mesh.peer(&broken.id) else { continue };
            if peer.generation != broken.generation {
                // What the old start counted died with it, or lives on at its replicas: another
                // ask might count a second time.
                return Err(NoVerdict::Unavailable);
            }
            self.counters().retried.fetch_add(1, Ordering::Relaxed);
            match ask(remote, &peer, check, deadline).await {
                Heard::Verdicts(verdicts) => return Ok(verdicts),
                Heard::Absent | Heard::Deaf | Heard::Unknown => {}
                Heard::Failed(why) => return Err(why),
                // It did not decide this time; the first time it may have.
                Heard::NotOwner(_) => return Err(NoVerdict::Unavailable),
            }
        }
        Err(NoVerdict::Unavailable)
    }
}

/// Asks over one connection, within the time that is left.
async fn ask(remote: &Remote, peer: &Peer, check: &Check, deadline: Instant) -> Heard {
    let left = deadline.saturating_duration_since(Instant::now());
    let call = Call::Check(check.clone());
    match remote.mesh.call_peer(peer, StreamClass::Checks, call, left).await {
        Ok(Reply::Verdicts(verdicts)) if verdicts.len() == check.counters.len() => {
            Heard::Verdicts(verdicts)
        }
        Ok(Reply::NotOwner { holder, .. }) => Heard::NotOwner(holder),
        Ok(Reply::Unconfirmed) => Heard::Failed(NoVerdict::Unconfirmed),
        Ok(other) => {
            tracing::warn!(owner = %peer.id, ?other, "an owner answered a check with something else");
            Heard::Failed(NoVerdict::Unavailable)
        }
        Err(CallError::NotConnected) => Heard::Absent,
        Err(CallError::Unreachable | CallError::Busy) => Heard::Deaf,
        Err(CallError::Closed) => Heard::Unknown,
        Err(CallError::Timeout | CallError::Declined) => Heard::Failed(NoVerdict::Unavailable),
    }
}

/// Waits `pause`; there will be no verdict if the deadline is not after it.
async fn wait(pause: Duration, deadline: Instant) -> Result<(), NoVerdict> {
    if Instant::now() + pause >= deadline {
        return Err(NoVerdict::Unavailable);
    }
    tokio::time::sleep(pause).await;
    Ok(())
}

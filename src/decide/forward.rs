//! Forwarding a check to the node that owns its key, until one decides or the deadline passes.
//!
//! A check is counted once, whatever happens to the messages that carry it:
//!
//! - *Refused* (`NotOwner`) or *not sent* (no connection, an unresponsive peer, a full queue):
//!   nothing was counted, so another node is tried (`owner_search.rs`).
//! - *Lost* (the connection broke before the reply): the peer may have counted the check. It is
//!   sent again under the same id to the same incarnation of the same node, which recognises it
//!   (`dedup_cache.rs`), and to no other node.
//! - *Too late*: the rule's `on_unavailable` decides. The owner may still count the check, once.
//!
//! Several checks of one key may travel as one call (`combiner.rs`). All of the above holds for the
//! call: the owner decides each of its checks by itself, and all of them once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use backon::BackoffBuilder;
use futures_util::future::join_all;
use scopeguard::ScopeGuard;
use smallvec::SmallVec;
use tidegate_cluster::backoff::exponential;
use tidegate_cluster::mesh::codec::{COMBINED_CHECKS, FIRST_HIT_WINDOWS, TRACED_CHECKS};
use tidegate_cluster::mesh::wire::{
    Call, Check, CombinedCheck, CombinedVerdicts, Grant, Reply, TraceContext, TracedCheck,
};
use tidegate_cluster::mesh::{CallError, Mesh, Peer, StreamClass, running};
use tidegate_cluster::replication;
use tidegate_limiter::quota::Algorithm;
use tidegate_limiter::store::{Counter, KeyHash, Verdicts};
use tidegate_limiter::units::{Hits, Span};
use tidegate_ownership::identity::NodeId;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::check::VerdictSource;
use super::combiner::{Joined, Leaving, Sending, WAIT_DIVISOR, Waiting};
use super::decider::{Decider, Shared};
use super::grant_ledger::Holder;
use super::held_grants::Unspent;
use super::leased::{ask_of, granted_by};
use super::limits::Limits;
use super::outcome::{Forwarded, NoVerdict};
use super::owner_search::{OwnerSearch, Target};
use super::routing_attempts::ATTEMPTS_MAX;
use super::traced;
use crate::traces;

/// What became of a call with one or more checks.
pub(super) struct OwnerVerdicts {
    /// Those of each check in turn, one per counter.
    verdicts: Verdicts,
    source: VerdictSource,
    /// Whether a replica has what was counted, or none needs to.
    is_confirmed: bool,
    /// A grant, by whom, and under which number.
    grant: Option<(Arc<Peer>, u64, Grant)>,
    may_end_early: bool,
}

/// Why a call has no verdicts.
enum NoVerdicts {
    /// For any of its checks.
    None(NoVerdict),
    /// Nothing was counted: the owner speaks a version without combined checks.
    Separate,
}

/// The result of one attempt at one peer.
enum Attempt {
    Verdicts(CombinedVerdicts),
    /// The peer does not own the key; it handed the key to this node if it ever did.
    NotOwner(Option<NodeId>),
    /// Not sent: the connection is gone.
    NotConnected,
    /// Not sent: the peer is connected but unresponsive, or its queue is full.
    Overloaded,
    /// Sent, and the connection broke before the reply.
    Lost,
    /// Not sent: the peer knows no combined checks.
    Separate,
    /// No further attempt helps.
    Failed,
}

/// The checks of one call.
struct Batch<'a> {
    id: u64,
    limits: &'a Limits,
    /// Of each check; at least one.
    hits: &'a [Hits],
    /// Of a leased rule: the hits that are wanted and held.
    ask: Option<(u32, u32)>,
    /// Of the checks that are recorded.
    spans: &'a [traces::Span],
    deadline: Instant,
    /// The same by the clock that the owner compares.
    expires: Span,
}

/// The first pause before a broken connection is tried again, doubled up to [`RECONNECT_MAX`].
pub(super) const RECONNECT_MIN: Duration = Duration::from_millis(1);
pub(super) const RECONNECT_MAX: Duration = Duration::from_millis(32);

impl Decider {
    /// Has a check decided by the owner of its key, after this node found that it is not the owner.
    /// It leaves together with other checks of the key if one is on its way (`combiner.rs`).
    /// Cancel-safe, though the owner may still count a check whose caller has gone.
    pub(super) async fn forward(
        &self,
        limits: &Limits,
        sending: Sending,
        patience: Duration,
    ) -> Result<Forwarded, NoVerdict> {
        let key = limits.key().ok_or(NoVerdict::Unavailable)?;
        let deadline = Instant::now() + patience;
        let trace = self.shared.options.traces.current().map(|span| span.context().clone());
        let trace = trace.as_ref();
        let reply = match self.shared.combiner.join(limits, sending, deadline, trace) {
            Joined::First { is_hot } => {
                let ends = scopeguard::guard((), |()| self.call_ended(key));
                let asks = sending.may_ask() && self.asks_alone(limits);
                let mut checks = Vec::new();
                if is_hot {
                    tokio::task::yield_now().await;
                    checks = self.shared.combiner.others(key);
                }
                if checks.is_empty() && !asks {
                    return self.send_one(limits, sending.hits(), deadline, trace).await;
                }
                let (reply, receiver) = oneshot::channel();
                checks.insert(0, Waiting { sending, deadline, trace: trace.cloned(), reply });
                ScopeGuard::into_inner(ends);
                self.leave(key, Leaving { limits: limits.clone(), checks });
                receiver
            }
            Joined::Apart => {
                return self.send_one(limits, sending.hits(), deadline, trace).await;
            }
            // The call on its way asks for nothing, and this check shows that the key is in use.
            Joined::Waits { reply, is_first: true }
                if sending.may_ask() && self.may_ask_now(limits) =>
            {
                self.hurry(key);
                reply
            }
            Joined::Waits { mut reply, is_first: true } => {
                // Also when the caller of this check goes away: others may wait with it.
                let hurries = scopeguard::guard((), |()| self.hurry(key));
                if let Ok(decided) = timeout(patience / WAIT_DIVISOR, &mut reply).await {
                    ScopeGuard::into_inner(hurries);
                    return decided.map_err(|_| NoVerdict::Unavailable)?;
                }
                drop(hurries);
                reply
            }
            Joined::Waits { reply, is_first: false } => reply,
            Joined::Full(reply, leaving) => {
                self.leave(key, leaving);
                reply
            }
        };
        // Its call ends at the deadline of its first check.
        reply.await.map_err(|_| NoVerdict::Unavailable)?
    }

    /// Asks the owner for more hits, in the background.
    pub(super) fn ask_for_more(&self, limits: Limits) {
        let Ok(runtime) = Handle::try_current() else { return };
        let decider = self.clone();
        let patience = self.patience(&limits);
        runtime.spawn(async move { decider.forward(&limits, Sending::Ask, patience).await });
    }

    /// Sends checks that have waited, in a task of their own: none of their callers may end it, or
    /// lose what it brings.
    fn leave(&self, key: KeyHash, leaving: Leaving) {
        // There is none while the process ends; then the callers are told that there is no owner.
        let Ok(runtime) = Handle::try_current() else { return };
        let decider = self.clone();
        runtime.spawn(async move {
            scopeguard::defer!(decider.call_ended(key));
            decider.send_waiting(leaving).await;
        });
    }

    /// A call has ended, with or without a reply.
    fn call_ended(&self, key: KeyHash) {
        if let Some(leaving) = self.shared.combiner.ended(key) {
            self.leave(key, leaving);
        }
    }

    /// What waits leaves, although the call before it has not ended.
    fn hurry(&self, key: KeyHash) {
        if let Some(leaving) = self.shared.combiner.hurry(key) {
            self.leave(key, leaving);
        }
    }

    async fn send_waiting(&self, Leaving { limits, mut checks }: Leaving) {
        checks.retain(|check| !check.reply.is_closed());
        let Some(deadline) = checks.iter().map(|check| check.deadline).min() else { return };
        let hits: SmallVec<[Hits; 16]> = checks.iter().map(|check| check.sending.hits()).collect();
        if hits.len() > 1 {
            self.shared.counters.combined.fetch_add(hits.len() as u64, Ordering::Relaxed);
        }
        let traces: SmallVec<[_; 1]> =
            checks.iter().filter_map(|check| check.trace.clone()).collect();
        let asks = limits.leased.is_some() && checks.iter().any(|check| check.sending.may_ask());
        let sent = self.send(&limits, &hits, deadline, asks, &traces).await;
        if let Err(NoVerdicts::Separate) = sent {
            let one_by_one =
                checks.into_iter().map(|Waiting { sending, deadline, trace, reply }| {
                    let (limits, hits) = (&limits, sending.hits());
                    async move {
                        reply.send(self.send_one(limits, hits, deadline, trace.as_ref()).await)
                    }
                });
            join_all(one_by_one).await;
            return;
        }
        for (at, check) in checks.into_iter().enumerate() {
            // It fails when the caller has gone.
            let _ = check.reply.send(of_check(&limits, check.sending.hits(), at, &sent));
        }
    }

    async fn send_one(
        &self,
        limits: &Limits,
        hits: Hits,
        deadline: Instant,
        trace: Option<&Arc<TraceContext>>,
    ) -> Result<Forwarded, NoVerdict> {
        let traces = trace.map(std::slice::from_ref).unwrap_or_default();
        of_check(limits, hits, 0, &self.send(limits, &[hits], deadline, false, traces).await)
    }

    /// Has a check for each of `hits` decided by the owner, and asks it for more if `asks`. This
    /// node may become the owner meanwhile and then decides itself.
    async fn send(
        &self,
        limits: &Limits,
        hits: &[Hits],
        deadline: Instant,
        asks: bool,
        traces: &[Arc<TraceContext>],
    ) -> Result<OwnerVerdicts, NoVerdicts> {
        let asked = self.shared.node.clock.monotonic();
        let ask = self.ask(limits, hits, asks, asked);
        let spans = traced::forwards(&self.shared.options.traces, traces);
        let sent = self.route(limits, hits, deadline, ask, &spans).await;
        traced::forwarded(spans, hits.len(), sent.is_ok());
        if is_wanted(ask) {
            let reply = sent.as_ref().ok();
            let counters = limits.counters.len().max(1);
            let last = reply.and_then(|reply| reply.verdicts.chunks_exact(counters).last());
            let grant = reply.and_then(|reply| reply.grant.as_ref());
            let grant = grant.map(|(peer, id, grant)| granted_by(peer, *id, *grant, asked));
            self.asked(limits, last, grant);
        }
        sent
    }

    async fn route(
        &self,
        limits: &Limits,
        hits: &[Hits],
        deadline: Instant,
        ask: Option<(u32, u32)>,
        spans: &[traces::Span],
    ) -> Result<OwnerVerdicts, NoVerdicts> {
        let Shared { node, next_check_id, .. } = &*self.shared;
        let search = limits.key().and_then(|KeyHash { token, .. }| {
            OwnerSearch::new(self, limits.scope, token, deadline)
        });
        let Some(mut search) = search else {
            return Err(NoVerdicts::None(NoVerdict::Unavailable));
        };
        let batch = Batch {
            id: next_check_id.fetch_add(1, Ordering::Relaxed),
            limits,
            hits,
            ask,
            spans,
            deadline,
            expires: running(node.clock.monotonic().plus(search.left().into())),
        };
        loop {
            let peer = match search.next().await.map_err(NoVerdicts::None)? {
                Target::Peer(peer) => peer,
                Target::Here => {
                    traced::asks(spans, node.incarnation.node());
                    let now = node.clock.now();
                    let owner_term =
                        self.owner_term(limits.durability, &limits.counters, limits.scope);
                    let Some(verdicts) = self.decide_each_if_owned(limits, hits, now) else {
                        search.not_owned_here();
                        continue;
                    };
                    let is_confirmed = match self.awaiting_replica(limits, hits, &verdicts) {
                        Some(hits) => {
                            let decided = (&limits.counters[..], limits.scope, owner_term);
                            self.is_confirmed(decided, hits, search.left()).await
                        }
                        None => true,
                    };
                    let (grant, may_end_early) = (None, false);
                    let reply = CombinedVerdicts { verdicts, is_confirmed, grant, may_end_early };
                    return Ok(OwnerVerdicts::new(reply, VerdictSource::Local, None));
                }
            };
            let source = VerdictSource::Owner;
            match batch.send(search.mesh, &peer).await {
                Attempt::Verdicts(reply) => {
                    return Ok(OwnerVerdicts::new(reply, source, Some((&peer, batch.id))));
                }
                Attempt::NotOwner(holder) => search.not_owner(holder),
                Attempt::NotConnected => {}
                Attempt::Overloaded => search.overloaded(),
                Attempt::Lost => {
                    // Boxed: its state is large, and connections rarely break.
                    let resent = Box::pin(self.resend(&search, &peer, &batch)).await;
                    self.give_lost_back(&batch, &peer);
                    let reply = resent.map_err(NoVerdicts::None)?;
                    return Ok(OwnerVerdicts::new(reply, source, None));
                }
                Attempt::Separate => return Err(NoVerdicts::Separate),
                Attempt::Failed => {
                    self.give_lost_back(&batch, &peer);
                    return Err(NoVerdicts::None(NoVerdict::Unavailable));
                }
            }
        }
    }

    /// What a call without a reply may have brought is not known here, and not spent.
    fn give_lost_back(&self, batch: &Batch<'_>, peer: &Peer) {
        if is_wanted(batch.ask) && peer.version >= COMBINED_CHECKS {
            let owner = Holder { node: peer.id.clone(), generation: peer.generation };
            let (limits, id) = (batch.limits.clone(), batch.id);
            self.give_back(Unspent::of_grant(limits, owner, id, u32::MAX));
        }
    }

    /// Sends a call again to the incarnation that `broken` was connected to, as often as the
    /// connection comes back in time.
    async fn resend(
        &self,
        search: &OwnerSearch<'_>,
        broken: &Peer,
        batch: &Batch<'_>,
    ) -> Result<CombinedVerdicts, NoVerdict> {
        let pauses = exponential(RECONNECT_MIN, RECONNECT_MAX).build();
        for pause in pauses.take(ATTEMPTS_MAX as usize) {
            search.wait(pause).await?;
            let Some(peer) = search.reconnected(broken).await else { continue };
            if peer.generation != broken.generation {
                // The count of the old incarnation is lost, or survives at its replicas: another
                // attempt might count a second time.
                return Err(NoVerdict::Unavailable);
            }
            self.shared.counters.retried.fetch_add(1, Ordering::Relaxed);
            match batch.send(search.mesh, &peer).await {
                Attempt::Verdicts(reply) => return Ok(reply),
                Attempt::NotConnected | Attempt::Overloaded | Attempt::Lost => {}
                // It did not decide this time; the first time it may have. One incarnation speaks
                // one version.
                Attempt::Failed | Attempt::NotOwner(_) | Attempt::Separate => {
                    return Err(NoVerdict::Unavailable);
                }
            }
        }
        Err(NoVerdict::Unavailable)
    }
}

impl OwnerVerdicts {
    /// `from` is who may have granted something in its reply, and under which number.
    fn new(
        reply: CombinedVerdicts,
        source: VerdictSource,
        from: Option<(&Arc<Peer>, u64)>,
    ) -> Self {
        let CombinedVerdicts { verdicts, is_confirmed, grant, may_end_early } = reply;
        let grant = from.zip(grant).map(|((peer, id), grant)| (peer.clone(), id, grant));
        Self { verdicts, source, is_confirmed, grant, may_end_early }
    }
}

impl Batch<'_> {
    /// One attempt over one connection, within the time that is left.
    async fn send(&self, mesh: &Mesh, peer: &Peer) -> Attempt {
        let Some((&hits, further)) = self.hits.split_first() else { return Attempt::Failed };
        if !can_decide(peer.version, &self.limits.counters) {
            return Attempt::Failed;
        }
        let first = Check {
            id: self.id,
            scope: self.limits.scope,
            counters: self.limits.counters.clone(),
            hits,
            durability: self.limits.durability,
            deadline: self.expires,
        };
        let is_combined = peer.version >= COMBINED_CHECKS;
        let ask = self
            .ask
            .filter(|_| is_combined)
            .map(|ask| ask_of(mesh.region(), peer, self.limits, ask));
        traced::asks(self.spans, &peer.id);
        let call = if !self.spans.is_empty() && peer.version >= TRACED_CHECKS {
            let check = CombinedCheck { first, further: further.into(), ask };
            let traces = traced::contexts(self.spans);
            Call::TracedCheck(Box::new(TracedCheck { check, traces }))
        } else if further.is_empty() && ask.is_none() {
            Call::Check(first)
        } else if is_combined {
            Call::CombinedCheck(CombinedCheck { first, further: further.into(), ask })
        } else {
            return Attempt::Separate;
        };
        let single = |verdicts, is_confirmed| {
            let (grant, may_end_early) = (None, false);
            Attempt::Verdicts(CombinedVerdicts { verdicts, is_confirmed, grant, may_end_early })
        };
        let left = self.deadline.saturating_duration_since(Instant::now());
        let expected = self.hits.len() * self.limits.counters.len();
        match mesh.call_peer(peer, StreamClass::Checks, call, left).await {
            Ok(Reply::Verdicts(verdicts)) if verdicts.len() == expected => single(verdicts, true),
            Ok(Reply::CombinedVerdicts(reply)) if reply.verdicts.len() == expected => {
                Attempt::Verdicts(reply)
            }
            // The owner of a single check keeps its verdicts when no replica confirms them.
            Ok(Reply::Unconfirmed) => single(Verdicts::new(), false),
            Ok(Reply::NotOwner { holder, .. }) => Attempt::NotOwner(holder),
            Ok(Reply::Expired) | Err(CallError::Timeout | CallError::Declined) => Attempt::Failed,
            Ok(reply) => {
                tracing::warn!(
                    owner = %peer.id,
                    ?reply,
                    "unexpected reply to a forwarded check; on_unavailable decides"
                );
                Attempt::Failed
            }
            Err(CallError::NotConnected) => Attempt::NotConnected,
            Err(CallError::Unreachable | CallError::Busy) => Attempt::Overloaded,
            Err(CallError::Closed) => Attempt::Lost,
        }
    }
}

/// Whether an owner that speaks `version` knows the algorithms of all limits.
fn can_decide(version: u8, counters: &[Counter]) -> bool {
    let is_new = |it: &Counter| it.quota.algorithm() == Algorithm::FirstHitWindow;
    version >= FIRST_HIT_WINDOWS || !counters.iter().any(is_new)
}

/// Whether a call may bring a grant.
fn is_wanted(ask: Option<(u32, u32)>) -> bool {
    ask.is_some_and(|(wanted, _)| wanted > 0)
}

/// What a call decided of the check `at` this position in it.
fn of_check(
    limits: &Limits,
    hits: Hits,
    at: usize,
    sent: &Result<OwnerVerdicts, NoVerdicts>,
) -> Result<Forwarded, NoVerdict> {
    let OwnerVerdicts { verdicts, source, is_confirmed, may_end_early, .. } = match sent {
        Ok(sent) => sent,
        Err(NoVerdicts::None(reason)) => return Err(*reason),
        Err(NoVerdicts::Separate) => return Err(NoVerdict::Unavailable),
    };
    let Some(verdicts) = verdicts.chunks_exact(limits.counters.len().max(1)).nth(at) else {
        return Err(NoVerdict::Unconfirmed);
    };
    if !is_confirmed && replication::awaits_confirm(limits.durability, hits, verdicts) {
        return Err(NoVerdict::Unconfirmed);
    }
    let decided = (verdicts.into(), *source);
    Ok(Forwarded { decided, may_end_early: *may_end_early })
}

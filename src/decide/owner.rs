//! The owner's side: deciding strict keys that this node owns, for its own clients and for peers.
//!
//! Ownership is tested under the lock of the decision, so a key that has been handed over is not
//! decided afterwards. A check that a peer sends again, because its connection broke before the
//! reply, is answered from the [`DedupCache`](super::dedup_cache::DedupCache) and counts nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_cluster::mesh::StreamClass;
use tidegate_cluster::mesh::wire::{
    COMBINED_VERDICTS_MAX, Call, Check, CombinedVerdicts, Grant, GrantAsk, Reply,
};
use tidegate_cluster::ownership::{OwnerTerm, Standing};
use tidegate_cluster::replication;
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::policy::{Durability, Scope};
use tidegate_limiter::store::{Counter, Granted, KeyHash, Verdicts};
use tidegate_limiter::units::{Hits, Timestamp};
use tidegate_ownership::identity::{Generation, NodeId, node_actor};

use super::decider::Decider;
use super::dedup_cache::Once;
use super::grant_ledger::Holder;
use super::limits::Limits;

/// The part of a deadline for which the verdicts of a call wait until a replica has its grant.
const GRANT_PATIENCE_DIVISOR: u32 = 2;

// === impl Decider: for peers ===

impl Decider {
    /// Decides the check that `from` forwarded because this node owns its key, and `further` ones
    /// of the same counters. What was decided comes with the term that it was decided in, for
    /// [`Decider::confirmation`].
    pub fn decide_for_peer(
        &self,
        from: (&NodeId, Generation),
        check: &Check,
        further: &[Hits],
        ask: Option<GrantAsk>,
    ) -> (Reply, Option<OwnerTerm>) {
        let Some(token) = token(&check.counters) else { return (Reply::Malformed, None) };
        let hits = all_hits(check, further);
        if hits.len() * check.counters.len() > COMBINED_VERDICTS_MAX {
            return (Reply::Malformed, None);
        }
        let shared = &*self.shared;
        let stats = &shared.counters;
        let now = shared.node.clock.now();
        let sender = node_actor(from.0, from.1);
        let limits = limits(check);
        let holder = holder(from);
        let mut grant = None;
        // A grant is sent when a replica has its charge, whatever the durability of the rule.
        let durability = if ask.is_some() { Durability::Replicated } else { check.durability };
        let owner_term = self.owner_term(durability, &limits.counters, check.scope);
        let decide = || {
            if ask.is_none() {
                let verdicts = self.decide_each_beside_grants(&limits, &hits, now)?;
                return Some((verdicts, owner_term));
            }
            let to = Some((&holder, check.id));
            let (verdicts, granted) =
                self.decide_leased_each_if_owned(&limits, &hits, to, ask, now)?;
            self.announce_refunds(&limits, &hits);
            grant = granted.map(|Granted { hits, term, .. }| Grant { hits, term });
            Some((verdicts, owner_term))
        };
        let once = shared.dedup_cache.once(sender, check.id, decide);
        let ((verdicts, owner_term), counter) = match once {
            Some(Once::First(decided)) => (decided, &stats.served),
            Some(Once::Again(decided)) => (decided, &stats.deduplicated),
            None => {
                stats.not_owner.fetch_add(1, Ordering::Relaxed);
                let ownership = &shared.node.ownership;
                let epoch = ownership.owned_ranges().epoch;
                let holder = ownership.transferred_to(token);
                return (Reply::NotOwner { epoch, holder }, None);
            }
        };
        counter.fetch_add(hits.len() as u64, Ordering::Relaxed);
        if further.is_empty() && ask.is_none() {
            return (Reply::Verdicts(verdicts), owner_term);
        }
        let is_refused = verdicts.iter().any(|verdict| !verdict.allowed);
        let may_end_early = ask.is_some()
            && is_refused
            && limits.key().is_some_and(|key| self.recall(key, Some(&holder), now));
        let is_confirmed = true;
        let reply = CombinedVerdicts { verdicts, is_confirmed, grant, may_end_early };
        (Reply::CombinedVerdicts(reply), owner_term)
    }

    /// The reply to checks that were decided for a peer, once a replica has confirmed the counts;
    /// `None` when no replica needs to. A grant is in it only when a replica has its charge.
    pub fn confirmation(
        &self,
        from: (&NodeId, Generation),
        check: &Check,
        further: &[Hits],
        (reply, owner_term): (&Reply, Option<OwnerTerm>),
    ) -> Option<impl Future<Output = Reply> + Send + use<>> {
        let (verdicts, grant) = match reply {
            Reply::Verdicts(verdicts) => (verdicts, None),
            Reply::CombinedVerdicts(CombinedVerdicts { verdicts, grant, .. }) => (verdicts, *grant),
            _ => return None,
        };
        let limits = limits(check);
        let granted = grant.map(|grant| Hits::new(i64::from(grant.hits)));
        let checked = self.awaiting_replica(&limits, &all_hits(check, further), verdicts);
        let awaiting = checked.max(granted)?;
        let (decider, check, reply) = (self.clone(), check.clone(), reply.clone());
        // Verdicts that wait for a grant alone go without it, rather than come too late.
        let patience = if checked.is_some() { 1 } else { GRANT_PATIENCE_DIVISOR };
        let (holder, deadline) = (holder(from), self.deadline(check.scope) / patience);
        Some(async move {
            let decided = (&limits.counters[..], limits.scope, owner_term);
            if decider.is_confirmed(decided, awaiting, deadline).await {
                return reply;
            }
            if grant.is_some() {
                decider.revoke(&check, &holder);
            }
            match reply {
                Reply::CombinedVerdicts(reply) => Reply::CombinedVerdicts(CombinedVerdicts {
                    is_confirmed: false,
                    grant: None,
                    ..reply
                }),
                _ => Reply::Unconfirmed,
            }
        })
    }

    /// A peer gave hits back at `token`: forgets refusals that may not hold any more.
    pub fn refunded(&self, token: u64) {
        self.shared.negative_cache.forget(token);
    }
}

// === impl Decider: for this node ===

impl Decider {
    /// Decides a strict check if this node owns its key; counts nothing otherwise.
    pub(super) fn decide_if_owned(
        &self,
        scope: Scope,
        counters: &[Counter],
        hits: Hits,
        now: Timestamp,
    ) -> Option<Verdicts> {
        let node = &self.shared.node;
        let token = counters.first().map_or(0, |counter| counter.key.token);
        let owns = || node.ownership.decides(scope, token);
        let verdicts = node.store.check_if(counters, hits, now, owns)?;
        self.announce_moved_windows();
        Some(verdicts)
    }

    /// Decides a strict check for each of `hits`, one after the other, if this node owns their key;
    /// counts nothing otherwise.
    pub(super) fn decide_each_if_owned(
        &self,
        limits: &Limits,
        hits: &[Hits],
        now: Timestamp,
    ) -> Option<Verdicts> {
        let Limits { scope, counters, .. } = limits;
        let node = &self.shared.node;
        let token = token(counters)?;
        let owns = || node.ownership.decides(*scope, token);
        let verdicts = if limits.leased.is_some() || self.refunds_beside_grants(hits) {
            self.decide_leased_each_if_owned(limits, hits, None, None, now)?.0
        } else {
            node.store.check_each_if(counters, hits, now, owns)?
        };
        self.announce_refunds(limits, hits);
        Some(verdicts)
    }

    /// The same, of a key for which hits may be granted, as one that clients use with `GLOBAL` and
    /// without: of a refusal, which the sender caches, the ledger has to know, and what others hold
    /// is asked back.
    fn decide_each_beside_grants(
        &self,
        limits: &Limits,
        hits: &[Hits],
        now: Timestamp,
    ) -> Option<Verdicts> {
        let decide = || self.decide_each_if_owned(limits, hits, now);
        if self.refunds_beside_grants(hits) {
            return decide();
        }
        let is_refused = |verdicts: &Verdicts| verdicts.iter().any(|verdict| !verdict.allowed);
        let ledger = &self.shared.grant_ledger;
        let verdicts = ledger.note_refusals(&limits.counters, now, decide, is_refused)?;
        if is_refused(&verdicts)
            && let Some(key) = limits.key()
        {
            self.recall(key, None, now);
        }
        Some(verdicts)
    }

    /// Whether hits are given back while some are granted: a rule that has just become strict may
    /// have granted them.
    pub(super) fn refunds_beside_grants(&self, hits: &[Hits]) -> bool {
        hits.iter().any(|hits| hits.refund() > 0) && self.shared.grant_ledger.holds_any()
    }

    fn announce_refunds(&self, limits: &Limits, hits: &[Hits]) {
        self.announce_moved_windows();
        if let Some(&refund) = hits.iter().find(|hits| hits.refund() > 0) {
            self.announce_refund(limits.scope, &limits.counters, refund);
        }
    }

    /// The hits of checks with these verdicts that have to wait for [`Decider::is_confirmed`]: the
    /// most that one of them has.
    pub(super) fn awaiting_replica(
        &self,
        limits: &Limits,
        hits: &[Hits],
        verdicts: &Verdicts,
    ) -> Option<Hits> {
        let of_each = hits.iter().zip(verdicts.chunks_exact(limits.counters.len().max(1)));
        let awaiting = of_each
            .filter(|(hits, verdicts)| self.needs_replica(limits.durability, **hits, verdicts));
        awaiting.map(|(hits, _)| *hits).max()
    }

    /// Whether the verdicts have to wait for [`Decider::is_confirmed`].
    pub(super) fn needs_replica(
        &self,
        durability: Durability,
        hits: Hits,
        verdicts: &[Verdict],
    ) -> bool {
        self.shared.peers.is_some() && replication::awaits_confirm(durability, hits, verdicts)
    }

    /// The term in which these counters are decided now; `None` if nothing waits for a replica, or
    /// at a node that does not decide them. To be taken before a decision that
    /// [`Decider::is_confirmed`] is asked about.
    pub(super) fn owner_term(
        &self,
        durability: Durability,
        counters: &[Counter],
        scope: Scope,
    ) -> Option<OwnerTerm> {
        if durability != Durability::Replicated {
            return None;
        }
        self.shared.node.ownership.owner_term(scope, counters.first()?.key.token)
    }

    /// Whether a replica has stored the present counts within `deadline`, for a decision made under
    /// this term.
    ///
    /// A copy counts only if this node has been the owner from the decision on. Another one that
    /// decided meanwhile may have counted as much, and the join of both counts hides one of them.
    pub(super) async fn is_confirmed(
        &self,
        (counters, scope, owner_term): (&[Counter], Scope, Option<OwnerTerm>),
        hits: Hits,
        deadline: Duration,
    ) -> bool {
        self.is_copied(counters, hits, deadline).await && self.is_owner_since(scope, owner_term)
    }

    /// Whether a replica has stored the present counts within `deadline`.
    pub(super) async fn is_copied(
        &self,
        counters: &[Counter],
        hits: Hits,
        deadline: Duration,
    ) -> bool {
        let Some(peers) = &self.shared.peers else { return true };
        let keys: SmallVec<[KeyHash; 1]> = counters.iter().map(|counter| counter.key).collect();
        peers.replicator.confirm(&keys, hits, deadline).await
    }

    /// Like [`Decider::is_copied`], for checks of many keys, with the hits of each.
    pub(super) async fn are_copied(&self, checks: &[(KeyHash, Hits)], deadline: Duration) -> bool {
        let Some(peers) = &self.shared.peers else { return true };
        peers.replicator.confirm_all(checks, deadline).await
    }

    /// Whether no other node can have decided since this term, except with all counts of it.
    pub(super) fn is_owner_since(&self, scope: Scope, term: Option<OwnerTerm>) -> bool {
        let ownership = &self.shared.node.ownership;
        term.is_some_and(|term| ownership.standing(scope, term) == Standing::Decides)
    }

    /// After a refund: every node that may have cached a refusal at this token forgets it.
    pub(super) fn announce_refund(&self, scope: Scope, counters: &[Counter], hits: Hits) {
        if hits < Hits::PEEK
            && let Some(counter) = counters.first()
        {
            self.announce(scope, counter.key.token);
        }
    }

    /// After checks that may have moved the ends of windows: the same, of their tokens.
    pub(super) fn announce_moved_windows(&self) {
        for key in self.shared.node.store.take_moved_windows() {
            self.announce(key.scope(), key.token);
        }
    }

    fn announce(&self, scope: Scope, token: u64) {
        self.refunded(token);
        let Some(peers) = &self.shared.peers else { return };
        let topology = self.shared.node.topology.load();
        for member in topology.view.members() {
            let may_forward = scope == Scope::Global || member.region == topology.region;
            if may_forward && member.id != topology.me {
                // A node that is not connected misses the notice; its cached refusal ends within
                // a minute.
                peers.mesh.notify(&member.id, StreamClass::Checks, Call::Refunded { token });
            }
        }
    }
}

/// The token of these counters; `None` if there are none, or they differ in it.
fn token(counters: &[Counter]) -> Option<u64> {
    let token = counters.first()?.key.token;
    counters.iter().all(|counter| counter.key.token == token).then_some(token)
}

fn limits(check: &Check) -> Limits {
    let Check { scope, durability, .. } = *check;
    Limits { scope, durability, leased: None, is_share: false, counters: check.counters.clone() }
}

fn holder((node, generation): (&NodeId, Generation)) -> Holder {
    Holder { node: node.clone(), generation }
}

fn all_hits(check: &Check, further: &[Hits]) -> SmallVec<[Hits; 16]> {
    std::iter::once(check.hits).chain(further.iter().copied()).collect()
}

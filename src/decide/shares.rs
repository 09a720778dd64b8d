//! Leased rules of `scope: global`: a limit is divided among the regions, each of which decides its
//! share.
//!
//! A limit of `L` over `R` regions is `R` leased limits that sum to `L` (`region_limits.rs`). Each
//! is a global counter at home in its region, so the owner of the key in a region decides its
//! share, grants it to the nodes of the region and, when they ask, to others; and nothing can be
//! over, whichever regions reach each other.
//!
//! ```text
//!                          the own share will not last: ask others ahead of need, and
//!                          spend what they have granted
//! check ─▶ own share: granted here? its owner in this region? ── admitted
//!            └─ refused ─▶ the next share, of which most is left ── admitted
//!                            └─ refused ─▶ ... refused when all refuse
//! ```
//!
//! Hits of other shares are spent before those of the own one while that will not last: a grant
//! over an ocean ends some round trips before its window does, and what is near is there until the
//! end (`forecast.rs`). Each share has its refusals cached as any counter has, so that a limit that
//! is used up costs no calls.
//!
//! **Example.** 100 a minute over `eu` and `us`, 50 for each. All checks come to `eu`, 60 in the
//! first seconds: when it has some ten left its nodes ask the owner in `us`, which grants them 25,
//! then 12 and so on, for 4 s each. The last few hits of `us` are decided there, one round trip
//! away.
//!
//! **A peek** is one of the own share, and so is a refund of hits that were not granted.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limiter::engine::Verdict;
use tidegate_limiter::policy::{Mode, OnUnavailable, Scope};
use tidegate_limiter::store::{Counter, Verdicts};
use tidegate_limiter::units::{Hits, Span, Timestamp};
use tidegate_rules::book::Rule;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::check::VerdictSource;
use super::combiner::Sending;
use super::decider::{Decider, Shared};
use super::divided::{Begun, Divided, Refusal};
use super::forecast::{Seen, Sight};
use super::held_grants::Spent;
use super::leased::is_granted_far;
use super::limits::Limits;
use super::outcome::{Decided, Forwarded, NoVerdict};
use super::plan::PlannedCheck;
use super::region_limits::Shares;

/// How long a call may take that no check waits for.
const AHEAD_PATIENCE: Duration = Duration::from_secs(2);

/// What this node alone can say about one share.
enum Here {
    Admitted(Decided, u32),
    Refused(Refusal),
    /// Its owner is another node.
    Elsewhere,
}

// === impl Decider ===

impl Decider {
    /// Begins a check of a rule whose limits the regions share; `None` if it is no such rule.
    pub(super) fn begin_divided(
        &self,
        check: &PlannedCheck,
        hits: Hits,
        now: Timestamp,
    ) -> Option<Begun> {
        let seen = self.divide(check, hits, now)?;
        if hits.charge() > 0 {
            self.ask_ahead(&seen, now);
            if !seen.lasts
                && let Some(decided) = self.spend_of_others(&seen, hits, now)
            {
                return Some(Begun::Done(decided));
            }
        }
        let hits = match self.refund_of_shares(&seen, hits, now) {
            Ok(decided) => return Some(Begun::Done(decided)),
            Err(rest) => rest,
        };
        let mut open = Divided::new(seen, hits);
        for at in open.seen.order.clone() {
            let Some(part) = open.seen.shares.parts.get(at) else { continue };
            let owner_term = self.owner_term(part.durability, &part.counters, part.scope);
            match self.decide_here(part, at == open.seen.shares.own, hits, now) {
                Here::Admitted((verdicts, source), held) => {
                    let is_local = source == VerdictSource::Local;
                    if is_local && self.needs_replica(part.durability, hits, &verdicts) {
                        open.to_confirm = Some((at, verdicts, owner_term));
                        return Some(Begun::Open(Box::new(open)));
                    }
                    let shares = &open.seen.shares;
                    let verdicts = self.of_whole(shares, at, &verdicts, held, now);
                    return Some(Begun::Done((verdicts, source)));
                }
                Here::Refused(refusal) => self.refuse(&mut open, at, refusal, now),
                Here::Elsewhere => return Some(Begun::Open(Box::new(open))),
            }
        }
        open.refusal(hits).map(Begun::Done)
    }

    /// Goes on with a check after what this node alone can say about it.
    pub(super) async fn finish_divided(
        &self,
        check: &PlannedCheck,
        mut open: Divided,
        now: Timestamp,
    ) -> Result<Decided, NoVerdict> {
        let (shares, hits) = (open.seen.shares.clone(), open.hits);
        if let Some((at, verdicts, owner_term)) = open.to_confirm.take() {
            let part = shares.parts.get(at).ok_or(NoVerdict::Unavailable)?;
            let patience = self.patience(part);
            let decided = (&part.counters[..], part.scope, owner_term);
            if !self.is_confirmed(decided, hits, patience).await {
                return Err(NoVerdict::Unconfirmed);
            }
            let verdicts = self.of_whole(&shares, at, &verdicts, 0, now);
            return Ok((verdicts, VerdictSource::Local));
        }
        let end = Instant::now() + self.deadline(shares.whole.scope);
        let mut failed = None;
        for at in open.seen.order.clone() {
            let Some(part) = shares.parts.get(at) else { continue };
            if open.refused.get(at).is_some_and(Option::is_some) {
                continue;
            }
            // A share before may have taken a round trip.
            let now = if at == shares.own { now } else { self.shared.node.clock.now() };
            let left = end.saturating_duration_since(Instant::now());
            let patience = self.patience(part).min(left);
            let here = if at == shares.own {
                Here::Elsewhere
            } else {
                self.decide_here(part, false, hits, now)
            };
            let (verdicts, source) = match here {
                Here::Admitted(decided, _) => decided,
                Here::Refused(refusal) => {
                    self.refuse(&mut open, at, refusal, now);
                    continue;
                }
                Here::Elsewhere if self.is_too_far(part, open.seen.round_trip, left) => {
                    failed = Some(NoVerdict::Unavailable);
                    continue;
                }
                Here::Elsewhere => match self.forward_and_cache(part, hits, now, patience).await {
                    Ok(Forwarded { decided, may_end_early }) => {
                        if !decided.0.iter().all(|verdict| verdict.allowed) {
                            self.refuse(&mut open, at, Refusal { decided, may_end_early }, now);
                            continue;
                        }
                        decided
                    }
                    // It is counted.
                    Err(NoVerdict::Unconfirmed) => return Err(NoVerdict::Unconfirmed),
                    Err(NoVerdict::Unavailable) => {
                        failed = Some(NoVerdict::Unavailable);
                        continue;
                    }
                },
            };
            return Ok((self.of_whole(&shares, at, &verdicts, 0, now), source));
        }
        let has_refused = open.refused.get(shares.own).is_some_and(Option::is_some);
        let is_refused = has_refused && check.rule.on_unavailable != OnUnavailable::Allow;
        match failed {
            Some(reason) if !is_refused => Err(reason),
            _ => open.refusal(hits).ok_or(NoVerdict::Unavailable),
        }
    }

    /// Whether regions share the limits of this rule, if they can be shared.
    pub(super) fn is_divided(&self, rule: &Rule) -> bool {
        let Shared { node, peers, .. } = &*self.shared;
        (rule.mode, rule.scope) == (Mode::Leased, Scope::Global)
            && peers.is_some()
            && node.topology.load().homes().everywhere().len() > 1
    }

    fn divide(&self, check: &PlannedCheck, hits: Hits, now: Timestamp) -> Option<Seen> {
        let Shared { node, peers, forecasts, .. } = &*self.shared;
        if !self.is_divided(&check.rule) {
            return None;
        }
        let mesh = peers.as_ref().map(|peers| &peers.mesh)?;
        let topology = node.topology.load();
        let regions = topology.homes().everywhere();
        let whole = check.limits();
        let at = (now, node.clock.monotonic());
        let divide = || Shares::of(&whole, regions, &topology.region);
        let look = |shares: &Shares| {
            let others = shares.parts.iter().filter_map(|part| {
                let owner = topology.owner(Scope::Global, part.key()?.token)?;
                mesh.peer(owner).filter(|peer| peer.region != topology.region)
            });
            let round_trip = Span::from_nanos(others.map(|peer| peer.rtt_ns()).max().unwrap_or(0));
            Sight { nodes: topology.owners_in(&topology.region), round_trip }
        };
        forecasts.seen(&whole, regions, hits.charge(), at, divide, look)
    }

    /// Whether no verdict on a share comes back in the time that is left: a check would be counted
    /// there and refused here.
    fn is_too_far(&self, part: &Limits, round_trip: Span, left: Duration) -> bool {
        let topology = self.shared.node.topology.load();
        let is_here = part.key().is_some_and(|key| topology.homes().is_here(key.token));
        !is_here && round_trip.to_std() >= left
    }

    /// Spends granted hits of other shares.
    fn spend_of_others(&self, seen: &Seen, hits: Hits, now: Timestamp) -> Option<Decided> {
        let Shared { node, held_grants, .. } = &*self.shared;
        if !node.ownership.has_lease() {
            return None;
        }
        let mut others = seen.order.iter().filter(|at| **at != seen.shares.own);
        let spend = |at: &usize| {
            let part = seen.shares.parts.get(*at)?;
            let spent = held_grants.spend_ahead(part, hits, now, node.clock.monotonic())?;
            Some((*at, spent.verdicts))
        };
        let (at, verdicts) = others.find_map(spend)?;
        let verdicts = self.of_whole(&seen.shares, at, &verdicts, 0, now);
        Some((verdicts, VerdictSource::Grant))
    }

    /// Puts a refund into grants of any share that are held here; returns the rest of it.
    fn refund_of_shares(
        &self,
        seen: &Seen,
        mut hits: Hits,
        now: Timestamp,
    ) -> Result<Decided, Hits> {
        for (at, part) in seen.shares.parts.iter().enumerate() {
            match self.refund_if_granted(part, hits, now) {
                Ok((verdicts, source)) => {
                    return Ok((self.of_whole(&seen.shares, at, &verdicts, 0, now), source));
                }
                Err(rest) => hits = rest,
            }
        }
        Err(hits)
    }

    /// What this node alone can say about one share.
    fn decide_here(&self, part: &Limits, is_own: bool, hits: Hits, now: Timestamp) -> Here {
        let Shared { node, held_grants, negative_cache, .. } = &*self.shared;
        let granted = match node.ownership.has_lease() {
            true if is_own => held_grants.spend(part, hits, now, node.clock.monotonic()),
            true => held_grants.spend_ahead(part, hits, now, node.clock.monotonic()),
            false => None,
        };
        if let Some(Spent { verdicts, left, asks }) = granted {
            if asks {
                self.ask_for_more(part.clone());
            }
            return Here::Admitted((verdicts, VerdictSource::Grant), left);
        }
        if let Some((verdicts, may_end_early)) = self.decide_leased_if_owned(part, hits, now) {
            self.announce_refund(part.scope, &part.counters, hits);
            let is_refused = verdicts.iter().any(|verdict| !verdict.allowed);
            let decided = (verdicts, VerdictSource::Local);
            return if is_refused {
                Here::Refused(Refusal { decided, may_end_early })
            } else {
                Here::Admitted(decided, 0)
            };
        }
        match negative_cache.recall(&part.counters, hits, now) {
            Some(verdicts) => {
                let decided = (verdicts, VerdictSource::NegativeCache);
                Here::Refused(Refusal { decided, may_end_early: false })
            }
            None => Here::Elsewhere,
        }
    }

    /// Asks another share for what will be missing, in the background.
    fn ask_ahead(&self, seen: &Seen, now: Timestamp) {
        let Shared { node, held_grants, negative_cache, forecasts, .. } = &*self.shared;
        if seen.missing == 0 || !is_granted_far(&seen.shares.whole, seen.round_trip, now) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let monotonic = node.clock.monotonic();
        let mut missing = seen.missing;
        for at in seen.order.iter().copied().filter(|at| *at != seen.shares.own) {
            let Some(part) = seen.shares.parts.get(at) else { return };
            let Some(token) = part.key().map(|key| key.token) else { return };
            let (held, is_asking) = held_grants.outlook(part, monotonic);
            missing = missing.saturating_sub(held);
            if missing == 0 {
                return;
            }
            let is_known_to_refuse =
                || negative_cache.recall(&part.counters, Hits::ONE, now).is_some();
            if is_asking
                || node.ownership.decides(part.scope, token)
                || is_known_to_refuse()
                || !forecasts.may_ask(&seen.shares, at, monotonic)
                || !held_grants.ask_ahead(part, missing, monotonic)
            {
                continue;
            }
            let (decider, shares, pause) = (self.clone(), seen.shares.clone(), seen.round_trip);
            runtime.spawn(async move { decider.ask_share(&shares, at, pause).await });
            return;
        }
    }

    /// When it grants nothing it is asked again after `pause`.
    async fn ask_share(&self, shares: &Arc<Shares>, at: usize, pause: Span) {
        let Shared { node, held_grants, forecasts, .. } = &*self.shared;
        let Some(part) = shares.parts.get(at) else { return };
        let asked = self.forward(part, Sending::Ask, AHEAD_PATIENCE).await;
        let Ok(Forwarded { decided: (verdicts, _), .. }) = asked else { return };
        let (now, monotonic) = (node.clock.now(), node.clock.monotonic());
        forecasts.learn(shares, at, &verdicts, 0, now);
        forecasts.asked(shares, at, (!held_grants.has_brought(part)).then_some(pause), monotonic);
    }

    /// The verdicts of the whole limits, by those of share `at`, of which `held` hits are here.
    fn of_whole(
        &self,
        shares: &Arc<Shares>,
        at: usize,
        verdicts: &Verdicts,
        held: u32,
        now: Timestamp,
    ) -> Verdicts {
        let others = self.shared.forecasts.learn(shares, at, verdicts, held, now);
        let whole = shares.whole.counters.iter().zip(verdicts).zip(others);
        let verdict = |((counter, verdict), others): ((&Counter, &Verdict), u32)| Verdict {
            limit: counter.quota.limit(),
            remaining: verdict.remaining.saturating_add(others),
            ..*verdict
        };
        whole.map(verdict).collect()
    }

    fn refuse(&self, open: &mut Divided, at: usize, refusal: Refusal, now: Timestamp) {
        let (verdicts, source) = &refusal.decided;
        if *source != VerdictSource::NegativeCache {
            self.shared.forecasts.learn(&open.seen.shares, at, verdicts, 0, now);
        }
        if let Some(refused) = open.refused.get_mut(at) {
            *refused = Some(refusal);
        }
    }
}

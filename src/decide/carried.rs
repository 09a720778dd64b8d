//! Limits that requests carry together with their key, as Gubernator's do, many at once.
//!
//! As for `CL.THROTTLE` no rule file describes them, and one rule says what holds for all of them.
//! There are two of these: one strict, and one leased for requests that ask for it.
//!
//! ```text
//! checks, in order ─▶ decided here? ─ yes ─▶ verdict
//!                          └─ no ─┬─ leased, in use; or alone ─▶ as any check: combined, granted
//!                                 └─ several ─▶ one call to each owner, in order (Call::Carried)
//! ```
//!
//! **Order.** Checks of one key are decided in the order of the request: all of them here, or all
//! of them in calls that follow each other. A call is of one rule, so those of a key that gives
//! something back by both rules are calls of one check each.
//!
//! **Once.** Each check of a call has an id of its own, so that an owner to which a call is sent
//! again decides none of them twice (`dedup_cache.rs`).
//!
//! **By hand.** What an operator does to a key holds for all counters of its name and key: they
//! begin anew together, and are blocked together.
//!
//! A peer of a release without such calls decides none; `on_unavailable` does, as if it could not
//! be reached. `docs/adr/0065-carried-limits.md` has what was weighed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use backon::BackoffBuilder;
use futures_util::future::{join, join_all};
use smallvec::SmallVec;
use tidegate_cluster::backoff::exponential;
use tidegate_cluster::mesh::codec::CARRIED_CHECKS;
use tidegate_cluster::mesh::wire::{COMBINED_VERDICTS_MAX, Call, CarriedCall, Reply};
use tidegate_cluster::mesh::{CallError, Mesh, Peer, StreamClass, running};
use tidegate_cluster::ownership::OwnerTerm;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::engine::{Behavior, Verdict};
use tidegate_limiter::policy::{Durability, Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{
    Carried, Counter, CounterKind, DescriptorHash, KeyHash, KeyHasher, Verdicts,
};
use tidegate_limiter::units::{Hits, Timestamp};
use tidegate_ownership::identity::{Generation, NodeId, node_actor};
use tidegate_rules::book::Rule;
use tidegate_rules::stats::RuleStats;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::blocked_by_hand;
use super::check::{Decide, VerdictSource};
use super::decider::{Decider, LocalNode, Peers, Shared, Step};
use super::dedup_cache::Once;
use super::fallback;
use super::grant_ledger::{Charged, Reset};
use super::leased_refunds::UnknownGrants;
use super::limits::Limits;
use super::outcome::{Decided, NoVerdict};
use super::owner_search::{OwnerSearch, Target};
use super::plan::PlannedCheck;

/// Decides limits that requests carry.
pub trait DecideCarried: Decide {
    /// Decides `checks` in their order and returns one verdict each. Never fails: when no owner
    /// answers, `on_unavailable` does.
    fn decide_carried(
        &self,
        checks: &[CarriedCheck<'_>],
    ) -> impl Future<Output = Vec<CarriedVerdict>> + Send;

    /// The time by which this node decides.
    fn now(&self) -> Timestamp;
}

/// A check of a limit that its request carries.
#[derive(Clone, Copy, Debug)]
pub struct CarriedCheck<'a> {
    /// With the key what is limited; both are hashed with their lengths.
    pub name: &'a str,
    pub unique_key: &'a str,
    /// What else tells the counters of one key apart.
    pub part: [u64; 3],
    pub quota: Quota,
    /// Zero peeks, negative refunds.
    pub hits: Hits,
    pub behavior: Behavior,
    /// As of when a bucket is decided; `None` for now.
    pub at: Option<Timestamp>,
    /// It ends what was counted before.
    pub resets: bool,
    /// Decided from granted hits, where there are any.
    pub is_leased: bool,
}

/// By what operators name all counters of a key: part of none, and so the same for each.
pub fn carried_key(hasher: &KeyHasher, name: &str, unique_key: &str) -> DescriptorHash {
    hasher.carried(name, unique_key, [0; 3])
}

/// The verdict on a check.
#[derive(Clone, Debug)]
pub struct CarriedVerdict {
    pub verdict: Verdict,
    /// What the verdict says of a time counts from then, by the clock of this node: when it was
    /// decided here, or its owner's answer came.
    pub now: Timestamp,
    pub source: VerdictSource,
    /// Another node that owns the key.
    pub owner: Option<NodeId>,
}

/// A check that needs other nodes.
struct Deferred<'c> {
    /// Of its verdict.
    at: usize,
    rule: &'c Arc<Rule>,
    carried: Carried,
    /// What was found out of it here already.
    begun: Option<Step>,
}

/// The modes of the checks of a key in one request.
#[derive(Clone, Copy, Debug, Default)]
struct KeyModes {
    /// Some are leased.
    is_leased: bool,
    /// Some are strict and give something back.
    gives_back_strict: bool,
}

impl KeyModes {
    fn note(&mut self, check: &Deferred<'_>) {
        let is_leased = check.rule.mode == Mode::Leased;
        self.is_leased |= is_leased;
        self.gives_back_strict |= !is_leased && check.carried.gives_back();
    }

    /// A call is leased or not. What charges may be in either, and what gives back only in one of
    /// its own mode.
    fn share_a_call(self) -> bool {
        !(self.is_leased && self.gives_back_strict)
    }
}

/// What an owner has to know of the rule of a check.
#[derive(Clone, Copy)]
struct OwnerRule {
    scope: Scope,
    durability: Durability,
    is_leased: bool,
}

/// What calls of several checks brought: by index when the answer came, and the verdicts. What a
/// verdict says of a time counts from then: its owner decided no later.
type Brought = Vec<(usize, Timestamp, Result<Decided, NoVerdict>)>;

impl DecideCarried for Decider {
    async fn decide_carried(&self, checks: &[CarriedCheck<'_>]) -> Vec<CarriedVerdict> {
        let verdicts = self.decide_carried_by_hand(checks).await;
        for (check, decided) in checks.iter().zip(&verdicts) {
            let is_refusal = !decided.verdict.allowed && check.hits.charge() > 0;
            if is_refusal && decided.source != VerdictSource::Fallback {
                self.note_refused_carried(check, decided.now);
            }
        }
        verdicts
    }

    fn now(&self) -> Timestamp {
        self.shared.node.clock.now()
    }
}

impl Decider {
    /// Decides checks in their order. No client is limited: a refusal is none of a key that is
    /// limited now.
    pub async fn decide_carried_by_hand(&self, checks: &[CarriedCheck<'_>]) -> Vec<CarriedVerdict> {
        let now = self.shared.node.clock.now();
        let rules = &self.shared.options.carried_rules;
        let mut verdicts = Vec::with_capacity(checks.len());
        let mut deferred: Vec<Deferred<'_>> = Vec::new();
        let mut waiting = BTreeSet::new();
        for (at, check) in checks.iter().enumerate() {
            let rule = if check.is_leased { &rules.leased } else { &rules.strict };
            let (carried, blocked_until) = self.carried(check, rule);
            if let Some(verdict) = blocked_by_hand::refusal(&check.quota, blocked_until, now) {
                let source = VerdictSource::Blocked;
                self.shared.counters.blocked.fetch_add(1, Ordering::Relaxed);
                verdicts.push(CarriedVerdict { verdict, now, source, owner: None });
                continue;
            }
            let token = carried.counter.key.token;
            // What follows a check of the same key that waits is decided after it.
            let begun = if waiting.contains(&token) {
                Err(None)
            } else {
                self.begin_carried(&carried, rule, now)
            };
            let (verdict, source) = begun.unwrap_or_else(|begun| {
                waiting.insert(token);
                deferred.push(Deferred { at, rule, carried, begun });
                // Placeholder, replaced by the verdict of the deferred check.
                (fallback::denied(&check.quota), VerdictSource::Fallback)
            });
            let owner = if source == VerdictSource::NegativeCache {
                self.shared.node.topology.load().owner(rule.scope, token).cloned()
            } else {
                None
            };
            verdicts.push(CarriedVerdict { verdict, now, source, owner });
        }
        if !deferred.is_empty() {
            // Boxed: its state is large, and a node that owns its keys does not need it.
            Box::pin(self.decide_deferred(deferred, now, &mut verdicts)).await;
        }
        verdicts
    }
}

// === impl Decider: for this node ===

impl Decider {
    /// The check with its counter, and until when an operator has blocked its key.
    fn carried(&self, check: &CarriedCheck<'_>, rule: &Rule) -> (Carried, Timestamp) {
        let CarriedCheck { name, unique_key, part, quota, hits, behavior, at, resets, .. } = *check;
        let LocalNode { hasher, interventions, .. } = &self.shared.node;
        let mut hash = hasher.carried(name, unique_key, part);
        let mut blocked_until = Timestamp::EPOCH;
        if let Some(done) = interventions.find_with(|| carried_key(hasher, name, unique_key)) {
            (hash, blocked_until) = (done.counts_part_as(hash), done.block.until);
        }
        let kind = match quota.algorithm() {
            // A window may become longer or shorter and goes on.
            Algorithm::FirstHitWindow => {
                CounterKind::of_any_window(&quota, Mode::Strict, rule.scope)
            }
            _ => CounterKind::of(&quota, Mode::Strict, rule.scope),
        };
        let counter = Counter { key: hash.counter_of(kind), quota };
        (Carried { counter, hits, behavior, at, resets }, blocked_until)
    }

    /// Decides a check that needs no other node; otherwise returns what of it is done, if it was
    /// begun as any check of a rule.
    fn begin_carried(
        &self,
        check: &Carried,
        rule: &Arc<Rule>,
        now: Timestamp,
    ) -> Result<(Verdict, VerdictSource), Option<Step>> {
        let Shared { peers, negative_cache, .. } = &*self.shared;
        let Carried { counter, hits, .. } = check;
        if rule.durability == Durability::Replicated && peers.is_some() {
            return Err(None);
        }
        if rule.mode == Mode::Leased && peers.is_some() {
            // A refund first asks for what was granted, which may be in other places.
            if !check.is_plain() || hits.refund() > 0 {
                return Err(None);
            }
            return match self.begin(&planned(check, rule), *hits, now) {
                Step::Done((verdicts, source)) => {
                    verdicts.first().map(|verdict| (*verdict, source)).ok_or(None)
                }
                step => Err(Some(step)),
            };
        }
        if let Some(verdict) = self.decide_carried_if_owned(check, OwnerRule::of(rule), now) {
            self.shared.counters.local.fetch_add(1, Ordering::Relaxed);
            return Ok((verdict, VerdictSource::Local));
        }
        // A cached refusal of which nothing was left stands for one that drains, too.
        let may_recall = !check.resets && check.at.is_none() && hits.charge() > 0;
        let counters = std::slice::from_ref(counter);
        let recalled = Some(()).filter(|()| may_recall).and_then(|()| {
            let verdict = *negative_cache.recall(counters, *hits, now)?.first()?;
            (!check.behavior.drains || verdict.remaining == 0).then_some(verdict)
        });
        let recalled = recalled.ok_or(None)?;
        self.shared.counters.cached.fetch_add(1, Ordering::Relaxed);
        Ok((recalled, VerdictSource::NegativeCache))
    }

    async fn decide_deferred(
        &self,
        mut deferred: Vec<Deferred<'_>>,
        now: Timestamp,
        verdicts: &mut [CarriedVerdict],
    ) {
        let is_alone = deferred.len() == 1;
        // With one check of a key all of them take the path on which hits are granted.
        let granted = |it: &&Deferred<'_>| self.asks_for_grants(it);
        let granted: BTreeSet<u64> =
            deferred.iter().filter(granted).map(|it| it.carried.counter.key.token).collect();
        let begun: Vec<_> = deferred.iter_mut().map(|it| it.begun.take()).collect();
        let deferred = &deferred;
        let mut chains: BTreeMap<u64, Vec<(&Deferred<'_>, Option<Step>)>> = BTreeMap::new();
        let mut to_owners: BTreeMap<(Option<NodeId>, bool), Vec<&Deferred<'_>>> = BTreeMap::new();
        let topology = self.shared.node.topology.load_full();
        let mut modes: BTreeMap<u64, KeyModes> = BTreeMap::new();
        // Mostly all of them are strict, as those are by default.
        if deferred.iter().any(|check| check.rule.mode == Mode::Leased) {
            for check in deferred {
                modes.entry(check.carried.counter.key.token).or_default().note(check);
            }
        }
        for (check, begun) in deferred.iter().zip(begun) {
            let token = check.carried.counter.key.token;
            let mode = modes.get(&token).copied().unwrap_or_default();
            let is_granted = granted.contains(&token) || (is_alone && is_of_rule(check));
            if is_granted || !mode.share_a_call() {
                chains.entry(token).or_default().push((check, begun));
            } else {
                let owner = topology.owner(check.rule.scope, token).cloned();
                to_owners.entry((owner, mode.is_leased)).or_default().push(check);
            }
        }
        let chains = chains.into_values().map(|chain| self.decide_chain(chain, now));
        let calls = to_owners.into_iter().map(|((owner, _), checks)| async move {
            let mut brought = Brought::new();
            // One after the other: checks of one key may be in several.
            for checks in checks.chunks(COMBINED_VERDICTS_MAX) {
                brought.extend(self.call_owner(owner.as_ref(), checks, now).await);
            }
            brought
        });
        let (chained, called) = join(join_all(chains), join_all(calls)).await;
        for (at, came, decided) in chained.into_iter().chain(called).flatten() {
            let found = deferred.binary_search_by_key(&at, |it| it.at);
            let Some(check) = found.ok().and_then(|found| deferred.get(found)) else { continue };
            let Some(slot) = verdicts.get_mut(at) else { continue };
            let (verdicts, source) = match decided {
                Ok((verdicts, source)) => (verdicts, source),
                Err(reason) => self.fall_back(check, reason, now),
            };
            let owner = topology.owner(check.rule.scope, check.carried.counter.key.token);
            let is_of_owner = matches!(source, VerdictSource::Owner | VerdictSource::NegativeCache);
            let owner = owner.filter(|_| is_of_owner).cloned();
            let now = if source == VerdictSource::Fallback { slot.now } else { came };
            if let Some(verdict) = verdicts.first() {
                *slot = CarriedVerdict { verdict: *verdict, now, source, owner };
            }
        }
    }

    /// Whether a check takes the path of leased rules: one that gives back what was granted, or one
    /// of a key for which hits are granted here, or are worth being asked for.
    fn asks_for_grants(&self, check: &Deferred<'_>) -> bool {
        let Deferred { rule, carried, .. } = check;
        let is_charge = carried.hits.charge() > 0;
        rule.mode == Mode::Leased
            && (carried.hits.refund() > 0
                || is_charge && self.asks_alone(&planned(carried, rule).limits()))
    }

    /// Decides checks of one key as any others, one after the other, the first from where it was
    /// begun.
    async fn decide_chain(
        &self,
        chain: Vec<(&Deferred<'_>, Option<Step>)>,
        now: Timestamp,
    ) -> Brought {
        let mut brought = Brought::new();
        let mut is_reachable = true;
        for (deferred, begun) in chain {
            let Deferred { at, rule, carried, .. } = deferred;
            let decided = if !is_reachable {
                Err(NoVerdict::Unavailable)
            } else if is_of_rule(deferred) {
                let check = planned(carried, rule);
                let step = begun.unwrap_or_else(|| self.begin(&check, carried.hits, now));
                Ok(self.finish(&check, carried.hits, step, now).await)
            } else {
                let decided = self.search_owner(rule, carried).await;
                decided.map(|(verdicts, source)| self.counted(verdicts, source))
            };
            // As in `search_each`; a plain one has fallen back already.
            let is_decided = |(_, source): &Decided| *source != VerdictSource::Fallback;
            is_reachable = decided.as_ref().is_ok_and(is_decided);
            brought.push((*at, self.shared.node.clock.now(), decided));
        }
        brought
    }

    /// Sends checks to the node that most likely owns their keys. What it does not own is sent to
    /// who does, key by key.
    async fn call_owner(
        &self,
        owner: Option<&NodeId>,
        checks: &[&Deferred<'_>],
        now: Timestamp,
    ) -> Brought {
        let cache = &self.shared.negative_cache;
        let tickets: Vec<_> =
            checks.iter().map(|it| cache.ticket(it.carried.counter.key.token)).collect();
        // A refusal asks for what is granted back, if one of the checks is leased.
        let leased = checks.iter().find(|it| it.rule.mode == Mode::Leased);
        let answer = match leased.or_else(|| checks.first()) {
            Some(first) => self.call_once(owner, first.rule, checks).await,
            None => return Brought::new(),
        };
        for check in checks.iter().filter(|check| check.carried.resets) {
            self.reset_held(check.carried.counter.key);
        }
        let came = self.shared.node.clock.now();
        let mut brought = Brought::new();
        let mut left: BTreeMap<u64, Vec<&Deferred<'_>>> = BTreeMap::new();
        for (at, check) in checks.iter().enumerate() {
            let key = check.carried.counter.key;
            match &answer {
                Err(Failure::Lost) => {
                    brought.push((check.at, came, Err(NoVerdict::Unavailable)));
                }
                Err(Failure::NotSent | Failure::NotOwner(_)) => {
                    left.entry(key.token).or_default().push(check);
                }
                Ok((verdicts, is_confirmed)) => match verdicts.get(at).copied().flatten() {
                    Some(verdict) => {
                        let Carried { counter, hits, .. } = &check.carried;
                        let verdicts: Verdicts = smallvec::smallvec![verdict];
                        if check.carried.gives_back() {
                            cache.forget(key.token);
                        } else if verdict.allowed && hits.charge() > 0 {
                            cache.admitted(counter);
                        } else if check.carried.at.is_none()
                            && let Some(ticket) = tickets.get(at)
                        {
                            let counters = std::slice::from_ref(counter);
                            cache.insert(*ticket, counters, *hits, &verdicts, now);
                        }
                        let is_confirmed = *is_confirmed
                            || !self.needs_replica(check.rule.durability, *hits, &verdicts);
                        let decided = (verdicts, VerdictSource::Owner);
                        brought.push((
                            check.at,
                            came,
                            is_confirmed.then_some(decided).ok_or(NoVerdict::Unconfirmed),
                        ));
                    }
                    None => left.entry(key.token).or_default().push(check),
                },
            }
        }
        let counted = brought.iter().filter(|(.., decided)| decided.is_ok()).count() as u64;
        self.shared.counters.forwarded.fetch_add(counted, Ordering::Relaxed);
        let searches = left.into_values().map(|chain| self.search_each(chain));
        brought.extend(join_all(searches).await.into_iter().flatten());
        brought
    }

    /// Has checks of one key decided by its owner, one after the other. The first that has no
    /// verdict has waited until its deadline: those after it would only wait as long, each.
    async fn search_each(&self, chain: Vec<&Deferred<'_>>) -> Brought {
        let mut brought = self.decide_run(&chain).await;
        let mut is_reachable = brought.iter().all(|(.., decided)| decided.is_ok());
        for Deferred { at, rule, carried, .. } in chain.into_iter().skip(brought.len()) {
            let decided = if is_reachable {
                self.search_owner(rule, carried).await
            } else {
                Err(NoVerdict::Unavailable)
            };
            is_reachable = decided.is_ok();
            let decided = decided.map(|(verdicts, source)| self.counted(verdicts, source));
            brought.push((*at, self.shared.node.clock.now(), decided));
        }
        brought
    }

    /// Decides checks of one key, as many of the first as this node owns. A copy that is made after
    /// the last of them has what each has counted: one confirms all.
    async fn decide_run(&self, chain: &[&Deferred<'_>]) -> Brought {
        let Some(first) = chain.first() else { return Brought::new() };
        let (rule, now) = (first.rule, self.shared.node.clock.now());
        let counters = std::slice::from_ref(&first.carried.counter);
        let owner_term = self.owner_term(rule.durability, counters, rule.scope);
        let mut run = Vec::with_capacity(chain.len());
        let mut counters: SmallVec<[Counter; 1]> = SmallVec::new();
        let mut awaiting: Option<Hits> = None;
        let mut gives_back = false;
        for Deferred { at, rule, carried, .. } in chain {
            let decided = self.decide_carried_if_owned(carried, OwnerRule::of(rule), now);
            let Some(verdict) = decided else { break };
            let verdicts: Verdicts = smallvec::smallvec![verdict];
            let waits = self.needs_replica(rule.durability, carried.hits, &verdicts);
            if waits {
                awaiting = awaiting.max(Some(carried.hits));
                if counters.iter().all(|counter| counter.key != carried.counter.key) {
                    counters.push(carried.counter);
                }
            }
            gives_back |= carried.gives_back();
            run.push((*at, verdicts, waits));
        }
        let is_confirmed = match awaiting {
            // What one check counts, another may give back.
            Some(hits) => {
                let hits = if gives_back { Hits::new(-1) } else { hits };
                let decided = (&counters[..], rule.scope, owner_term);
                self.is_confirmed(decided, hits, self.deadline(rule.scope)).await
            }
            None => true,
        };
        let came = self.shared.node.clock.now();
        let brought = run.into_iter().map(|(at, verdicts, waits)| {
            let decided = (is_confirmed || !waits)
                .then(|| self.counted(verdicts, VerdictSource::Local))
                .ok_or(NoVerdict::Unconfirmed);
            (at, came, decided)
        });
        brought.collect()
    }

    /// One call with several checks to one node.
    async fn call_once(
        &self,
        owner: Option<&NodeId>,
        rule: &Rule,
        checks: &[&Deferred<'_>],
    ) -> Result<Answer, Failure> {
        let Some(Peers { mesh, .. }) = &self.shared.peers else { return Err(Failure::NotSent) };
        let peer = owner.and_then(|owner| mesh.peer(owner)).ok_or(Failure::NotSent)?;
        if peer.version < CARRIED_CHECKS {
            return Err(Failure::NotSent);
        }
        let checks = checks.iter().map(|it| it.carried).collect();
        let deadline = Instant::now() + self.deadline(rule.scope);
        let call = self.carried_call(rule, checks, deadline);
        match send(mesh, &peer, &call, deadline).await {
            Err(CallError::NotConnected | CallError::Unreachable | CallError::Busy) => {
                Err(Failure::NotSent)
            }
            Err(CallError::Closed) => self.resend_carried(mesh, &peer, &call, deadline).await,
            sent => answer(sent, call.checks.len()),
        }
    }

    /// Sends a call again to the incarnation that `broken` was connected to.
    async fn resend_carried(
        &self,
        mesh: &Mesh,
        broken: &Peer,
        call: &CarriedCall,
        deadline: Instant,
    ) -> Result<Answer, Failure> {
        for pause in
            exponential(super::forward::RECONNECT_MIN, super::forward::RECONNECT_MAX).build()
        {
            let next = Instant::now() + pause;
            if next >= deadline {
                break;
            }
            sleep_until(next).await;
            let connected = timeout_at(deadline, mesh.reconnect(broken)).await;
            let Ok(Some(peer)) = connected else { continue };
            if peer.generation != broken.generation {
                break;
            }
            self.shared.counters.retried.fetch_add(1, Ordering::Relaxed);
            match send(mesh, &peer, call, deadline).await {
                Err(
                    CallError::NotConnected
                    | CallError::Unreachable
                    | CallError::Busy
                    | CallError::Closed,
                ) => {}
                sent => return answer(sent, call.checks.len()),
            }
        }
        Err(Failure::Lost)
    }

    /// Has one check decided by the owner of its key, wherever that is.
    async fn search_owner(&self, rule: &Rule, check: &Carried) -> Result<Decided, NoVerdict> {
        let decided = self.search_owner_until_found(rule, check).await;
        // Also if no answer came: it may have been reset.
        if check.resets {
            self.reset_held(check.counter.key);
        }
        decided
    }

    async fn search_owner_until_found(
        &self,
        rule: &Rule,
        check: &Carried,
    ) -> Result<Decided, NoVerdict> {
        let node = &self.shared.node;
        let key = check.counter.key;
        let deadline = Instant::now() + self.deadline(rule.scope);
        let search = OwnerSearch::new(self, rule.scope, key.token, deadline);
        let mut search = search.ok_or(NoVerdict::Unavailable)?;
        let call = self.carried_call(rule, smallvec::smallvec![*check], deadline);
        loop {
            let peer = match search.next().await? {
                Target::Peer(peer) => peer,
                Target::Here => {
                    let now = node.clock.now();
                    let counters = std::slice::from_ref(&check.counter);
                    let owner_term = self.owner_term(rule.durability, counters, rule.scope);
                    let verdict = self.decide_carried_if_owned(check, OwnerRule::of(rule), now);
                    let Some(verdict) = verdict else {
                        search.not_owned_here();
                        continue;
                    };
                    let verdicts: Verdicts = smallvec::smallvec![verdict];
                    let decided = (counters, rule.scope, owner_term);
                    let is_confirmed = !self.needs_replica(rule.durability, check.hits, &verdicts)
                        || self.is_confirmed(decided, awaited(check), search.left()).await;
                    let decided = (verdicts, VerdictSource::Local);
                    return is_confirmed.then_some(decided).ok_or(NoVerdict::Unconfirmed);
                }
            };
            if peer.version < CARRIED_CHECKS {
                return Err(NoVerdict::Unavailable);
            }
            let sent = match send(search.mesh, &peer, &call, deadline).await {
                Err(CallError::NotConnected) => continue,
                Err(CallError::Unreachable | CallError::Busy) => {
                    search.overloaded();
                    continue;
                }
                Err(CallError::Closed) => {
                    self.resend_carried(search.mesh, &peer, &call, deadline).await
                }
                sent => answer(sent, 1),
            };
            let (verdicts, is_confirmed) = match sent {
                Ok(answer) => answer,
                Err(Failure::NotOwner(holder)) => {
                    search.not_owner(holder);
                    continue;
                }
                Err(Failure::NotSent | Failure::Lost) => return Err(NoVerdict::Unavailable),
            };
            let verdict = verdicts.first().copied().flatten().ok_or(NoVerdict::Unavailable)?;
            if check.gives_back() {
                self.shared.negative_cache.forget(key.token);
            } else if verdict.allowed && check.hits.charge() > 0 {
                self.shared.negative_cache.admitted(&check.counter);
            }
            let verdicts: Verdicts = smallvec::smallvec![verdict];
            if !is_confirmed && self.needs_replica(rule.durability, check.hits, &verdicts) {
                return Err(NoVerdict::Unconfirmed);
            }
            return Ok((verdicts, VerdictSource::Owner));
        }
    }

    fn carried_call(
        &self,
        rule: &Rule,
        checks: SmallVec<[Carried; 1]>,
        deadline: Instant,
    ) -> CarriedCall {
        let Shared { node, next_check_id, .. } = &*self.shared;
        let left = deadline.saturating_duration_since(Instant::now());
        CarriedCall {
            id: next_check_id.fetch_add(checks.len() as u64, Ordering::Relaxed),
            scope: rule.scope,
            checks,
            durability: rule.durability,
            is_leased: rule.mode == Mode::Leased,
            deadline: running(node.clock.monotonic().plus(left.into())),
        }
    }

    fn fall_back(&self, check: &Deferred<'_>, reason: NoVerdict, now: Timestamp) -> Decided {
        let Shared { node, counters, .. } = &*self.shared;
        if reason == NoVerdict::Unconfirmed {
            counters.unconfirmed.fetch_add(1, Ordering::Relaxed);
        }
        RuleStats::add(&check.rule.stats.unavailable, 1);
        let planned = planned(&check.carried, check.rule);
        let topology = node.topology.load();
        let verdicts = fallback::decide(&planned, check.carried.hits, &topology, &node.store, now);
        self.counted(verdicts, VerdictSource::Fallback)
    }

    /// Decides a check, if this node owns its key. What ends a window or fills a bucket leaves what
    /// is granted of it charged, and asks it back. Of a leased limit it also leaves what the owner
    /// before may have granted; of others it only asks that back, as mostly there is nothing. Of a
    /// refusal the ledger knows: hits that come back after it end what others have cached.
    fn decide_carried_if_owned(
        &self,
        check: &Carried,
        rule: OwnerRule,
        now: Timestamp,
    ) -> Option<Verdict> {
        let Shared { node, grant_ledger, waiting_refunds, peers, .. } = &*self.shared;
        let key = check.counter.key;
        let counters = std::slice::from_ref(&check.counter);
        if peers.is_none() || !check.gives_back() {
            let owns = || node.ownership.decides(rule.scope, key.token);
            let decide = || node.store.check_carried_if(check, now, owns);
            let is_refused = |verdict: &Verdict| !verdict.allowed;
            let verdict = grant_ledger.note_refusals(counters, now, decide, is_refused)?;
            self.recall_if_refused(key, &verdict, now);
            self.announce_carried(check, rule.scope);
            return Some(verdict);
        }
        let (of_others, since) = self.unknown_grants(rule.scope, now);
        let unknown = if rule.is_leased { of_others } else { UnknownGrants::default() };
        let owns = || self.decides_since(rule.scope, key.token, since);
        let resets = check.resets && unknown.until.is_none();
        let place = if resets { waiting_refunds.place() } else { None };
        let limits = rule.limits(check);
        let charged = grant_ledger.enter(counters, None, now, |_, known| {
            // A reset takes what an earlier one was going to take.
            let granted = if check.resets { known.outstanding.clone() } else { known.of_refund() };
            let outstanding = unknown.beside(counters, &granted);
            let outstanding = outstanding.first().copied().unwrap_or_default();
            let (result, refunded) =
                node.store.check_carried_beside_if(check, outstanding, now, owns)?;
            let is_left = refunded.iter().any(|refunded| refunded.left > 0);
            let reset = match (resets, is_left && place.is_some()) {
                (false, _) => Reset::No,
                (true, false) => Reset::Whole,
                (true, true) => Reset::BesideGrants,
            };
            let is_refused = !result.allowed;
            let each = refunded.iter().copied().enumerate();
            let left = if resets { None } else { self.note_left(&limits, each, known, now) };
            Some(Charged { is_refused, refunded, reset, ..Charged::of((result, left)) })
        })?;
        let (verdict, left) = charged.result;
        if of_others.until.is_some() {
            self.recall_from_all(key, check.resets);
        }
        self.recall_if_refused(key, &verdict, now);
        if check.resets {
            // Of an owner before this node.
            self.reset_held(key);
            let place = place.filter(|_| charged.reset == Reset::BesideGrants);
            self.after_reset(&limits, left, unknown, place, now);
        } else {
            self.take_later(&limits, left, unknown, now);
        }
        self.announce_carried(check, rule.scope);
        Some(verdict)
    }

    /// After a check that may let others pass: every node forgets what it cached.
    fn announce_carried(&self, check: &Carried, scope: Scope) {
        self.announce_moved_windows();
        if check.gives_back() {
            let counters = std::slice::from_ref(&check.counter);
            self.announce_refund(scope, counters, Hits::new(-1));
        }
    }

    /// What other nodes hold is asked back, whether or not this request may hold any: it may be
    /// what others were granted that refuses it.
    fn recall_if_refused(&self, key: KeyHash, verdict: &Verdict, now: Timestamp) {
        if !verdict.allowed {
            self.recall(key, None, now);
        }
    }

    /// A limit that a request carries has refused, for an operator to see.
    #[cold]
    fn note_refused_carried(&self, check: &CarriedCheck<'_>, now: Timestamp) {
        let Shared { options, refused_keys, .. } = &*self.shared;
        let rules = &options.carried_rules;
        let rule = if check.is_leased { &rules.leased } else { &rules.strict };
        let entries = [
            Entry { key: "name", value: check.name },
            Entry { key: "unique_key", value: check.unique_key },
        ];
        let key = self.carried(check, rule).0.counter.key;
        refused_keys.refused(key, &rule.id, &entries, check.hits.charge(), now);
    }
}

// === impl Decider: for peers ===

impl Decider {
    /// Decides the checks that `from` sent because this node owns their keys, in their order, each
    /// once. The second result waits for a replica, if it has to.
    pub fn carried_for_peer(
        &self,
        from: (&NodeId, Generation),
        call: &CarriedCall,
    ) -> (Reply, Option<impl Future<Output = Reply> + Send + use<>>) {
        let Shared { node, counters: stats, dedup_cache, .. } = &*self.shared;
        let sender = node_actor(from.0, from.1);
        let now = node.clock.now();
        let mut verdicts: SmallVec<[Option<Verdict>; 1]> = SmallVec::new();
        let mut awaiting: Vec<(KeyHash, Hits)> = Vec::new();
        let mut owner_terms: SmallVec<[Option<OwnerTerm>; 1]> = SmallVec::new();
        let (mut served, mut again) = (0, 0);
        let CarriedCall { scope, durability, is_leased, .. } = *call;
        let rule = OwnerRule { scope, durability, is_leased };
        for (at, check) in call.checks.iter().enumerate() {
            let key = check.counter.key;
            let counters = std::slice::from_ref(&check.counter);
            let owner_term = self.owner_term(call.durability, counters, call.scope);
            let decide = || {
                let verdict = self.decide_carried_if_owned(check, rule, now)?;
                Some((smallvec::smallvec![verdict], owner_term))
            };
            let (decided, owner_term) =
                match dedup_cache.once(sender, call.id.wrapping_add(at as u64), decide) {
                    Some(Once::First(decided)) => {
                        served += 1;
                        decided
                    }
                    Some(Once::Again(decided)) => {
                        again += 1;
                        decided
                    }
                    None => (Verdicts::new(), None),
                };
            if self.needs_replica(call.durability, check.hits, &decided) && !decided.is_empty() {
                awaiting.push((key, awaited(check)));
                owner_terms.push(owner_term);
            }
            verdicts.push(decided.first().copied());
        }
        stats.served.fetch_add(served, Ordering::Relaxed);
        stats.deduplicated.fetch_add(again, Ordering::Relaxed);
        let not_owned = call.checks.len() as u64 - served - again;
        stats.not_owner.fetch_add(not_owned, Ordering::Relaxed);
        if served + again == 0
            && let Some(first) = call.checks.first()
        {
            let holder = node.ownership.transferred_to(first.counter.key.token);
            let epoch = node.ownership.owned_ranges().epoch;
            return (Reply::NotOwner { epoch, holder }, None);
        }
        let reply = Reply::Carried { verdicts, is_confirmed: true };
        let (decider, scope, deadline) = (self.clone(), call.scope, self.deadline(call.scope));
        let copied = (!awaiting.is_empty()).then(|| {
            let confirmed = reply.clone();
            // What one check counts, another may give back.
            let given_back = call.checks.iter().filter(|check| check.gives_back());
            let given_back: BTreeSet<KeyHash> = given_back.map(|it| it.counter.key).collect();
            for (key, hits) in &mut awaiting {
                if given_back.contains(key) {
                    *hits = Hits::new(-1);
                }
            }
            async move {
                let is_confirmed = decider.are_copied(&awaiting, deadline).await
                    && owner_terms.iter().all(|term| decider.is_owner_since(scope, *term));
                match confirmed {
                    Reply::Carried { verdicts, .. } => Reply::Carried { verdicts, is_confirmed },
                    other => other,
                }
            }
        });
        (reply, copied)
    }
}

impl OwnerRule {
    fn of(rule: &Rule) -> Self {
        let is_leased = rule.mode == Mode::Leased;
        Self { scope: rule.scope, durability: rule.durability, is_leased }
    }

    fn limits(self, check: &Carried) -> Limits {
        let Self { scope, durability, .. } = self;
        let counters = smallvec::smallvec![check.counter];
        Limits { scope, durability, leased: None, is_share: false, counters }
    }
}

/// Verdicts by check, and whether a replica has what was counted.
type Answer = (SmallVec<[Option<Verdict>; 1]>, bool);

/// Why a call brought nothing.
enum Failure {
    /// Nothing was counted.
    NotSent,
    /// Nothing was counted: the peer owns none of the keys, and handed the first of them to this
    /// node if it ever owned it.
    NotOwner(Option<NodeId>),
    /// Checks may have been counted.
    Lost,
}

async fn send(
    mesh: &Mesh,
    peer: &Arc<Peer>,
    call: &CarriedCall,
    deadline: Instant,
) -> Result<Reply, CallError> {
    let left = deadline.saturating_duration_since(Instant::now());
    mesh.call_peer(peer, StreamClass::Checks, Call::Carried(Box::new(call.clone())), left).await
}

fn answer(sent: Result<Reply, CallError>, checks: usize) -> Result<Answer, Failure> {
    match sent {
        Ok(Reply::Carried { verdicts, is_confirmed }) if verdicts.len() == checks => {
            Ok((verdicts, is_confirmed))
        }
        Ok(Reply::NotOwner { holder, .. }) => Err(Failure::NotOwner(holder)),
        _ => Err(Failure::Lost),
    }
}

/// Whether it is decided as any check of its rule. A refund of a strict one is not: its owner has
/// to see what it granted to `GLOBAL` requests of the same key.
fn is_of_rule(check: &Deferred<'_>) -> bool {
    let Deferred { rule, carried, .. } = check;
    carried.is_plain() && (rule.mode == Mode::Leased || carried.hits.refund() == 0)
}

/// The hits of the check to those who wait for its copy: below zero if nothing may be left to copy.
fn awaited(check: &Carried) -> Hits {
    if check.gives_back() { Hits::new(-1) } else { check.hits }
}

/// The check as one of its rule.
fn planned(check: &Carried, rule: &Arc<Rule>) -> PlannedCheck {
    PlannedCheck {
        rule: rule.clone(),
        counters: smallvec::smallvec![check.counter],
        hits: check.hits,
        tally_name: None,
        metadata: None,
        blocked_until: Timestamp::EPOCH,
    }
}

//! Reservations: work whose cost is known late keeps an amount of its limits free until the cost is
//! committed ([`engine::reservation`](tidegate_limiter::engine::reservation) has the idea).
//!
//! The owner of a key decides whether an amount fits beside what is used and what is reserved, of
//! all limits of a descriptor under one lock. A request with several descriptors reserves of each
//! at its owner, at once, under one id; if any refuses, or the caller goes meanwhile, the others
//! are released. Nothing is charged by a reservation, so nothing has to be given back when it ends
//! by itself.
//!
//! ```text
//! reserve ─▶ owner of each descriptor ─┬─ all admit ──▶ id
//!                                      └─ one refuses ▶ the others are released, no id
//! commit(id) ─▶ the owners again: counted once, to whichever node it was sent, and however often
//! ```
//!
//! **Where.** The owner of a strict or leased rule; of an eventual one the owner of its key in this
//! region, and the other nodes do not see what is reserved there. Of a leased rule of `scope:
//! global` the share of the region where the key is at home.
//!
//! **Without an owner** that answers in time a reservation is decided by the rule's
//! `on_unavailable`: what is then admitted is not reserved, and its commit is a report. A commit is
//! no verdict, and waits for an owner for [`COMMIT_PATIENCE`]; then it fails, and may be sent again
//! with the same id.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use backon::BackoffBuilder;
use futures_util::future::join_all;
use smallvec::SmallVec;
use tidegate_cluster::backoff::exponential;
use tidegate_cluster::mesh::codec::RESERVATIONS;
use tidegate_cluster::mesh::wire::{Call, CommitCall, End, Reply, ReserveCall};
use tidegate_cluster::mesh::{CallError, StreamClass, running};
use tidegate_cluster::ownership::{OwnerTerm, Standing};
use tidegate_limiter::descriptor::Descriptor;
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::engine::reservation::{REMEMBERED, TTL_MAX};
use tidegate_limiter::policy::{Durability, Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{
    self, Applied, AwaitsCopy, Counter, KeyHash, LocalActor, Made, ReservationId, Reserved,
    Settled, Settlement, Verdicts,
};
use tidegate_limiter::units::{Hits, Span, Timestamp};
use tidegate_rules::stats::RuleStats;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::blocked_by_hand::refusals;
use super::check::{CheckRequest, CheckResponse, Decide, Status, VerdictSource};
use super::decider::{Decider, Shared};
use super::fallback;
use super::limits::Limits;
use super::outcome::NoVerdict;
use super::owner_search::{OwnerSearch, Target};
use super::plan::{PlannedCheck, Planner, Plans, descriptor_hash};
use super::region_limits::Shares;

/// The time to live of a reservation that names none.
pub const TTL_DEFAULT: Span = Span::from_secs(60);
/// How long a commit waits for an owner: longer than the ring takes to replace one that died, and
/// less than a request may take.
pub const COMMIT_PATIENCE: Duration = Duration::from_secs(4);
/// How much longer a commit that no replica has confirmed is followed while the node is the owner.
const UNCONFIRMED_MAX: Duration = Duration::from_secs(10);
/// How soon it is seen that the lease has ended, or the key is lost.
const LOSS_SEEN_WITHIN: Duration = Duration::from_millis(20);
/// How long a replica is then asked each time.
const COPIED_AGAIN: Duration = Duration::from_secs(1);
/// The pauses before a call whose connection broke, or that found no owner, is sent again.
const AGAIN_MIN: Duration = Duration::from_millis(2);
const AGAIN_MAX: Duration = Duration::from_millis(128);
/// How long a node that leaves waits at most until owners have what it gives back.
const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(2);
/// The limit of a counter beside which only a reservation is looked for.
const NO_LIMIT: u32 = u32::MAX;

/// Reserves, and commits, as listeners see it.
pub trait Reserve: Decide {
    /// Keeps an amount free of all limits of a request, or of none. Never fails: when no owner
    /// answers, the rule's `on_unavailable` does.
    fn reserve(&self, request: ReserveRequest<'_>) -> impl Future<Output = Reservation> + Send;

    /// Ends a reservation, and counts what it cost, in the limits that apply now. The same again
    /// changes nothing.
    ///
    /// # Errors
    ///
    /// If not all owners have confirmed it. It may have been counted, and may be sent again.
    fn commit(
        &self,
        request: CommitRequest<'_>,
    ) -> impl Future<Output = Result<Committed, Uncommitted>> + Send;
}

/// What is to be kept free.
#[derive(Clone, Copy, Debug)]
pub struct ReserveRequest<'a> {
    pub domain: &'a str,
    /// Each is of its own amount if it carries hits.
    pub descriptors: &'a [Descriptor<'a>],
    /// In hits of every descriptor without its own. Zero reserves nothing: it is a peek. More than
    /// any limit counts as `u32::MAX`.
    pub amount: u64,
    /// [`TTL_DEFAULT`] if it is `None`; at most the shortest window of the limits and an hour.
    pub ttl: Option<Span>,
    /// Of a reservation that is to last longer: it is the same one, and its time begins anew.
    pub id: Option<ReservationId>,
}

/// The response to a [`ReserveRequest`].
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The verdicts, one status per descriptor. What remains is left beside the reservation.
    pub response: CheckResponse,
    /// Present if it is allowed.
    pub id: Option<ReservationId>,
    /// How long it lasts.
    pub ttl: Span,
}

/// What a reservation cost.
#[derive(Clone, Copy, Debug)]
pub struct CommitRequest<'a> {
    pub domain: &'a str,
    /// Those of the reservation.
    pub descriptors: &'a [Descriptor<'a>],
    /// `None` reports a cost for which nothing was reserved.
    pub id: Option<ReservationId>,
    /// In hits of every descriptor without its own. Zero releases the reservation. More than any
    /// limit counts as `u32::MAX`.
    pub cost: u64,
}

/// What became of a commit.
#[derive(Clone, Debug)]
pub struct Committed {
    /// Reported, if any descriptor was; repeated, if all were. `None` if no limit applies to any,
    /// or none does any more: nothing was counted, and what was reserved of rules that are still
    /// there is free again.
    pub settled: Option<Settled>,
    /// What is left.
    pub response: CheckResponse,
}

/// Not all owners have confirmed a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no owner has confirmed it in time; send it again with the same id, which counts once")]
pub struct Uncommitted;

/// What an owner is asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Reserve { amount: u32, ttl: Span },
    Commit { cost: Hits, remembered: Span },
    Undo(Made),
}

/// What an owner answers.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Reserved(Reserved),
    Committed(Settlement),
}

/// What this node has answered, as the owner of the key.
#[derive(Debug)]
struct Decision {
    answer: Answer,
    /// `None` for a standalone node.
    owner_term: Option<OwnerTerm>,
    /// Of a commit that has to wait for a replica.
    awaits_copy: Option<AwaitsCopy>,
}

/// What the owners said to the parts of a request to reserve. What it has reserved is given back
/// when this is dropped: a limit has refused it, or its caller has gone.
#[derive(Debug)]
struct Asking {
    decider: Decider,
    parts: Vec<Option<Part>>,
    /// Of each part.
    answers: Vec<Option<Answered>>,
    /// No client has the id before the request is admitted.
    is_new: bool,
    ttl: Span,
    /// A node that leaves waits for it.
    _giving_back: TaskTrackerToken,
}

/// What an owner answered, and where that comes from.
type Answered = Result<(Answer, VerdictSource), NoVerdict>;

/// One descriptor's part of a request.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) limits: Limits,
    pub(super) key: KeyHash,
    pub(super) asked: Asked,
}

// === impl Decider: for clients ===

impl Reserve for Decider {
    async fn reserve(&self, request: ReserveRequest<'_>) -> Reservation {
        let ReserveRequest { domain, descriptors, amount, ttl, id } = request;
        let is_new = id.is_none();
        let id = id.unwrap_or_else(|| self.next_reservation());
        let ttl = ttl.unwrap_or(TTL_DEFAULT);
        let (plans, now) = self.plan_reservation(domain, descriptors, amount);
        let ask = |check: &PlannedCheck| Asked::Reserve { amount: narrow(check.hits), ttl };
        let ids = ids_of_each(&plans, id);
        let part = |(plan, id): (&Option<PlannedCheck>, &ReservationId)| {
            let check = limited(plan.as_ref()).filter(|check| refusals(check, now).is_none())?;
            Some(self.part(check, *id, ask(check)))
        };
        let parts = plans.iter().zip(&ids).map(part).collect();
        let asked = self.ask_each(parts, is_new, ttl).await;
        // An id that was there may last longer than what is asked for.
        let mut shortest = None;
        let statuses = plans.iter().enumerate().map(|(at, plan)| {
            let Some(check) = limited(plan.as_ref()) else {
                return no_limit(plan.as_ref());
            };
            if let Some(verdicts) = refusals(check, now) {
                return status(check, verdicts, VerdictSource::Blocked);
            }
            let answer = asked.answers.get(at).and_then(Option::as_ref);
            let Some(Ok((Answer::Reserved(Reserved { verdicts, ttl, .. }), source))) = answer
            else {
                let (verdicts, source) = self.reserve_without_owner(check, now);
                return status(check, verdicts, source);
            };
            if is_within(verdicts) {
                shortest = Some(shortest.map_or(*ttl, |shortest: Span| shortest.min(*ttl)));
            }
            status(check, verdicts.clone(), *source)
        });
        let response = CheckResponse::new(statuses.collect(), false);
        let counters = &self.shared.counters.reservations;
        for (check, status) in plans.iter().zip(&response.statuses) {
            if let Some(check) = check.as_ref().filter(|_| !is_within(&status.verdicts)) {
                let RuleStats { denied, shadowed, .. } = &*check.rule.stats;
                RuleStats::add(if status.allowed { shadowed } else { denied }, check.hits.charge());
            }
        }
        if response.allowed {
            counters.reserved.fetch_add(1, Ordering::Relaxed);
            asked.keep();
            return Reservation { response, id: Some(id), ttl: shortest.unwrap_or(ttl) };
        }
        counters.refused.fetch_add(1, Ordering::Relaxed);
        Reservation { response, id: None, ttl: Span::ZERO }
    }

    async fn commit(&self, request: CommitRequest<'_>) -> Result<Committed, Uncommitted> {
        let CommitRequest { domain, descriptors, id, cost } = request;
        let (mut plans, _) = self.plan_reservation(domain, descriptors, cost);
        let mut has_limits = false;
        for (plan, descriptor) in plans.iter_mut().zip(descriptors) {
            let Some(check) = plan else { continue };
            has_limits |= check.has_limits();
            if !check.has_limits() && id.is_some() {
                self.find_reservation(check, domain, descriptor);
            }
        }
        // The name of a report is of no use after it.
        let remembered = if id.is_some() { REMEMBERED } else { COMMIT_PATIENCE.into() };
        let id = id.unwrap_or_else(|| self.next_reservation());
        let ids = ids_of_each(&plans, id);
        let asked = plans.iter().zip(&ids).map(async |(plan, id)| {
            let check = limited(plan.as_ref())?;
            let part = self.part(check, *id, Asked::Commit { cost: check.hits, remembered });
            if is_without_limit(check) {
                // What cannot be released now ends by itself.
                let _ =
                    self.ask_owner(&part.released(Span::ZERO), self.patience(&part.limits)).await;
                return None;
            }
            Some(self.ask_until(&part, COMMIT_PATIENCE).await)
        });
        let answers = join_all(asked);
        let (mut settled, mut costs) = (None, false);
        let mut statuses = SmallVec::new();
        for ((plan, answer), descriptor) in plans.iter().zip(answers.await).zip(descriptors) {
            let (Some(check), Some(answer)) = (plan, answer) else {
                statuses.push(no_limit(plan.as_ref()));
                continue;
            };
            let Ok((Answer::Committed(settlement), source)) = answer else {
                return Err(Uncommitted);
            };
            let Settlement { settled: found, verdicts, .. } = settlement;
            if found != Settled::Again {
                RuleStats::add(&check.rule.stats.allowed, check.hits.charge());
            }
            // One with no hits of its own reserves nothing, so there is nothing to be found.
            if descriptor.hits.is_none_or(|hits| hits.charge() > 0) {
                settled = Some(settled.map_or(found, |before| of_both(before, found)));
            }
            costs |= check.hits.charge() > 0;
            statuses.push(Status { allowed: true, ..status(check, verdicts, source) });
        }
        let settled = has_limits.then(|| settled.unwrap_or(Settled::Reported));
        let counters = &self.shared.counters.reservations;
        let counter = match settled {
            Some(Settled::Committed) if !costs => &counters.released,
            Some(Settled::Committed) => &counters.committed,
            Some(Settled::Again) => &counters.repeated,
            Some(Settled::Reported) => &counters.reported,
            None => &counters.unlimited,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(Committed { settled, response: CheckResponse { allowed: true, statuses } })
    }
}

impl Decider {
    /// An id that no other reservation has.
    pub(super) fn next_reservation(&self) -> ReservationId {
        let Shared { node, next_check_id, .. } = &*self.shared;
        let actor = node.incarnation.actor();
        let number = next_check_id.fetch_add(1, Ordering::Relaxed);
        let unique = [actor.writer(), actor.start(), number].map(u64::to_le_bytes).concat();
        node.hasher.reservation(&unique)
    }

    /// The limits of a request, each with its amount; `None` where no limit applies.
    fn plan_reservation(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        amount: u64,
    ) -> (Plans, Timestamp) {
        let Shared { node, rules, without_envoy, options, .. } = &*self.shared;
        let (book, tallies) = (rules.book.load_full(), &*rules.tallies);
        let hits = Hits::new(i64::try_from(amount).unwrap_or(i64::MAX));
        let request = CheckRequest { domain, descriptors, hits, for_envoy: false };
        let planner = Planner {
            book: &book,
            hasher: &node.hasher,
            interventions: &node.interventions,
            envoy: without_envoy,
            on_unavailable: options.on_unavailable,
            tallies,
        };
        let mut plans = planner.plan(&request);
        for check in plans.iter_mut().flatten() {
            check.hits = Hits::new(i64::from(narrow(check.hits)));
        }
        (plans, node.clock.now())
    }

    /// The rule of a descriptor may have had limits when something was reserved of it, and has none
    /// any more: the key of the reservation is the same beside any limit.
    fn find_reservation(
        &self,
        check: &mut PlannedCheck,
        domain: &str,
        descriptor: &Descriptor<'_>,
    ) {
        let Shared { node, rules, .. } = &*self.shared;
        let book = rules.book.load();
        let Some(found) = book.find(domain, &descriptor.entries) else { return };
        let mut hash = descriptor_hash(&node.hasher, domain, &descriptor.entries, &found);
        if let Some(intervention) = node.interventions.find(hash) {
            hash = intervention.counts_as();
        }
        let Ok(quota) = Quota::simple(Algorithm::FixedWindow, NO_LIMIT, Span::from_secs(1)) else {
            return;
        };
        let key = hash.counter(&quota, check.rule.mode, check.rule.scope);
        check.counters = smallvec::smallvec![Counter { key, quota }];
    }

    fn part(&self, check: &PlannedCheck, id: ReservationId, asked: Asked) -> Part {
        let mut limits = check.limits();
        if check.rule.mode == Mode::Eventual {
            // Each region counts what its nodes admit, and has an owner of the key.
            limits.scope = Scope::Region;
        } else if self.is_divided(&check.rule) {
            let topology = self.shared.node.topology.load();
            let shares = Shares::of(&limits, topology.homes().everywhere(), &topology.region);
            // The home goes on with the key.
            limits = shares.and_then(|shares| shares.parts.into_iter().next()).unwrap_or(limits);
        }
        let key = KeyHash::of_reservation(&limits.counters, id);
        Part { limits, key, asked }
    }

    /// What `on_unavailable` says.
    fn reserve_without_owner(
        &self,
        check: &PlannedCheck,
        now: Timestamp,
    ) -> (Verdicts, VerdictSource) {
        let Shared { node, counters, .. } = &*self.shared;
        RuleStats::add(&check.rule.stats.unavailable, 1);
        counters.fallback.fetch_add(1, Ordering::Relaxed);
        let topology = node.topology.load();
        let verdicts = fallback::decide(check, check.hits, &topology, &node.store, now);
        (verdicts, VerdictSource::Fallback)
    }

    /// Asks the owner of each part. That goes on when the caller goes: what an owner reserves, and
    /// how much of it was there before, is known from its answer alone.
    async fn ask_each(&self, parts: Vec<Option<Part>>, is_new: bool, ttl: Span) -> Asking {
        let asking = |parts| Asking {
            decider: self.clone(),
            parts,
            answers: Vec::new(),
            is_new,
            ttl,
            _giving_back: self.shared.giving_back.token(),
        };
        let mut asked = asking(parts);
        let asked = async move {
            let Asking { decider, parts, .. } = &asked;
            let answers = join_all(parts.iter().map(async |part| match part {
                Some(part) => Some(decider.ask_owner(part, decider.patience(&part.limits)).await),
                None => None,
            }));
            let answers = answers.await;
            asked.answers = answers;
            asked
        };
        match &self.shared.runtime {
            None => asked.await,
            // What it returns is dropped, and given back, if its caller waits for it no more.
            Some(runtime) => runtime.spawn(asked).await.unwrap_or_else(|_| asking(Vec::new())),
        }
    }

    /// Runs what gives something back in the background. A node that leaves waits for it.
    pub(super) fn give_back_in_background(
        &self,
        giving: impl Future<Output = ()> + Send + 'static,
    ) {
        let Shared { giving_back, runtime, .. } = &*self.shared;
        if let Some(runtime) = runtime {
            giving_back.spawn_on(giving, runtime);
        }
    }

    /// Waits until what requests have reserved in vain is given back, as their node leaves; for
    /// [`GIVE_BACK_TIMEOUT`] at most.
    pub async fn have_given_back(&self) {
        let giving_back = &self.shared.giving_back;
        giving_back.close();
        // Of an owner that cannot be reached it stays reserved until its time is over.
        let _ = timeout(GIVE_BACK_TIMEOUT, giving_back.wait()).await;
    }

    /// Gives back, in the background, what was reserved of a request that another limit refused: by
    /// commits without a cost, or undone. When `ttl` is over it has ended by itself.
    fn give_back_later(&self, parts: Vec<Part>, ttl: Span) {
        if parts.is_empty() {
            return;
        }
        let decider = self.clone();
        self.give_back_in_background(async move {
            let waiting = decider.shared.releases_waiting.clone().try_acquire_owned();
            let patience = waiting.as_ref().map_or(Span::ZERO, |_| ttl.min(TTL_MAX));
            let deadline = Instant::now() + patience.to_std();
            join_all(parts.iter().map(|part| decider.ask_to_end(part, deadline))).await;
        });
    }

    /// Asks once, and then until the deadline.
    async fn ask_to_end(&self, part: &Part, deadline: Instant) {
        while self.ask_until(part, COMMIT_PATIENCE).await.is_err() && Instant::now() < deadline {}
    }
}

// === impl Decider: routing ===

impl Decider {
    /// As [`Decider::ask_owner`], again and again while no owner is found.
    pub(super) async fn ask_until(
        &self,
        part: &Part,
        patience: Duration,
    ) -> Result<(Answer, VerdictSource), NoVerdict> {
        let deadline = Instant::now() + patience;
        let mut pauses = exponential(AGAIN_MIN, AGAIN_MAX).build();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = self.ask_owner(part, left).await;
            let pause = pauses.next().unwrap_or(AGAIN_MAX);
            if answer.is_ok() || Instant::now() + pause >= deadline {
                return answer;
            }
            sleep(pause).await;
        }
    }

    /// The answer of the owner, which may be this node, and where it comes from. A call whose
    /// connection breaks is sent again: an owner applies it once.
    pub(super) async fn ask_owner(
        &self,
        part: &Part,
        patience: Duration,
    ) -> Result<(Answer, VerdictSource), NoVerdict> {
        let Shared { node, .. } = &*self.shared;
        let Part { limits, key, .. } = part;
        let deadline = Instant::now() + patience;
        let here = || self.decide_part(part, node.clock.now());
        if let Some(decision) = here() {
            return self.once_copied(part, decision, patience).await;
        }
        let search = OwnerSearch::new(self, limits.scope, key.token, deadline);
        let mut search = search.ok_or(NoVerdict::Unavailable)?;
        let mut again = exponential(AGAIN_MIN, AGAIN_MAX).build();
        loop {
            let peer = match search.next().await? {
                Target::Peer(peer) => peer,
                Target::Here => {
                    if let Some(decision) = here() {
                        return self.once_copied(part, decision, search.left()).await;
                    }
                    search.not_owned_here();
                    continue;
                }
            };
            if peer.version < RESERVATIONS {
                return Err(NoVerdict::Unavailable);
            }
            let left = search.left();
            let call = part.call(running(node.clock.monotonic().plus(left.into())));
            let source = VerdictSource::Owner;
            match search.mesh.call_peer(&peer, StreamClass::Checks, call, left).await {
                Ok(Reply::Reserved { verdicts, ttl, made }) => {
                    return Ok((Answer::Reserved(Reserved { verdicts, ttl, made }), source));
                }
                Ok(Reply::Committed { settled, verdicts }) => {
                    let settlement = Settlement {
                        settled,
                        verdicts,
                        frees: false,
                        is_remembered: true,
                        applied: None,
                    };
                    return Ok((Answer::Committed(settlement), source));
                }
                Ok(Reply::NotOwner { holder, .. }) => search.not_owner(holder),
                Ok(Reply::Unconfirmed) => return Err(NoVerdict::Unconfirmed),
                Ok(_) | Err(CallError::Timeout | CallError::Declined) => {
                    return Err(NoVerdict::Unavailable);
                }
                Err(CallError::NotConnected) => {}
                Err(CallError::Unreachable | CallError::Busy) => search.overloaded(),
                Err(CallError::Closed) => {
                    search.begin_again(again.next().unwrap_or(AGAIN_MAX)).await?;
                }
            }
        }
    }

    /// The answer of this node once a replica has it, if it needs one.
    async fn once_copied(
        &self,
        part: &Part,
        mut decision: Decision,
        patience: Duration,
    ) -> Result<(Answer, VerdictSource), NoVerdict> {
        let is_confirmed = match self.copying(part, &mut decision, patience) {
            Some(copying) => copying.await,
            None => true,
        };
        is_confirmed
            .then_some((decision.answer, VerdictSource::Local))
            .ok_or(NoVerdict::Unconfirmed)
    }
}

// === impl Decider: the owner ===

impl Decider {
    /// Reserves for a peer, or commits. The second result waits for a replica, if it has to.
    pub fn reserve_for_peer(
        &self,
        call: &ReserveCall,
    ) -> (Reply, Option<impl Future<Output = Reply> + Send + use<>>) {
        let ReserveCall { scope, counters, reservation, amount, ttl, durability, .. } = call;
        let asked = Asked::Reserve { amount: *amount, ttl: *ttl };
        self.answer_peer(*scope, counters, *durability, *reservation, asked)
    }

    /// As [`Decider::reserve_for_peer`].
    pub fn commit_for_peer(
        &self,
        call: &CommitCall,
    ) -> (Reply, Option<impl Future<Output = Reply> + Send + use<>>) {
        let CommitCall { scope, counters, reservation, end, durability } = call;
        let asked = match *end {
            End::Settled { cost, remembered } => Asked::Commit { cost, remembered },
            End::Undone(made) => Asked::Undo(made),
        };
        self.answer_peer(*scope, counters, *durability, *reservation, asked)
    }

    fn answer_peer(
        &self,
        scope: Scope,
        counters: &SmallVec<[Counter; 1]>,
        durability: Durability,
        key: KeyHash,
        asked: Asked,
    ) -> (Reply, Option<impl Future<Output = Reply> + Send + use<>>) {
        let is_malformed = match asked {
            Asked::Commit { cost, .. } => cost.refund() > 0,
            Asked::Undo(made) => made.before > made.amount,
            Asked::Reserve { .. } => false,
        };
        let is_beside = |counter: &Counter| counter.key.token == key.token;
        if counters.is_empty() || !counters.iter().all(is_beside) || is_malformed {
            return (Reply::Malformed, None);
        }
        let counters = counters.clone();
        let limits = Limits { scope, durability, leased: None, is_share: false, counters };
        let part = Part { limits, key, asked };
        let Shared { node, counters: stats, .. } = &*self.shared;
        let Some(mut decision) = self.decide_part(&part, node.clock.now()) else {
            stats.not_owner.fetch_add(1, Ordering::Relaxed);
            let epoch = node.ownership.owned_ranges().epoch;
            let holder = node.ownership.transferred_to(key.token);
            return (Reply::NotOwner { epoch, holder }, None);
        };
        stats.served.fetch_add(1, Ordering::Relaxed);
        let copying = self.copying(&part, &mut decision, self.deadline(scope));
        let reply = match decision.answer {
            Answer::Reserved(Reserved { verdicts, ttl, made }) => {
                Reply::Reserved { verdicts, ttl, made }
            }
            Answer::Committed(Settlement { settled, verdicts, .. }) => {
                Reply::Committed { settled, verdicts }
            }
        };
        let confirmed = reply.clone();
        let copied = copying.map(|copying| async move {
            if copying.await { confirmed } else { Reply::Unconfirmed }
        });
        (reply, copied)
    }

    /// Applies what is asked, if this node decides the key.
    fn decide_part(&self, part: &Part, now: Timestamp) -> Option<Decision> {
        let Part { limits, key, asked } = part;
        let Shared { node, peers, .. } = &*self.shared;
        let owner_term = Cell::new(None);
        let owns = || {
            owner_term.set(node.ownership.owner_term(limits.scope, key.token));
            peers.is_none() || owner_term.get().is_some()
        };
        let me = self.as_writer(limits);
        let counters = &limits.counters;
        // Before it is counted: a snapshot may come in between.
        let waits = matches!(asked, Asked::Commit { .. })
            && limits.durability == Durability::Replicated
            && peers.is_some();
        let awaits_copy = waits.then(|| node.store.awaits_copy(*key));
        let answer = match *asked {
            Asked::Reserve { amount, ttl } => {
                let reserve = store::Reserve { key: *key, amount, ttl };
                let reserved = node.store.reserve_if(counters, &reserve, me, now, owns)?;
                if !is_within(&reserved.verdicts)
                    && let Some(key) = limits.key()
                {
                    // Of a leased rule: what other nodes hold and do not need.
                    self.recall(key, None, now);
                }
                Answer::Reserved(reserved)
            }
            Asked::Commit { cost, remembered } => {
                let commit = store::Commit { key: *key, cost, remembered };
                let settlement = self.charge_beside_grants(limits, now, |outstanding| {
                    let store = &node.store;
                    store.commit_beside_grants_if(counters, &commit, me, outstanding, now, owns)
                })?;
                self.settled(limits, settlement)
            }
            Asked::Undo(made) => {
                let undone = node.store.undo_if(counters, (*key, made), me, now, owns)?;
                self.settled(limits, undone)
            }
        };
        let owner_term = owner_term.get().filter(|_| peers.is_some());
        Some(Decision { answer, owner_term, awaits_copy })
    }

    /// As which actor this node counts eventual limits.
    fn as_writer(&self, limits: &Limits) -> Option<LocalActor> {
        let Shared { node, peers, .. } = &*self.shared;
        let is_eventual = limits.counters.iter().any(|counter| counter.key.is_eventual());
        peers.as_ref().filter(|_| is_eventual).map(|peers| LocalActor {
            actor: node.incarnation.actor(),
            slack_divisor: peers.synchroniser.slack_divisor(),
        })
    }

    fn settled(&self, limits: &Limits, settlement: Settlement) -> Answer {
        if settlement.frees {
            // Refusals that other nodes remember may not hold any more.
            self.announce_refund(limits.scope, &limits.counters, Hits::new(-1));
        }
        Answer::Committed(settlement)
    }

    /// Whether a replica has the reservation, and the counters beside it, within `patience`; `None`
    /// if it does not have to. What is sent is one message: a replica that knows a reservation to
    /// be settled knows its cost.
    ///
    /// A copy counts only if this node has been the owner from the decision on. Another one that
    /// decided meanwhile may have counted as much, and the join of both counts hides one of them.
    fn copying(
        &self,
        part: &Part,
        decision: &mut Decision,
        patience: Duration,
    ) -> Option<impl Future<Output = bool> + Send + use<>> {
        self.shared.peers.as_ref()?;
        let (is_final, applied) = match &decision.answer {
            Answer::Reserved(reserved) => (!is_within(&reserved.verdicts), None),
            // One that is not remembered must not be asked for again.
            Answer::Committed(settlement) => (!settlement.is_remembered, settlement.applied),
        };
        if part.limits.durability != Durability::Replicated || is_final {
            return None;
        }
        let (decider, part) = (self.clone(), part.clone());
        let owner_term = decision.owner_term?;
        let awaits_copy = decision.awaits_copy.take();
        Some(async move {
            let (Some(applied), Ok(runtime)) = (applied, Handle::try_current()) else {
                let is_copied = decider.is_part_copied(&part, patience).await;
                return is_copied && decider.standing_of(&part, owner_term) == Standing::Decides;
            };
            let (confirm, is_confirmed) = oneshot::channel();
            // It goes on when the client has gone.
            let copying = decider.shared.copying.clone();
            let copy = async move {
                decider.copy_commit(&part, applied, owner_term, (patience, confirm)).await;
                drop(awaits_copy);
                // What was held back meanwhile.
                let store = &decider.shared.node.store;
                store.enqueue_replication(part.key);
                store.enqueue_snapshot(part.key);
            };
            copying.spawn_on(copy, &runtime);
            is_confirmed.await.unwrap_or(false)
        })
    }

    /// Copies a commit, and tells within `patience` whether a replica has it that counts. If none
    /// has when another node may be the owner, the commit is taken back: nothing of it is to
    /// displace what the next owner counts, which is asked for it again.
    ///
    /// Without a lease nothing of it is sent, and nothing merged with it, because another node may
    /// be the owner already. If none was, it goes on. At the end of this node nothing goes on: what
    /// is not confirmed by then is taken back.
    ///
    /// **Bound:** [`UNCONFIRMED_MAX`] beyond `patience`, and what this node is without a lease; for
    /// as many commits as are remembered.
    async fn copy_commit(
        &self,
        part: &Part,
        applied: Applied,
        owner_term: OwnerTerm,
        (mut patience, confirm): (Duration, oneshot::Sender<bool>),
    ) {
        let (mut confirm, ends) = (Some(confirm), Instant::now() + patience + UNCONFIRMED_MAX);
        let has_decided = &self.shared.has_decided;
        loop {
            let is_copied = tokio::select! {
                biased;
                () = has_decided.cancelled() => false,
                () = self.stops_deciding(part, owner_term) => false,
                is_copied = self.is_part_copied(part, patience) => is_copied,
            };
            let standing = match self.standing_of(part, owner_term) {
                _ if has_decided.is_cancelled() && !is_copied => Standing::Lost,
                standing => standing,
            };
            if standing == Standing::Lost {
                self.take_commit_back(part, applied);
            }
            if let Some(confirm) = confirm.take() {
                // The client may have gone.
                let _ = confirm.send(is_copied && standing == Standing::Decides);
            }
            let pause = match standing {
                Standing::Lost => return,
                Standing::Decides if is_copied || Instant::now() >= ends => return,
                Standing::Decides => AGAIN_MAX,
                Standing::Waits => LOSS_SEEN_WITHIN,
            };
            let _ = timeout(pause, has_decided.cancelled()).await;
            patience = COPIED_AGAIN;
        }
    }

    /// Takes back the commits that no replica has confirmed, when this node decides nothing more.
    /// They are sent again, to other owners: their costs are not to come back from the disk.
    pub async fn take_unconfirmed_back(&self) {
        let Shared { copying, has_decided, .. } = &*self.shared;
        has_decided.cancel();
        copying.close();
        copying.wait().await;
    }

    fn take_commit_back(&self, part: &Part, applied: Applied) {
        let Shared { node, .. } = &*self.shared;
        if let Asked::Commit { cost, remembered } = part.asked {
            let commit = store::Commit { key: part.key, cost, remembered };
            let (me, now) = (self.as_writer(&part.limits), node.clock.now());
            node.store.take_back(&part.limits.counters, (&commit, applied), me, now);
        }
    }

    /// Waits until this node has no lease, or has lost the key.
    async fn stops_deciding(&self, part: &Part, owner_term: OwnerTerm) {
        while self.standing_of(part, owner_term) == Standing::Decides {
            sleep(LOSS_SEEN_WITHIN).await;
        }
    }

    fn standing_of(&self, part: &Part, owner_term: OwnerTerm) -> Standing {
        self.shared.node.ownership.standing(part.limits.scope, owner_term)
    }

    async fn is_part_copied(&self, part: &Part, patience: Duration) -> bool {
        let Some(peers) = &self.shared.peers else { return true };
        let counters = part.limits.counters.iter();
        let owned = counters.map(|counter| counter.key).filter(|key| key.is_owned());
        let keys: SmallVec<[KeyHash; 2]> = owned.chain([part.key]).collect();
        // A counter of which nothing is used has no slot.
        peers.replicator.confirm(&keys, Hits::new(-1), patience).await
    }
}

// === impl Asking ===

impl Asking {
    /// The request is admitted, and its caller there.
    fn keep(mut self) {
        self.parts.clear();
    }

    /// What has to be given back. Of a new one also what is unconfirmed, or was answered too late;
    /// of one that was there before only what this request has changed.
    fn reserved(&self) -> Vec<Part> {
        let reserved = |(part, answer): (&Option<Part>, &Option<Answered>)| {
            let (part, answer) = (part.as_ref()?, answer.as_ref()?);
            let reserved = match answer {
                Ok((Answer::Reserved(reserved), _)) => Some(reserved),
                _ => None,
            };
            if self.is_new {
                let is_refused = reserved.is_some_and(|it| !is_within(&it.verdicts));
                return (!is_refused).then(|| part.released(REMEMBERED));
            }
            let made = reserved?.made?;
            Some(Part { asked: Asked::Undo(made), ..part.clone() })
        };
        self.parts.iter().zip(&self.answers).filter_map(reserved).collect()
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.decider.give_back_later(self.reserved(), self.ttl);
    }
}

// === impl Part ===

impl Part {
    /// The end of this reservation, at no cost.
    pub(super) fn released(&self, remembered: Span) -> Self {
        let asked = Asked::Commit { cost: Hits::PEEK, remembered };
        Self { asked, ..self.clone() }
    }

    fn call(&self, deadline: Span) -> Call {
        let Self { limits, key, asked } = self;
        let Limits { scope, durability, .. } = *limits;
        let (counters, reservation) = (limits.counters.clone(), *key);
        match *asked {
            Asked::Reserve { amount, ttl } => Call::Reserve(ReserveCall {
                scope,
                counters,
                reservation,
                amount,
                ttl,
                durability,
                deadline,
            }),
            Asked::Commit { cost, remembered } => {
                let end = End::Settled { cost, remembered };
                Call::Commit(CommitCall { scope, counters, reservation, end, durability })
            }
            Asked::Undo(made) => {
                let end = End::Undone(made);
                Call::Commit(CommitCall { scope, counters, reservation, end, durability })
            }
        }
    }
}

fn is_within(verdicts: &[Verdict]) -> bool {
    super::status::is_within(verdicts)
}

/// The status of a descriptor that was decided, which the statistics do not count yet.
fn status(check: &PlannedCheck, verdicts: Verdicts, source: VerdictSource) -> Status {
    let rule = check.rule.clone();
    let allowed = is_within(&verdicts) || rule.shadow;
    let leading = super::status::leading(&verdicts);
    Status {
        rule: Some(rule),
        allowed,
        verdicts,
        leading,
        source,
        metadata: check.metadata.clone(),
    }
}

/// The id of each part: descriptors whose reservations are beside each other are reservations of
/// their own. These are equal ones, also if one of them brings its limit along, and those that
/// share a counter. Whatever limits they have, they have one token.
fn ids_of_each(plans: &Plans, id: ReservationId) -> SmallVec<[ReservationId; 2]> {
    let token = |plan: &Option<PlannedCheck>| Some(plan.as_ref()?.key()?.token);
    let tokens: SmallVec<[Option<u64>; 2]> = plans.iter().map(token).collect();
    let before = |at: usize| tokens.iter().take(at).filter(|it| **it == tokens[at]).count();
    (0..tokens.len()).map(|at| id.of_repeated(before(at) as u64)).collect()
}

/// What became of two descriptors together.
fn of_both(one: Settled, other: Settled) -> Settled {
    match (one, other) {
        (Settled::Reported, _) | (_, Settled::Reported) => Settled::Reported,
        (Settled::Again, Settled::Again) => Settled::Again,
        _ => Settled::Committed,
    }
}

/// Its counter is only the place of what was reserved of its rule when that had limits.
fn is_without_limit(check: &PlannedCheck) -> bool {
    check.rule.limits.is_empty()
}

fn limited(plan: Option<&PlannedCheck>) -> Option<&PlannedCheck> {
    plan.filter(|check| check.has_limits())
}

fn no_limit(plan: Option<&PlannedCheck>) -> Status {
    Status::unlimited(plan.map(|check| check.rule.clone()))
}

/// A refund reserves nothing.
fn narrow(hits: Hits) -> u32 {
    u32::try_from(hits.charge()).unwrap_or(u32::MAX)
}

//! Decides one request: each descriptor on this node where possible, the rest concurrently by their
//! owners.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use smallvec::SmallVec;
use tidegate_cluster::environment::Clock;
use tidegate_cluster::incarnation::Incarnation;
use tidegate_cluster::interventions::Interventions;
use tidegate_cluster::mesh::Mesh;
use tidegate_cluster::ownership::{OwnerTerm, Ownership};
use tidegate_cluster::pki::Role;
use tidegate_cluster::replication::Replicator;
use tidegate_cluster::sync::Synchroniser;
use tidegate_limiter::descriptor::Descriptor;
use tidegate_limiter::policy::{Mode, OnUnavailable, Scope};
use tidegate_limiter::quota::Algorithm;
use tidegate_limiter::store::{Counter, KeyHash, KeyHasher, LocalActor, Store, Verdicts};
use tidegate_limiter::units::{Hits, Timestamp};
use tidegate_ownership::route::Topology;
use tidegate_rules::book::{Book, Rule};
use tidegate_rules::stats::RuleStats;
use tidegate_rules::tally::Tallies;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::blocked_by_hand;
use super::blocked_sources::BlockedSources;
use super::check::{CheckRequest, CheckResponse, Decide, Status, VerdictSource};
use super::combiner::{Combiner, Sending};
use super::dedup_cache::DedupCache;
use super::divided::{Begun, Divided};
use super::fallback;
use super::forecast::Forecasts;
use super::grant_ledger::GrantLedger;
use super::held_grants::HeldGrants;
use super::limits::Limits;
use super::negative_cache::NegativeCache;
use super::outcome::{Decided, Forwarded, NoVerdict};
use super::overshoot::Overshoot;
use super::plan::{PlannedCheck, Planner};
use super::refused_keys::RefusedKeys;
use super::traced;
use super::waiting_refunds::WaitingRefunds;
use crate::config::Envoy;
use crate::traces::Traces;

/// The settings of the decision path.
#[derive(Debug)]
pub struct Options {
    pub envoy: Envoy,
    /// Of limits that Envoy's requests carry, where no rule matches.
    pub on_unavailable: OnUnavailable,
    /// Mode and `on_unavailable` of the limits that clients name themselves.
    pub throttle_rule: Arc<Rule>,
    /// The same of the limits that requests carry with their key.
    pub carried_rules: CarriedRules,
    /// Most time that the owner of a key in this region may take.
    pub deadline: Duration,
    /// Most time that the owner of a global key may take.
    pub global_deadline: Duration,
    /// Sources that are watched; none where `[blocked_sources]` is off.
    pub blocked_sources: Option<Arc<BlockedSources>>,
    /// Whether the values of descriptors that are refused are kept, for an operator to see.
    pub shows_keys: bool,
    /// To whose spans decisions are added.
    pub traces: Traces,
}

/// The rules of limits that requests carry.
#[derive(Clone, Debug)]
pub struct CarriedRules {
    pub strict: Arc<Rule>,
    pub leased: Arc<Rule>,
}

/// The node that decides.
#[derive(Debug)]
pub struct LocalNode {
    /// Its actor owns the per-actor counters of eventual keys.
    pub incarnation: Arc<Incarnation>,
    /// Hashes descriptors under the cluster's secret.
    pub hasher: KeyHasher,
    pub store: Arc<Store>,
    pub topology: Arc<ArcSwap<Topology>>,
    pub ownership: Ownership,
    /// Read once per request.
    pub clock: Arc<dyn Clock>,
    /// What operators did to keys by hand.
    pub interventions: Arc<Interventions>,
}

/// The rules in force, and their statistics.
#[derive(Debug)]
pub struct Rules {
    pub book: Arc<ArcSwap<Book>>,
    pub tallies: Arc<Tallies>,
}

/// The other nodes of the cluster.
#[derive(Debug)]
pub struct Peers {
    /// Carries checks to their owners.
    pub mesh: Arc<Mesh>,
    /// Sends eventual counts at once when a key is near its limit.
    pub synchroniser: Arc<Synchroniser>,
    /// Copies counts that must survive a crash to replicas.
    pub replicator: Arc<Replicator>,
}

/// Most refused requests of which a node goes on giving back what was reserved, if no owner answers
/// within seconds; that of others ends at its time to live.
const RELEASES_WAITING_MAX: usize = 1_024;

/// The handle of the decision path; cheap to clone.
#[derive(Clone, Debug)]
pub struct Decider {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) node: LocalNode,
    pub(super) rules: Rules,
    /// `None` for a node without a cluster.
    pub(super) peers: Option<Peers>,
    pub(super) counters: Counters,
    /// Refusals of owners.
    pub(super) negative_cache: NegativeCache,
    /// Verdicts given to peers.
    pub(super) dedup_cache: DedupCache,
    /// What this node has granted as an owner.
    pub(super) grant_ledger: GrantLedger,
    /// What was granted to this node.
    pub(super) held_grants: HeldGrants,
    /// It is asked for, or holds, something.
    pub(super) grants_held: Notify,
    /// What refunds could not take yet.
    pub(super) waiting_refunds: WaitingRefunds,
    /// Places for what refused requests reserved and give back.
    pub(super) releases_waiting: Arc<Semaphore>,
    /// Requests to reserve that are being asked for, and what is given back of them.
    pub(super) giving_back: TaskTracker,
    /// Commits that wait for a replica.
    pub(super) copying: TaskTracker,
    /// This node decides nothing more.
    pub(super) has_decided: CancellationToken,
    /// Where that runs: it outlives the threads of listeners. `None` outside of a runtime.
    pub(super) runtime: Option<Handle>,
    /// Of keys whose limits regions share, what this node will need.
    pub(super) forecasts: Forecasts,
    /// Checks that leave for their owner together.
    pub(super) combiner: Combiner,
    /// Windows of eventual rules that are used up.
    overshoot: Overshoot,
    pub(super) refused_keys: RefusedKeys,
    /// Id of the next call with checks that are forwarded.
    pub(super) next_check_id: AtomicU64,
    /// Applies to requests that do not come from Envoy.
    pub(super) without_envoy: Envoy,
}

/// Verdicts by source since the start, in descriptors; read by the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Decided here for a client of this node.
    pub local: AtomicU64,
    /// Decided by their owner for a client of this node.
    pub forwarded: AtomicU64,
    /// Refused from the negative cache.
    pub cached: AtomicU64,
    /// Decided here for a client of a peer.
    pub served: AtomicU64,
    /// Checks that a peer sent a second time and that were answered from the dedup cache.
    pub deduplicated: AtomicU64,
    /// Checks of peers that were read after their deadline, and not counted.
    pub expired: AtomicU64,
    /// Checks of peers for keys that this node does not own.
    pub not_owner: AtomicU64,
    /// Checks for clients of this node that left for their owner together with others.
    pub combined: AtomicU64,
    /// Attempts after the first for one verdict, at another node or the same one.
    pub retried: AtomicU64,
    /// Counted, but confirmed by no replica in time.
    pub unconfirmed: AtomicU64,
    /// Decided by `on_unavailable`.
    pub fallback: AtomicU64,
    /// Decided from granted hits.
    pub granted: AtomicU64,
    /// Refused because an operator has blocked the key.
    pub blocked: AtomicU64,
    /// Hits that this node charged as an owner for others to spend.
    pub hits_granted: AtomicU64,
    /// Of those, hits that were given back, or confirmed by no replica, and are there again.
    pub taken_back: AtomicU64,
    pub reservations: ReservationCounters,
}

/// Reservations of clients of this node, by what became of them.
#[derive(Debug, Default)]
pub struct ReservationCounters {
    pub reserved: AtomicU64,
    pub refused: AtomicU64,
    pub committed: AtomicU64,
    /// Committed with a cost of zero.
    pub released: AtomicU64,
    /// Committed before; nothing was counted.
    pub repeated: AtomicU64,
    /// Committed under an id that was unknown, or whose reservation had ended.
    pub reported: AtomicU64,
    /// Committed where no limit applies, or none does any more; nothing was counted.
    pub unlimited: AtomicU64,
}

/// The state of a check after everything that this node can do alone.
pub(super) enum Step {
    Done(Decided),
    /// Decided and counted here, under this term; a replica has to confirm the count.
    Confirm(Verdicts, Option<OwnerTerm>),
    /// Another node owns the key. Of a refund these hits are left; otherwise all of the check.
    Forward(Hits),
    /// Regions share the limit, and not all shares have been asked.
    Divided(Box<Divided>),
}

impl Decider {
    pub fn new(options: Options, node: LocalNode, rules: Rules, peers: Option<Peers>) -> Self {
        let is_edge = peers.as_ref().is_some_and(|peers| peers.mesh.role == Role::Edge);
        let negative_cache =
            if is_edge { NegativeCache::at_edge() } else { NegativeCache::default() };
        let refused_keys = RefusedKeys::new(options.shows_keys);
        let shared = Shared {
            options,
            node,
            rules,
            peers,
            counters: Counters::default(),
            negative_cache,
            dedup_cache: DedupCache::default(),
            combiner: Combiner::default(),
            overshoot: Overshoot::default(),
            refused_keys,
            grant_ledger: GrantLedger::default(),
            held_grants: HeldGrants::default(),
            grants_held: Notify::new(),
            waiting_refunds: WaitingRefunds::default(),
            releases_waiting: Arc::new(Semaphore::new(RELEASES_WAITING_MAX)),
            giving_back: TaskTracker::new(),
            copying: TaskTracker::new(),
            has_decided: CancellationToken::new(),
            runtime: Handle::try_current().ok(),
            forecasts: Forecasts::default(),
            next_check_id: AtomicU64::new(1),
            without_envoy: Envoy { overrides: false, ..Envoy::default() },
        };
        Self { shared: Arc::new(shared) }
    }

    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// What records requests of clients and of peers.
    pub fn recorder(&self) -> &Traces {
        &self.shared.options.traces
    }

    /// What operators did to keys by hand.
    pub fn interventions(&self) -> &Arc<Interventions> {
        &self.shared.node.interventions
    }

    /// The keys that were refused most to clients of this node.
    pub fn refused_keys(&self) -> &RefusedKeys {
        &self.shared.refused_keys
    }
}

impl Decide for Decider {
    async fn decide(&self, request: CheckRequest<'_>) -> CheckResponse {
        // The rule book and the time are read once, so all descriptors see the same.
        let Shared { options, node, rules, without_envoy, .. } = &*self.shared;
        let book = rules.book.load_full();
        let now = node.clock.now();
        let envoy = if request.for_envoy { &options.envoy } else { without_envoy };
        let (hasher, tallies) = (&node.hasher, &*rules.tallies);
        let interventions = &*node.interventions;
        let on_unavailable = options.on_unavailable;
        let planner =
            Planner { book: &book, hasher, interventions, envoy, on_unavailable, tallies };
        let plans = planner.plan(&request);
        let limited = plans.iter().flatten().filter(|check| check.has_limits());
        let decided = if envoy.all_or_nothing || envoy.local_cache {
            // Boxed: its state is large, and most nodes never need it.
            Box::pin(self.all_or_nothing(limited.collect(), envoy, now)).await
        } else {
            self.decide_each(limited.map(|check| (check, check.hits)), now).await
        };
        let mut decided = decided.into_iter();
        let status = |(plan, descriptor): (Option<PlannedCheck>, &Descriptor<'_>)| match plan {
            Some(check) if check.has_limits() => match decided.next() {
                Some(decided) => {
                    let (key, hits) = (check.key(), check.hits);
                    let status = self.status(check, decided);
                    if !status.allowed {
                        self.note_refused(key, &status, descriptor, hits, now);
                    }
                    status
                }
                None => Status::unlimited(None),
            },
            plan => Status::unlimited(plan.map(|check| check.rule)),
        };
        let statuses = plans.into_iter().zip(request.descriptors).map(status).collect();
        let mut response = CheckResponse::new(statuses, envoy.quota_mode);
        if !response.allowed && envoy.shadow_mode {
            tallies.service.global_shadow_mode.fetch_add(1, Ordering::Relaxed);
            response.allowed = true;
        }
        if !response.allowed
            && let Some(sources) = &options.blocked_sources
        {
            sources.refused(&request, &response, hasher, now);
        }
        if let Some(span) = options.traces.current() {
            traced::decided(&span, &request, &response, options.shows_keys);
        }
        response
    }

    fn is_loaded(&self) -> bool {
        self.shared.rules.book.load().is_loaded()
    }

    fn envoy(&self) -> &Envoy {
        &self.shared.options.envoy
    }

    fn tallies(&self) -> Option<&Tallies> {
        Some(&self.shared.rules.tallies)
    }

    fn traces(&self) -> Option<&Traces> {
        Some(&self.shared.options.traces)
    }
}

impl Decider {
    /// Decides each check on its own, for the hits beside it: in order where this node can do so
    /// alone, the others concurrently, which takes as long as the slowest.
    pub(super) async fn decide_each<'a>(
        &self,
        checks: impl Iterator<Item = (&'a PlannedCheck, Hits)>,
        now: Timestamp,
    ) -> SmallVec<[Decided; 2]> {
        let steps: SmallVec<[(&PlannedCheck, Hits, Step); 2]> =
            checks.map(|(check, hits)| (check, hits, self.begin(check, hits, now))).collect();
        if steps.iter().all(|(_, _, step)| matches!(step, Step::Done(_))) {
            let done = |step| if let Step::Done(decided) = step { Some(decided) } else { None };
            return steps.into_iter().filter_map(|(_, _, step)| done(step)).collect();
        }
        let rest = steps.into_iter().map(|(check, hits, step)| self.finish(check, hits, step, now));
        join_all(rest).await.into()
    }

    /// A check was refused, for an operator to see. What `on_unavailable` refuses is over no limit.
    #[cold]
    pub(super) fn note_refused(
        &self,
        key: Option<KeyHash>,
        status: &Status,
        descriptor: &Descriptor<'_>,
        hits: Hits,
        now: Timestamp,
    ) {
        if let (Some(key), Some(rule)) = (key, &status.rule)
            && status.source != VerdictSource::Fallback
        {
            let entries = &descriptor.entries;
            self.shared.refused_keys.refused(key, &rule.id, entries, hits.charge(), now);
        }
    }

    /// Does what needs no other node.
    pub(super) fn begin(&self, check: &PlannedCheck, hits: Hits, now: Timestamp) -> Step {
        match self.begin_uncounted(check, hits, now) {
            Step::Done((verdicts, source)) => Step::Done(self.counted(verdicts, source)),
            step => step,
        }
    }

    /// The same, for what is not to be in the metrics.
    #[inline]
    pub(super) fn begin_uncounted(
        &self,
        check: &PlannedCheck,
        mut hits: Hits,
        now: Timestamp,
    ) -> Step {
        let PlannedCheck { rule, counters, .. } = check;
        if let Some(verdicts) = blocked_by_hand::refusals(check, now) {
            return Step::Done((verdicts, VerdictSource::Blocked));
        }
        if rule.mode == Mode::Eventual {
            return Step::Done((self.decide_eventual(check, hits, now), VerdictSource::Local));
        }
        match self.begin_divided(check, hits, now) {
            Some(Begun::Done(decided)) => return Step::Done(decided),
            Some(Begun::Open(divided)) => return Step::Divided(divided),
            None => {}
        }
        if rule.mode == Mode::Leased && self.shared.peers.is_none() {
            let verdicts = self.decide_alone(counters, hits, now);
            return Step::Done((verdicts, VerdictSource::Local));
        }
        let owner_term = self.owner_term(rule.durability, counters, rule.scope);
        let owned = if rule.mode == Mode::Leased {
            let limits = check.limits();
            if let Some(decided) = self.decide_if_granted(&limits, hits, now) {
                return Step::Done(decided);
            }
            match self.refund_if_granted(&limits, hits, now) {
                Ok(decided) => return Step::Done(decided),
                Err(rest) => hits = rest,
            }
            self.decide_leased_if_owned(&limits, hits, now).map(|(verdicts, may_end_early)| {
                if may_end_early {
                    limits.refused_early(hits);
                }
                verdicts
            })
        } else if self.refunds_beside_grants(&[hits]) {
            self.decide_each_if_owned(&check.limits(), &[hits], now)
        } else {
            self.decide_if_owned(rule.scope, counters, hits, now)
        };
        if let Some(verdicts) = owned {
            self.announce_refund(rule.scope, counters, hits);
            if self.needs_replica(rule.durability, hits, &verdicts) {
                return Step::Confirm(verdicts, owner_term);
            }
            return Step::Done((verdicts, VerdictSource::Local));
        }
        match self.shared.negative_cache.recall(counters, hits, now) {
            Some(verdicts) => Step::Done((verdicts, VerdictSource::NegativeCache)),
            None => Step::Forward(hits),
        }
    }

    /// Does what needs other nodes.
    pub(super) async fn finish(
        &self,
        check: &PlannedCheck,
        hits: Hits,
        step: Step,
        now: Timestamp,
    ) -> Decided {
        let (verdicts, source) = match step {
            Step::Done(decided) => return decided,
            step => self.finish_uncounted(check, hits, step, now).await,
        };
        self.counted(verdicts, source)
    }

    /// The same, for what is not to be in the metrics.
    pub(super) async fn finish_uncounted(
        &self,
        check: &PlannedCheck,
        hits: Hits,
        step: Step,
        now: Timestamp,
    ) -> Decided {
        let decided = match step {
            Step::Done(decided) => return decided,
            Step::Confirm(verdicts, owner_term) => {
                let deadline = self.deadline(check.rule.scope);
                let decided = (&check.counters[..], check.rule.scope, owner_term);
                let is_confirmed = self.is_confirmed(decided, hits, deadline).await;
                let local = (verdicts, VerdictSource::Local);
                is_confirmed.then_some(local).ok_or(NoVerdict::Unconfirmed)
            }
            Step::Forward(hits) => {
                let limits = check.limits();
                let patience = self.patience(&limits);
                self.forward_and_cache(&limits, hits, now, patience).await.map(|forwarded| {
                    if forwarded.may_end_early {
                        limits.refused_early(hits);
                    }
                    forwarded.decided
                })
            }
            Step::Divided(divided) => self.finish_divided(check, *divided, now).await,
        };
        match decided {
            Ok(decided) => decided,
            Err(reason) => {
                if reason == NoVerdict::Unconfirmed {
                    self.shared.counters.unconfirmed.fetch_add(1, Ordering::Relaxed);
                }
                RuleStats::add(&check.rule.stats.unavailable, 1);
                let Shared { node, .. } = &*self.shared;
                let topology = node.topology.load();
                let verdicts = fallback::decide(check, hits, &topology, &node.store, now);
                (verdicts, VerdictSource::Fallback)
            }
        }
    }

    /// Has a check decided by the owner of its key within `patience`, and caches a refusal.
    pub(super) async fn forward_and_cache(
        &self,
        limits: &Limits,
        hits: Hits,
        now: Timestamp,
        patience: Duration,
    ) -> Result<Forwarded, NoVerdict> {
        let cache = &self.shared.negative_cache;
        let key = limits.key().ok_or(NoVerdict::Unavailable)?;
        let ticket = cache.ticket(key.token);
        let mut forwarded = self.forward(limits, Sending::Check(hits), patience).await;
        let decided = forwarded.as_ref().map(|forwarded| &forwarded.decided);
        let is_refused = |(verdicts, _): &Decided| verdicts.iter().any(|it| !it.allowed);
        let is_refused = decided.is_ok_and(is_refused);
        // What this node holds was too little for the check, and counts as used at the owner.
        let gives_back = is_refused && self.held_too_few(key);
        if hits.refund() > 0 {
            // Forgotten now: the owner's notice may come after its reply, and the client expects
            // its refund to count. Without a reply it is unknown whether the owner applied it.
            cache.forget(key.token);
        } else if let Ok((verdicts, VerdictSource::Owner)) = decided
            && !gives_back
        {
            cache.insert(ticket, &limits.counters, hits, verdicts, now);
            if let ([counter], false) = (&limits.counters[..], is_refused || hits == Hits::PEEK) {
                cache.admitted(counter);
            }
        }
        if let Ok(forwarded) = &mut forwarded {
            forwarded.may_end_early &= is_refused;
        }
        forwarded
    }

    fn decide_eventual(&self, check: &PlannedCheck, hits: Hits, now: Timestamp) -> Verdicts {
        let Shared { node, peers, .. } = &*self.shared;
        let Some(peers) = peers else { return self.decide_alone(&check.counters, hits, now) };
        let slack_divisor = peers.synchroniser.slack_divisor();
        let local = LocalActor { actor: node.incarnation.actor(), slack_divisor };
        let verdicts = node.store.check_eventual(&check.counters, hits, local, now);
        self.shared.overshoot.observe(check, hits, &verdicts, now);
        verdicts
    }

    /// Of a leased or eventual rule without a cluster: the count here is the whole count. As
    /// everywhere, a fixed window of such a rule counts no refused hits.
    fn decide_alone(&self, counters: &[Counter], hits: Hits, now: Timestamp) -> Verdicts {
        let store = &self.shared.node.store;
        let is_fixed = |it: &Counter| it.quota.algorithm() == Algorithm::FixedWindow;
        if hits.charge() == 0 || !counters.iter().any(is_fixed) {
            return store.check(counters, hits, now);
        }
        let decided = store.check_leased_if(counters, &[hits], None, &[], now, || true);
        decided.map(|it| it.verdicts).unwrap_or_default()
    }

    /// Counts where the verdicts of a check come from.
    pub(super) fn counted(&self, verdicts: Verdicts, source: VerdictSource) -> Decided {
        let counters = &self.shared.counters;
        let counter = match source {
            VerdictSource::Local | VerdictSource::Unlimited | VerdictSource::InFlight => {
                &counters.local
            }
            VerdictSource::Owner => &counters.forwarded,
            VerdictSource::Fallback => &counters.fallback,
            VerdictSource::NegativeCache => &counters.cached,
            VerdictSource::Grant => &counters.granted,
            VerdictSource::Blocked => &counters.blocked,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        (verdicts, source)
    }

    /// Most time that a check of these limits may take: of a share that is decided in this region
    /// as of any key of the region.
    pub(super) fn patience(&self, limits: &Limits) -> Duration {
        let topology = self.shared.node.topology.load();
        let is_here = |token| topology.homes().is_here(token);
        match limits.key() {
            Some(key) if limits.is_share && is_here(key.token) => self.deadline(Scope::Region),
            _ => self.deadline(limits.scope),
        }
    }

    /// Most time that the owner of a key of this scope may take.
    pub(super) fn deadline(&self, scope: Scope) -> Duration {
        match scope {
            Scope::Region => self.shared.options.deadline,
            Scope::Global => self.shared.options.global_deadline,
        }
    }
}

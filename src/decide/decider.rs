//! Decides: for this node's clients, and for peers whose keys this node owns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::ask::{Answer, Ask, Source, Status};
use super::forward::{self, NoVerdict};
use super::plan::{Plan, plan};
use super::{Decide, policy};
use crate::cluster::identity::NodeId;
use crate::cluster::incarnation::Incarnation;
use crate::cluster::mesh::Mesh;
use crate::cluster::mesh::wire::{Check, Reply};
use crate::cluster::route::{Route, Topology};
use crate::cluster::sync::Synchroniser;
use crate::cluster::tenure::Tenancy;
use crate::config::policy::{Mode, Scope};
use crate::engine::{Retry, Verdict};
use crate::rules::book::{Book, Rule};
use crate::rules::rule::RuleStats;
use crate::seam::Clock;
use crate::store::{KeyHasher, Store, is_urgent};
use crate::units::{Hits, Timestamp};

/// Everything a decision is made from.
#[derive(Debug)]
pub struct Parts {
    /// Which start of which node decides; names the column of eventual keys.
    pub incarnation: Arc<Incarnation>,
    /// Hashes descriptors under the cluster's secret.
    pub hasher: KeyHasher,
    /// Where the counters are.
    pub store: Arc<Store>,
    /// The rules in force.
    pub book: Arc<ArcSwap<Book>>,
    /// The rings in force.
    pub topology: Arc<ArcSwap<Topology>>,
    /// What this node may decide.
    pub tenancy: Tenancy,
    /// Read once a request.
    pub clock: Arc<dyn Clock>,
    /// The other nodes; `None` for a node that stands alone.
    pub remote: Option<Remote>,
}

/// The way to other nodes.
#[derive(Debug)]
pub struct Remote {
    /// Carries checks to their owners.
    pub mesh: Mesh,
    /// Is told when an eventual key is near its limit.
    pub synchroniser: Synchroniser,
    /// How long an owner in this region may take.
    pub deadline: Duration,
    /// How long an owner of a global key may take.
    pub global_deadline: Duration,
}

/// The one path to a verdict; cheap to clone.
#[derive(Clone, Debug)]
pub struct Decider {
    parts: Arc<Parts>,
    counters: Arc<Counters>,
}

/// How verdicts came about since the start, in descriptors; read by the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Decided here for a client.
    pub local: AtomicU64,
    /// Decided by another owner for a client of this node.
    pub forwarded: AtomicU64,
    /// Decided here for a client of a peer.
    pub served: AtomicU64,
    /// Asks of peers for keys that this node does not own.
    pub not_owner: AtomicU64,
    /// Answered by `on_unavailable`.
    pub policy: AtomicU64,
}

impl Decide for Decider {
    async fn decide(&self, ask: Ask<'_>) -> Answer {
        let parts = &*self.parts;
        // One snapshot of each for the whole request: no half-updated world.
        let book = parts.book.load_full();
        let topology = parts.topology.load_full();
        let now = parts.clock.now();

        let plans = ask.descriptors.iter().map(|descriptor| {
            plan(&book, &topology, &parts.hasher, ask.domain, descriptor, ask.hits)
        });
        let plans: SmallVec<[Plan; 2]> = plans.collect();
        let has_forward = plans.iter().any(|plan| matches!(plan, Plan::Forward(..)));
        let statuses: SmallVec<[Status; 2]> = if has_forward {
            // Owners are asked at the same time: the answer takes as long as the slowest.
            let answers = plans.into_iter().map(|plan| self.carry_out(plan, &topology, now));
            join_all(answers).await.into()
        } else {
            plans.into_iter().map(|plan| self.carry_out_here(plan, &topology, now)).collect()
        };
        Answer { allowed: statuses.iter().all(|status| status.allowed), statuses }
    }
}

impl Decider {
    /// A decider over `parts`.
    pub fn new(parts: Parts) -> Self {
        Self { parts: Arc::new(parts), counters: Arc::default() }
    }

    /// How verdicts came about.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What it decides from.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Decides a check that a peer forwarded because this node owns its key.
    pub fn decide_as_owner(&self, check: &Check) -> Reply {
        let Some(first) = check.counters.first() else { return Reply::Malformed };
        let place = first.key.place;
        let is_one_descriptor = check.counters.iter().all(|counter| counter.key.place == place);
        if !is_one_descriptor {
            return Reply::Malformed;
        }
        let topology = self.parts.topology.load();
        // A peer that asks a leaving node has not heard yet: the old owner's count is better than
        // none.
        if topology.route(check.scope, place) != Route::Local && !topology.is_leaving() {
            self.counters.not_owner.fetch_add(1, Ordering::Relaxed);
            let epoch = self.parts.tenancy.holding(check.scope).epoch;
            return Reply::NotOwner { epoch, holder: None };
        }
        self.counters.served.fetch_add(1, Ordering::Relaxed);
        let now = self.parts.clock.now();
        Reply::Verdicts(self.parts.store.check(&check.counters, check.hits, now))
    }

    async fn carry_out(&self, plan: Plan, topology: &Topology, now: Timestamp) -> Status {
        match plan {
            Plan::Forward(rule, check, owner) => {
                match self.forward(&check, owner, topology).await {
                    Some(verdicts) => {
                        self.counters.forwarded.fetch_add(1, Ordering::Relaxed);
                        status(rule, check.hits, verdicts, Source::Owner)
                    }
                    None => self.by_policy(rule, &check, topology, now),
                }
            }
            here => self.carry_out_here(here, topology, now),
        }
    }

    /// Carries out a plan that needs no other node; one that does is answered by policy.
    fn carry_out_here(&self, plan: Plan, topology: &Topology, now: Timestamp) -> Status {
        match plan {
            Plan::Pass(rule) => Status {
                rule,
                allowed: true,
                verdicts: SmallVec::new(),
                leading: None,
                source: Source::Unlimited,
            },
            Plan::Here(rule, check) => {
                let verdicts = self.count_here(&rule, &check, now);
                self.counters.local.fetch_add(1, Ordering::Relaxed);
                status(rule, check.hits, verdicts, Source::Local)
            }
            Plan::Nobody(rule, check) | Plan::Forward(rule, check, _) => {
                self.by_policy(rule, &check, topology, now)
            }
        }
    }

    fn count_here(&self, rule: &Rule, check: &Check, now: Timestamp) -> SmallVec<[Verdict; 1]> {
        let parts = &*self.parts;
        match (rule.mode, &parts.remote) {
            (Mode::Eventual, Some(remote)) => {
                let me = parts.incarnation.actor();
                let verdicts = parts.store.check_eventual(&check.counters, check.hits, me, now);
                if check.hits.charge() > 0 && verdicts.iter().any(is_urgent) {
                    remote.synchroniser.hurry();
                }
                verdicts
            }
            // A node that stands alone has nobody to tell: its own count is the whole count.
            (Mode::Eventual, None) | (Mode::Strict, _) => {
                parts.store.check(&check.counters, check.hits, now)
            }
        }
    }

    /// Asks the owner; when its view is another than ours, asks whom ours names by then, once, in
    /// the time that is left.
    async fn forward(
        &self,
        check: &Check,
        owner: NodeId,
        topology: &Topology,
    ) -> Option<SmallVec<[Verdict; 1]>> {
        let remote = self.parts.remote.as_ref()?;
        let deadline = match check.scope {
            Scope::Region => remote.deadline,
            Scope::Global => remote.global_deadline,
        };
        let start = Instant::now();
        match forward::ask(&remote.mesh, &owner, check, deadline).await {
            Ok(verdicts) => return Some(verdicts),
            Err(NoVerdict::Unreachable(_)) => return None,
            Err(NoVerdict::NotOwner) => {}
        }
        let check_here = || {
            let now = self.parts.clock.now();
            Some(self.parts.store.check(&check.counters, check.hits, now))
        };
        // Our leaving moved the key to a node that has not heard of it yet: the count is still
        // here.
        if topology.is_leaving() {
            return check_here();
        }
        let place = check.counters.first()?.key.place;
        let newer = self.parts.topology.load_full();
        if newer.view.epoch() == topology.view.epoch() {
            return None;
        }
        match newer.route(check.scope, place) {
            Route::Local => check_here(),
            Route::Forward(owner) => {
                let left = deadline.saturating_sub(start.elapsed());
                forward::ask(&remote.mesh, owner, check, left).await.ok()
            }
            Route::Nobody => None,
        }
    }

    fn by_policy(
        &self,
        rule: Arc<Rule>,
        check: &Check,
        topology: &Topology,
        now: Timestamp,
    ) -> Status {
        self.counters.policy.fetch_add(1, Ordering::Relaxed);
        RuleStats::add(&rule.stats.unavailable, 1);
        let store = &self.parts.store;
        let verdicts = policy::answer(rule.on_unavailable, check, topology, store, now);
        status(rule, check.hits, verdicts, Source::Policy)
    }
}

/// The status that `verdicts` make, counted in the rule's statistics.
fn status(rule: Arc<Rule>, hits: Hits, verdicts: SmallVec<[Verdict; 1]>, source: Source) -> Status {
    let is_within = verdicts.iter().all(|verdict| verdict.allowed);
    let stats = &rule.stats;
    let counter = match (is_within, rule.shadow) {
        (true, _) => &stats.allowed,
        (false, false) => &stats.denied,
        (false, true) => &stats.shadowed,
    };
    RuleStats::add(counter, hits.charge());
    let leading = leading(&verdicts);
    Status { allowed: is_within || rule.shadow, rule: Some(rule), verdicts, leading, source }
}

/// Which verdict speaks for all: of the refusing ones the one that lasts longest, else the one that
/// has the least left.
fn leading(verdicts: &[Verdict]) -> Option<usize> {
    let weight = |verdict: &Verdict| {
        let wait = match verdict.retry {
            Retry::Now => 0,
            Retry::After(span) => span.as_nanos(),
            Retry::Never => u64::MAX,
        };
        (!verdict.allowed, wait, u32::MAX - verdict.remaining)
    };
    let heaviest = verdicts.iter().enumerate().max_by_key(|(_, verdict)| weight(verdict));
    heaviest.map(|(index, _)| index)
}

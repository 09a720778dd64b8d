//! Decides one request: each descriptor at once where that is possible, the others together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use smallvec::SmallVec;
use tidegate_cluster::mesh::wire::Check;
use tidegate_limiter::policy::{Durability, Mode};
use tidegate_limiter::store::{LocalActor, Verdicts, is_urgent};
use tidegate_limiter::units::Timestamp;
use tidegate_rules::book::Rule;
use tidegate_rules::rule::RuleStats;
use tidegate_rules::tally::Tallies;

use super::ask::{Answer, CheckRequest, Status, VerdictSource};
use super::dedup_cache::DedupCache;
use super::forward::NoVerdict;
use super::negative_cache::NegativeCache;
use super::parts::{Counters, Parts};
use super::plan::{Plan, Planner};
use super::status::Outcome;
use super::{Decide, policy};
use crate::config::Envoy;

/// The one path to a verdict; cheap to clone.
#[derive(Clone, Debug)]
pub struct Decider {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    parts: Parts,
    counters: Counters,
    /// What owners refused this node.
    negative_cache: NegativeCache,
    /// What this node answered its peers.
    seen: DedupCache,
    /// The id of the next check that leaves this node.
    next_id: AtomicU64,
    /// What `[envoy]` says where it has no say: nothing.
    elsewhere: Envoy,
}

/// What came of some checks, in their order.
pub(super) type Outcomes = SmallVec<[Outcome; 2]>;

/// What has come of a check before anybody else was asked.
enum Step {
    Done(Outcome),
    /// Decided and counted here; a replica has to confirm it.
    Confirm(Verdicts),
    /// Not ours to decide.
    CheckRequest(Check),
}

impl Decide for Decider {
    async fn decide(&self, ask: CheckRequest<'_>) -> Answer {
        // One rule book and one instant for the whole request: no half-updated world.
        let parts = self.parts();
        let book = parts.book.load_full();
        let now = parts.clock.now();
        let envoy = if ask.for_envoy { &parts.envoy } else { &self.shared.elsewhere };
        let (hasher, tallies) = (&parts.hasher, &*parts.tallies);
        let plans = Planner { book: &book, hasher, envoy, tallies }.plan(&ask);
        let limited = plans.iter().filter_map(Plan::limited);
        let outcomes = if envoy.all_or_nothing || envoy.local_cache {
            self.all_or_nothing(limited.collect(), envoy, now).await
        } else {
            self.each(limited.map(|limited| (&limited.rule, &limited.check)), now).await
        };
        let statuses = Status::all(plans, outcomes, parts);
        let mut answer = Answer::new(statuses, envoy.quota_mode);
        if !answer.allowed && envoy.shadow_mode {
            tallies.service.global_shadow_mode.fetch_add(1, Ordering::Relaxed);
            answer.allowed = true;
        }
        answer
    }

    fn is_loaded(&self) -> bool {
        self.parts().book.load().is_loaded()
    }

    fn envoy(&self) -> &Envoy {
        &self.parts().envoy
    }

    fn tallies(&self) -> Option<&Tallies> {
        Some(&self.parts().tallies)
    }
}

impl Decider {
    /// A decider over `parts`.
    pub fn new(parts: Parts) -> Self {
        let shared = Shared {
            parts,
            counters: Counters::default(),
            negative_cache: NegativeCache::default(),
            seen: DedupCache::default(),
            next_id: AtomicU64::new(1),
            elsewhere: Envoy { overrides: false, ..Envoy::default() },
        };
        Self { shared: Arc::new(shared) }
    }

    /// How verdicts came about.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// What it decides from.
    pub fn parts(&self) -> &Parts {
        &self.shared.parts
    }

    pub(super) fn negative_cache(&self) -> &NegativeCache {
        &self.shared.negative_cache
    }

    pub(super) fn seen(&self) -> &DedupCache {
        &self.shared.seen
    }

    /// Decides every check by itself, in order where that needs nobody else; the others are decided
    /// at the same time, which takes as long as the slowest.
    pub(super) async fn each<'a>(
        &self,
        checks: impl Iterator<Item = (&'a Arc<Rule>, &'a Check)>,
        now: Timestamp,
    ) -> Outcomes {
        let steps: SmallVec<[(&Arc<Rule>, &Check, Step); 2]> =
            checks.map(|(rule, check)| (rule, check, self.begin(rule, check, now))).collect();
        if steps.iter().all(|(_, _, step)| matches!(step, Step::Done(_))) {
            return steps.into_iter().filter_map(|(_, _, step)| step.done()).collect();
        }
        let rest = steps.into_iter().map(|(rule, check, step)| self.finish(rule, check, step, now));
        join_all(rest).await.into()
    }

    /// Does what needs nobody else.
    fn begin(&self, rule: &Rule, check: &Check, now: Timestamp) -> Step {
        if rule.mode == Mode::Eventual {
            return Step::Done(self.outcome(self.count_eventual(check, now), VerdictSource::Local));
        }
        if let Some(verdicts) = self.decide_if_held(check, now) {
            self.tell_refund(check);
            if check.durability == Durability::Replicated {
                return Step::Confirm(verdicts);
            }
            return Step::Done(self.outcome(verdicts, VerdictSource::Local));
        }
        if let Some(verdicts) = self.negative_cache().recall(check, now) {
            return Step::Done(self.outcome(verdicts, VerdictSource::Remembered));
        }
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        Step::CheckRequest(Check { id, ..check.clone() })
    }

    /// Does what others are needed for.
    async fn finish(&self, rule: &Rule, check: &Check, step: Step, now: Timestamp) -> Outcome {
        let heard = match step {
            Step::Done(outcome) => return outcome,
            Step::Confirm(verdicts) => {
                let remote = self.parts().remote.as_ref();
                let within = remote.map(|remote| remote.deadline(check.scope)).unwrap_or_default();
                let is_confirmed = self.is_confirmed(check, &verdicts, within).await;
                let heard = is_confirmed.then_some((verdicts, VerdictSource::Local));
                heard.ok_or(NoVerdict::Unconfirmed)
            }
            Step::CheckRequest(check) => self.ask_and_remember(&check, now).await,
        };
        match heard {
            Ok((verdicts, source)) => self.outcome(verdicts, source),
            Err(why) => {
                if why == NoVerdict::Unconfirmed {
                    self.counters().unconfirmed.fetch_add(1, Ordering::Relaxed);
                }
                self.by_policy(rule, check, now)
            }
        }
    }

    /// An outcome, counted by its source.
    pub(super) fn outcome(&self, verdicts: Verdicts, source: VerdictSource) -> Outcome {
        let counters = self.counters();
        let counter = match source {
            VerdictSource::Local | VerdictSource::Unlimited => &counters.local,
            VerdictSource::Owner => &counters.forwarded,
            VerdictSource::Policy => &counters.policy,
            VerdictSource::Remembered => &counters.remembered,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        Outcome { verdicts, source }
    }

    async fn ask_and_remember(
        &self,
        check: &Check,
        now: Timestamp,
    ) -> Result<(Verdicts, VerdictSource), NoVerdict> {
        let token = check.counters.first().ok_or(NoVerdict::Unavailable)?.key.token;
        let ticket = self.negative_cache().ticket(token);
        let outcome = self.forward_check(check).await;
        if check.hits.refund() > 0 {
            // The owner's notice may come later than its answer, and whoever gave hits back wants
            // to find them. Whether the owner did it is unknown when it did not answer.
            self.negative_cache().forget(token);
        } else if let Ok((verdicts, VerdictSource::Owner)) = &outcome {
            self.negative_cache().remember(ticket, check, now, verdicts);
        }
        outcome
    }

    fn count_eventual(&self, check: &Check, now: Timestamp) -> Verdicts {
        let parts = self.parts();
        // A node that stands alone has nobody to tell: its own count is the whole count.
        let Some(remote) = &parts.remote else {
            return parts.store.check(&check.counters, check.hits, now);
        };
        let slack_divisor = remote.synchroniser.slack_divisor();
        let me = LocalActor { actor: parts.incarnation.actor(), slack_divisor };
        let verdicts = parts.store.check_eventual(&check.counters, check.hits, me, now);
        if check.hits.charge() > 0 && verdicts.iter().any(is_urgent) {
            remote.synchroniser.hurry();
        }
        verdicts
    }

    fn by_policy(&self, rule: &Rule, check: &Check, now: Timestamp) -> Outcome {
        RuleStats::add(&rule.stats.unavailable, 1);
        let parts = self.parts();
        let topology = parts.topology.load();
        let verdicts = policy::answer(rule.on_unavailable, check, &topology, &parts.store, now);
        self.outcome(verdicts, VerdictSource::Policy)
    }
}

impl Step {
    fn done(self) -> Option<Outcome> {
        match self {
            Self::Done(outcome) => Some(outcome),
            Self::Confirm(_) | Self::CheckRequest(_) => None,
        }
    }
}

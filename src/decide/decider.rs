//! Decides one request: each descriptor at once where that is possible, the others together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::ask::{Answer, Ask, Source, Status};
use super::denials::Denials;
use super::forward::NoVerdict;
use super::parts::{Counters, Parts};
use super::plan::{Plan, plan};
use super::seen::Seen;
use super::{Decide, policy};
use crate::cluster::mesh::wire::Check;
use crate::config::policy::Durability;
use crate::rules::book::Rule;
use crate::rules::rule::RuleStats;
use crate::store::{Verdicts, is_urgent};
use crate::units::Timestamp;

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
    denials: Denials,
    /// What this node answered its peers.
    seen: Seen,
    /// The id of the next check that leaves this node.
    next_id: AtomicU64,
}

/// What has come of a descriptor before anybody else was asked.
enum Step {
    Done(Status),
    /// Decided and counted here; a replica has to confirm it.
    Confirm(Arc<Rule>, Check, Verdicts),
    /// Not ours to decide.
    Ask(Arc<Rule>, Check),
}

impl Decide for Decider {
    async fn decide(&self, ask: Ask<'_>) -> Answer {
        // One rule book and one instant for the whole request: no half-updated world.
        let parts = self.parts();
        let book = parts.book.load_full();
        let now = parts.clock.now();
        let steps: SmallVec<[Step; 2]> = ask
            .descriptors
            .iter()
            .map(|descriptor| plan(&book, &parts.hasher, ask.domain, descriptor, ask.hits))
            .map(|plan| self.begin(plan, now))
            .collect();
        let statuses: SmallVec<[Status; 2]> =
            if steps.iter().all(|step| matches!(step, Step::Done(_))) {
                steps.into_iter().filter_map(Step::done).collect()
            } else {
                // Owners are asked at the same time: the answer takes as long as the slowest.
                join_all(steps.into_iter().map(|step| self.finish(step, now))).await.into()
            };
        Answer { allowed: statuses.iter().all(|status| status.allowed), statuses }
    }
}

impl Decider {
    /// A decider over `parts`.
    pub fn new(parts: Parts) -> Self {
        let shared = Shared {
            parts,
            counters: Counters::default(),
            denials: Denials::default(),
            seen: Seen::default(),
            next_id: AtomicU64::new(1),
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

    pub(super) fn denials(&self) -> &Denials {
        &self.shared.denials
    }

    pub(super) fn seen(&self) -> &Seen {
        &self.shared.seen
    }

    /// Does what needs nobody else.
    fn begin(&self, plan: Plan, now: Timestamp) -> Step {
        let counters = self.counters();
        let (rule, mut check) = match plan {
            Plan::Pass(rule) => return Step::Done(Status::unlimited(rule)),
            Plan::Eventual(rule, check) => {
                let verdicts = self.count_eventual(&check, now);
                counters.local.fetch_add(1, Ordering::Relaxed);
                return Step::Done(Status::new(rule, check.hits, verdicts, Source::Local));
            }
            Plan::Strict(rule, check) => (rule, check),
        };
        if let Some(verdicts) = self.decide_if_held(&check, now) {
            self.tell_refund(&check);
            if check.durability == Durability::Replicated {
                return Step::Confirm(rule, check, verdicts);
            }
            counters.local.fetch_add(1, Ordering::Relaxed);
            return Step::Done(Status::new(rule, check.hits, verdicts, Source::Local));
        }
        if let Some(verdicts) = self.denials().recall(&check, now) {
            counters.remembered.fetch_add(1, Ordering::Relaxed);
            return Step::Done(Status::new(rule, check.hits, verdicts, Source::Remembered));
        }
        check.id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        Step::Ask(rule, check)
    }

    /// Does what others are needed for.
    async fn finish(&self, step: Step, now: Timestamp) -> Status {
        let (rule, check, outcome) = match step {
            Step::Done(status) => return status,
            Step::Confirm(rule, check, verdicts) => {
                let remote = self.parts().remote.as_ref();
                let within = remote.map(|remote| remote.deadline(check.scope)).unwrap_or_default();
                let is_confirmed = self.is_confirmed(&check, &verdicts, within).await;
                let outcome = is_confirmed.then_some((verdicts, Source::Local));
                (rule, check, outcome.ok_or(NoVerdict::Unconfirmed))
            }
            Step::Ask(rule, check) => {
                let outcome = self.ask_and_remember(&check, now).await;
                (rule, check, outcome)
            }
        };
        let counters = self.counters();
        match outcome {
            Ok((verdicts, source)) => {
                let counter = match source {
                    Source::Owner => &counters.forwarded,
                    _ => &counters.local,
                };
                counter.fetch_add(1, Ordering::Relaxed);
                Status::new(rule, check.hits, verdicts, source)
            }
            Err(why) => {
                if why == NoVerdict::Unconfirmed {
                    counters.unconfirmed.fetch_add(1, Ordering::Relaxed);
                }
                self.by_policy(rule, &check, now)
            }
        }
    }

    async fn ask_and_remember(
        &self,
        check: &Check,
        now: Timestamp,
    ) -> Result<(Verdicts, Source), NoVerdict> {
        let place = check.counters.first().ok_or(NoVerdict::Unavailable)?.key.place;
        let ticket = self.denials().ticket(place);
        let outcome = self.ask_around(check).await;
        if check.hits.refund() > 0 {
            // The owner's notice may come later than its answer, and whoever gave hits back wants
            // to find them. Whether the owner did it is unknown when it did not answer.
            self.denials().forget(place);
        } else if let Ok((verdicts, Source::Owner)) = &outcome {
            self.denials().remember(ticket, check, now, verdicts);
        }
        outcome
    }

    fn count_eventual(&self, check: &Check, now: Timestamp) -> Verdicts {
        let parts = self.parts();
        // A node that stands alone has nobody to tell: its own count is the whole count.
        let Some(remote) = &parts.remote else {
            return parts.store.check(&check.counters, check.hits, now);
        };
        let me = parts.incarnation.actor();
        let verdicts = parts.store.check_eventual(&check.counters, check.hits, me, now);
        if check.hits.charge() > 0 && verdicts.iter().any(is_urgent) {
            remote.synchroniser.hurry();
        }
        verdicts
    }

    fn by_policy(&self, rule: Arc<Rule>, check: &Check, now: Timestamp) -> Status {
        self.counters().policy.fetch_add(1, Ordering::Relaxed);
        RuleStats::add(&rule.stats.unavailable, 1);
        let parts = self.parts();
        let topology = parts.topology.load();
        let verdicts = policy::answer(rule.on_unavailable, check, &topology, &parts.store, now);
        Status::new(rule, check.hits, verdicts, Source::Policy)
    }
}

impl Step {
    fn done(self) -> Option<Status> {
        match self {
            Self::Done(status) => Some(status),
            Self::Confirm(..) | Self::Ask(..) => None,
        }
    }
}

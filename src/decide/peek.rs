//! What the counters of a descriptor hold, for an operator to see: nothing is charged, and neither
//! the verdicts of the metrics nor a statistic of a rule count it. An owner that is asked counts it
//! as any check of a peer, and the rule an owner that does not answer. And hits that an operator
//! gives back.
//!
//! Of a leased limit whose regions share it, this is the share that the key has here.

use std::sync::Arc;

use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::policy::Mode;
use tidegate_limiter::quota::{Quota, QuotaParts};
use tidegate_limiter::store::{Counter, LocalActor, Verdicts};
use tidegate_limiter::units::{Hits, Timestamp};
use tidegate_rules::book::Rule;

use super::check::{CheckRequest, VerdictSource};
use super::decider::{Decider, Shared};
use super::plan::{PlannedCheck, Planner};

/// What was found.
#[derive(Clone, Debug)]
pub struct Peeked {
    pub rule: Arc<Rule>,
    /// One per limit of the rule.
    pub verdicts: Verdicts,
    pub source: VerdictSource,
}

/// Hits that were given back by hand.
#[derive(Clone, Copy, Debug)]
pub struct GivenBack {
    pub source: VerdictSource,
    /// How many there were to give back: of an eventual rule in a cluster those that this node knew
    /// of, of any other rule if it is seen that there were fewer than asked for.
    pub known: Option<u64>,
}

impl Decider {
    /// Peeks at the counters of a descriptor, also if it is blocked by hand; `None` if no limit
    /// applies to it.
    pub async fn peek(&self, domain: &str, entries: &[Entry<'_>]) -> Option<Peeked> {
        let now = self.shared.node.clock.now();
        let check = self.plan_by_hand(domain, entries, Hits::PEEK)?;
        let step = self.begin_uncounted(&check, Hits::PEEK, now);
        let (verdicts, source) = self.finish_uncounted(&check, Hits::PEEK, step, now).await;
        Some(Peeked { rule: check.rule, verdicts, source })
    }

    /// Gives hits of a descriptor back, also if it is blocked by hand; `None` if no limit applies
    /// to it.
    pub async fn refund_by_hand(
        &self,
        domain: &str,
        entries: &[Entry<'_>],
        hits: Hits,
    ) -> Option<GivenBack> {
        let now = self.shared.node.clock.now();
        let check = self.plan_by_hand(domain, entries, hits)?;
        let known = self.known_hits(&check, now);
        let step = self.begin_uncounted(&check, Hits::PEEK, now);
        let (before, _) = self.finish_uncounted(&check, Hits::PEEK, step, now).await;
        let step = self.begin(&check, hits, now);
        let (after, source) = self.finish(&check, hits, step, now).await;
        let known = known.or_else(|| fewer(&check, &before, &after, hits));
        Some(GivenBack { source, known })
    }

    fn plan_by_hand(
        &self,
        domain: &str,
        entries: &[Entry<'_>],
        hits: Hits,
    ) -> Option<PlannedCheck> {
        let Shared { node, rules, without_envoy, options, .. } = &*self.shared;
        let book = rules.book.load_full();
        if !book.has_domain(domain) {
            return None;
        }
        let planner = Planner {
            book: &book,
            hasher: &node.hasher,
            interventions: &node.interventions,
            envoy: without_envoy,
            on_unavailable: options.on_unavailable,
            tallies: &rules.tallies,
        };
        let entries = entries.to_vec();
        let descriptors = [Descriptor { entries, hits: None, limit: None }];
        let request = CheckRequest { domain, descriptors: &descriptors, hits, for_envoy: false };
        let check = planner.plan(&request).pop().flatten().filter(PlannedCheck::has_limits)?;
        // A block refuses clients, and hides no count from an operator.
        Some(PlannedCheck { blocked_until: Timestamp::EPOCH, ..check })
    }

    /// The most hits of any counter of an eventual check that this node knows of; `None` of other
    /// rules, and of a node that knows all there are.
    fn known_hits(&self, check: &PlannedCheck, now: Timestamp) -> Option<u64> {
        let Shared { node, peers, .. } = &*self.shared;
        let peers = peers.as_ref().filter(|_| check.rule.mode == Mode::Eventual)?;
        let endless = |counter: &Counter| {
            let parts = QuotaParts::from(counter.quota);
            let quota = Quota::new(QuotaParts { limit: u32::MAX, burst: u32::MAX, ..parts });
            Counter { key: counter.key, quota: quota.unwrap_or(counter.quota) }
        };
        let slack_divisor = peers.synchroniser.slack_divisor();
        let local = LocalActor { actor: node.incarnation.actor(), slack_divisor };
        let counters = check.counters.iter().map(endless);
        let known = counters.map(|counter| {
            let verdicts = node.store.check_eventual(&[counter], Hits::PEEK, local, now);
            let left = verdicts.first().map_or(0, |verdict| verdict.remaining);
            u64::from(counter.quota.limit().saturating_sub(left))
        });
        known.max()
    }
}

/// How many hits were given back of `hits`, if they were fewer: then nothing is used any more, or
/// nothing has changed. `None` if that is not seen, because requests came in between, or more was
/// used before than the limit.
fn fewer(check: &PlannedCheck, before: &Verdicts, after: &Verdicts, hits: Hits) -> Option<u64> {
    // Hits that are granted delay what is given back.
    let is_immediate = check.rule.mode != Mode::Leased;
    let of_counter = |(counter, (before, after)): (&Counter, (&Verdict, &Verdict))| {
        let given = u64::from(after.remaining.saturating_sub(before.remaining));
        let is_end = after.remaining >= counter.quota.capacity() || given == 0 && is_immediate;
        (is_end && before.remaining > 0 && given < hits.refund()).then_some(given)
    };
    let verdicts = before.iter().zip(after);
    check
        .counters
        .iter()
        .zip(verdicts)
        .map(of_counter)
        .try_fold(0, |most, given| Some(most.max(given?)))
}

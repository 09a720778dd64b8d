//! From verdicts to the status of a descriptor, counted in the statistics.
//!
//! A rule with several limits is counted by its most restrictive verdict. The value that
//! envoyproxy/ratelimit calls a counter *after* a request is `limit − remaining` of a request that
//! passed and `limit + excess` of one that did not; a fixed window knows both exactly. Refunds,
//! which envoyproxy/ratelimit does not have, are not counted.

use std::sync::atomic::AtomicU64;

use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::policy::Mode;
use tidegate_limiter::quota::Algorithm;
use tidegate_rules::book::Rule;
use tidegate_rules::stats::RuleStats;
use tidegate_rules::tally::Outcome;

use super::check::{Status, VerdictSource};
use super::decider::{Decider, Shared};
use super::outcome::Decided;
use super::plan::PlannedCheck;

impl Decider {
    /// The status of a check that was decided, counted in the statistics of its rule.
    pub(super) fn status(&self, check: PlannedCheck, decided: Decided) -> Status {
        let (rule, hits) = (&check.rule, check.hits);
        let (verdicts, source) = decided;
        let is_within = is_within(&verdicts);
        let counter = match (is_within, rule.shadow) {
            (true, _) => &rule.stats.allowed,
            (false, false) => &rule.stats.denied,
            (false, true) => &rule.stats.shadowed,
        };
        RuleStats::add(counter, hits.charge());
        if let Some(counter) = self.decided_by(rule, source) {
            RuleStats::add(counter, 1);
        }
        if is_within && source == VerdictSource::Owner {
            RuleStats::add(&rule.stats.admitted_by_owner, 1);
        }
        let allowed = is_within || rule.shadow;
        let leading = leading(&verdicts);
        if let Some(index) = leading
            && let Some(verdict) = verdicts.get(index)
            && hits.refund() == 0
        {
            let is_fixed =
                rule.limits.get(index).is_some_and(|it| it.algorithm() == Algorithm::FixedWindow);
            let is_exact = is_fixed && source != VerdictSource::Fallback;
            let (after, outcome) = counter_after(verdict, hits.charge(), is_exact, source);
            self.tally(&check, verdict.limit, after, outcome);
        }
        let PlannedCheck { rule, metadata, .. } = check;
        let status = Status { rule: Some(rule), allowed, verdicts, leading, source, metadata };
        if let Some(rule) = status.rule.as_ref().filter(|_| status.is_soft_limited()) {
            RuleStats::add(&rule.stats.soft_limited, hits.charge());
        }
        status
    }

    /// The counter for where a check of `rule` was decided; that of `on_unavailable` is another.
    fn decided_by<'a>(&self, rule: &'a Rule, source: VerdictSource) -> Option<&'a AtomicU64> {
        let Shared { node, peers, .. } = &*self.shared;
        let stats = &rule.stats;
        let is_alone =
            || rule.mode == Mode::Eventual && peers.is_some() && !node.ownership.has_lease();
        match source {
            VerdictSource::Local if is_alone() => Some(&stats.alone),
            VerdictSource::Local => Some(&stats.local),
            VerdictSource::Owner => Some(&stats.by_owner),
            VerdictSource::Grant => Some(&stats.by_grant),
            VerdictSource::NegativeCache => Some(&stats.remembered),
            VerdictSource::Fallback
            | VerdictSource::Unlimited
            | VerdictSource::Blocked
            | VerdictSource::InFlight => None,
        }
    }

    /// Counts as envoyproxy/ratelimit does, under the name that it uses.
    fn tally(&self, check: &PlannedCheck, limit: u32, after: u64, outcome: Outcome) {
        let Shared { rules, options, .. } = &*self.shared;
        let (rule, hits) = (&check.rule, check.hits.charge());
        let named;
        let tally = match &check.tally_name {
            None => rule.stats.tally(&rules.tallies, &rule.id),
            Some(name) => {
                named = rules.tallies.of(name);
                &named
            }
        };
        tally.count(limit, after, hits, outcome, rule.shadow, options.envoy.near_limit_ratio);
    }
}

/// Whether every limit lets the hits pass.
pub(super) fn is_within(verdicts: &[Verdict]) -> bool {
    verdicts.iter().all(|verdict| verdict.allowed)
}

/// Index of the most restrictive verdict; see [`Status::leading`].
pub(super) fn leading(verdicts: &[Verdict]) -> Option<usize> {
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

/// The counter of envoyproxy/ratelimit after this request.
fn counter_after(
    verdict: &Verdict,
    hits: u64,
    is_exact: bool,
    source: VerdictSource,
) -> (u64, Outcome) {
    let limit = u64::from(verdict.limit);
    if verdict.allowed {
        let used = limit.saturating_sub(u64::from(verdict.remaining));
        return (if is_exact { used } else { used.max(hits) }, Outcome::Within);
    }
    // A refusal that counted nothing refused all hits.
    let excess = if verdict.excess == 0 { hits } else { u64::from(verdict.excess) };
    let is_cached = source == VerdictSource::NegativeCache;
    let outcome = if is_cached { Outcome::OverFromMemory } else { Outcome::Over };
    (limit.saturating_add(excess), outcome)
}

//! From verdicts to a status, counted in the statistics.
//!
//! A rule of several limits is counted by the verdict that speaks for it. What
//! envoyproxy/ratelimit calls a counter *after* an ask is `limit − remaining` of an ask that passed
//! and `limit + excess` of one that did not; a fixed window knows both exactly. Refunds, which it
//! does not know, are not counted.

use tidegate_limiter::quota::Algorithm;
use tidegate_limiter::store::Verdicts;
use tidegate_rules::rule::RuleStats;
use tidegate_rules::tally::Outcome as Tallied;

use super::ask::{Status, VerdictSource, leading};
use super::parts::Parts;
use super::plan::{Limited, Plan};

/// What was decided for one descriptor.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// One a limit of the rule.
    pub(super) verdicts: Verdicts,
    /// How they came about.
    pub(super) source: VerdictSource,
}

impl Outcome {
    /// Whether every limit lets the hits pass.
    pub(super) fn is_within(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.allowed)
    }
}

impl Status {
    /// The statuses of `plans`, of which those with a limit have these outcomes, in their order.
    pub(super) fn all<C: FromIterator<Self>>(
        plans: impl IntoIterator<Item = Plan>,
        outcomes: impl IntoIterator<Item = Outcome>,
        parts: &Parts,
    ) -> C {
        let mut outcomes = outcomes.into_iter();
        let status = |plan| match plan {
            Plan::Pass(rule) => Self::unlimited(rule),
            Plan::Limit(limited) => match outcomes.next() {
                Some(outcome) => Self::new(limited, outcome, parts),
                None => Self::unlimited(None),
            },
        };
        plans.into_iter().map(status).collect()
    }

    /// The status that an outcome makes.
    fn new(limited: Limited, outcome: Outcome, parts: &Parts) -> Self {
        let Outcome { verdicts, source } = &outcome;
        let (rule, hits) = (&limited.rule, limited.check.hits);
        let is_within = outcome.is_within();
        let counter = match (is_within, rule.shadow) {
            (true, _) => &rule.stats.allowed,
            (false, false) => &rule.stats.denied,
            (false, true) => &rule.stats.shadowed,
        };
        RuleStats::add(counter, hits.charge());
        let allowed = is_within || rule.shadow;
        let leading = leading(verdicts);
        if let Some(leading) = leading
            && hits.refund() == 0
        {
            count(&limited, leading, verdicts, *source, parts);
        }
        let Limited { rule, metadata, .. } = limited;
        let Outcome { verdicts, source } = outcome;
        Self { allowed, rule: Some(rule), verdicts, leading, source, metadata }
    }
}

/// Counts as envoyproxy/ratelimit does, under the name that it uses.
fn count(
    limited: &Limited,
    leading: usize,
    verdicts: &Verdicts,
    source: VerdictSource,
    parts: &Parts,
) {
    let Limited { rule, check, name, .. } = limited;
    let Some(verdict) = verdicts.get(leading) else { return };
    let hits = check.hits.charge();
    let limit = u64::from(verdict.limit);
    let (after, outcome) = if verdict.allowed {
        let used = limit.saturating_sub(u64::from(verdict.remaining));
        let is_exact = source != VerdictSource::Policy
            && rule.limits.get(leading).is_some_and(|it| it.algorithm() == Algorithm::FixedWindow);
        (if is_exact { used } else { used.max(hits) }, Tallied::Within)
    } else {
        // Whoever refused without counting anything refused all of it.
        let excess = if verdict.excess == 0 { hits } else { u64::from(verdict.excess) };
        let is_remembered = source == VerdictSource::Remembered;
        let outcome = if is_remembered { Tallied::OverFromMemory } else { Tallied::Over };
        (limit.saturating_add(excess), outcome)
    };
    let ratio = parts.envoy.near_limit_ratio;
    match name {
        None => rule.stats.tally(&parts.tallies, &rule.id).count(
            verdict.limit,
            after,
            hits,
            outcome,
            rule.shadow,
            ratio,
        ),
        Some(name) => {
            let tally = parts.tallies.of(name);
            tally.count(verdict.limit, after, hits, outcome, rule.shadow, ratio);
        }
    }
}

//! What is counted of limits that requests carry, in the statistics of their two rules, as those of
//! rules are.

use std::sync::atomic::AtomicU64;

use tidegate_rules::stats::{RuleCounts, RuleStats};

use super::carried::{CarriedCheck, CarriedVerdict};
use super::check::VerdictSource;
use super::decider::{CarriedRules, Decider};

impl Decider {
    /// The rules of limits that requests carry, with what this node has counted of them.
    pub fn carried_rules(&self) -> &CarriedRules {
        &self.shared.options.carried_rules
    }

    /// Counts checks that were decided together, with one addition to each counter. What
    /// `on_unavailable` decided, and what became of granted hits, is counted where it happens.
    pub fn count_carried(&self, checks: &[CarriedCheck<'_>], decided: &[CarriedVerdict]) {
        let CarriedRules { strict, leased } = self.carried_rules();
        for (rule, is_leased) in [(strict, false), (leased, true)] {
            let of_rule = checks.iter().zip(decided).filter(|(it, _)| it.is_leased == is_leased);
            add(&rule.stats, &counts(of_rule));
        }
    }
}

fn counts<'a, 'c: 'a>(
    decided: impl Iterator<Item = (&'a CarriedCheck<'c>, &'a CarriedVerdict)>,
) -> RuleCounts {
    let mut counts = RuleCounts::default();
    for (check, decided) in decided {
        let is_admitted = decided.verdict.allowed;
        let hits = if is_admitted { &mut counts.allowed } else { &mut counts.denied };
        *hits = hits.saturating_add(check.hits.charge());
        let checks = match decided.source {
            VerdictSource::Local => &mut counts.local,
            VerdictSource::Owner => {
                counts.admitted_by_owner += u64::from(is_admitted);
                &mut counts.by_owner
            }
            VerdictSource::Grant => &mut counts.by_grant,
            VerdictSource::NegativeCache => &mut counts.remembered,
            VerdictSource::Fallback
            | VerdictSource::Unlimited
            | VerdictSource::Blocked
            | VerdictSource::InFlight => continue,
        };
        *checks += 1;
    }
    counts
}

fn add(stats: &RuleStats, counts: &RuleCounts) {
    let counters: [(&AtomicU64, u64); 7] = [
        (&stats.allowed, counts.allowed),
        (&stats.denied, counts.denied),
        (&stats.local, counts.local),
        (&stats.by_grant, counts.by_grant),
        (&stats.by_owner, counts.by_owner),
        (&stats.admitted_by_owner, counts.admitted_by_owner),
        (&stats.remembered, counts.remembered),
    ];
    for (counter, count) in counters {
        if count > 0 {
            RuleStats::add(counter, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::engine::{Behavior, Verdict};
    use tidegate_limiter::quota::{Algorithm, Quota};
    use tidegate_limiter::units::{Hits, Span, Timestamp};

    use super::super::fallback;
    use super::*;

    #[test]
    fn hits_are_counted_by_outcome_and_checks_by_source() {
        let quota = Quota::simple(Algorithm::FirstHitWindow, 10, Span::from_secs(60));
        let quota = quota.expect("valid");
        let of = |hits, allowed, source| {
            let check = CarriedCheck {
                name: "n",
                unique_key: "k",
                part: [0; 3],
                quota,
                hits: Hits::new(hits),
                behavior: Behavior::default(),
                at: None,
                resets: false,
                is_leased: false,
            };
            let verdict = Verdict { allowed, ..fallback::denied(&quota) };
            (check, CarriedVerdict { verdict, now: Timestamp::EPOCH, source, owner: None })
        };
        let decided = [
            of(3, true, VerdictSource::Local),
            of(0, true, VerdictSource::Local),
            of(-2, true, VerdictSource::Owner),
            of(5, false, VerdictSource::Owner),
            of(7, false, VerdictSource::NegativeCache),
            of(1, true, VerdictSource::Grant),
            // Counted where it happens.
            of(1, true, VerdictSource::Fallback),
        ];
        let expected = RuleCounts {
            allowed: 5,
            denied: 12,
            local: 2,
            by_owner: 2,
            admitted_by_owner: 1,
            remembered: 1,
            by_grant: 1,
            ..RuleCounts::default()
        };
        let counted = counts(decided.iter().map(|(check, decided)| (check, decided)));
        assert_eq!(counted, expected);
        let stats = RuleStats::default();
        add(&stats, &counted);
        assert_eq!(stats.read(), expected);
    }
}

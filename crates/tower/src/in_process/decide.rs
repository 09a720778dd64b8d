//! From a check to a status for each descriptor, as a node without a cluster decides it.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::store::{Counter, KeyHasher, Store, Verdicts};
use tidegate_limiter::units::{Hits, Timestamp};
use tidegate_rules::book::{Book, Rule};
use tidegate_rules::stats::RuleStats;

use crate::check::{Check, Descriptor};

/// The result of a descriptor that a rule matches.
#[derive(Debug)]
pub(super) struct Status<'b> {
    /// The position of the descriptor.
    pub(super) at: usize,
    pub(super) rule: &'b Rule,
    /// One per limit of the rule, in its order; empty when the rule has no limit.
    pub(super) verdicts: Verdicts,
}

/// One per descriptor that a rule matches and no other replaces, in their order.
pub(super) type Statuses<'b> = SmallVec<[Status<'b>; 1]>;

/// A rule that applies to a descriptor, with the counters that it charges.
struct Planned<'b> {
    at: usize,
    rule: &'b Arc<Rule>,
    counters: SmallVec<[Counter; 1]>,
}

/// Decides each descriptor of `check`.
#[inline]
pub(super) fn decide<'b>(
    book: &'b Book,
    hasher: &KeyHasher,
    store: &Store,
    check: &Check<'_>,
    hits: Hits,
    now: Timestamp,
) -> Statuses<'b> {
    let plan = |(at, it): (usize, &Descriptor)| plan(book, hasher, check.domain, (at, it));
    let status = |Planned { at, rule, counters }: Planned<'b>| {
        let verdicts = store.check(&counters, hits, now);
        let status = Status { at, rule, verdicts };
        status.count(hits);
        status
    };
    if let [descriptor] = check.descriptors {
        return plan((0, descriptor)).map(|plan| smallvec![status(plan)]).unwrap_or_default();
    }
    let descriptors = check.descriptors.iter().enumerate();
    let mut plans: SmallVec<[Planned<'b>; 2]> = descriptors.filter_map(plan).collect();
    drop_replaced(&mut plans);
    plans.into_iter().map(status).collect()
}

#[inline]
fn plan<'b>(
    book: &'b Book,
    hasher: &KeyHasher,
    domain: &str,
    (at, descriptor): (usize, &Descriptor),
) -> Option<Planned<'b>> {
    let entries: SmallVec<[Entry<'_>; 2]> =
        descriptor.entries().map(|(key, value)| Entry { key, value }).collect();
    let found = book.find(domain, &entries)?;
    let rule = found.rule;
    if rule.limits.is_empty() {
        return Some(Planned { at, rule, counters: SmallVec::new() });
    }
    let hash = match found.counted_as(&entries) {
        Some(shared) => hasher.descriptor(domain, &shared),
        None => hasher.descriptor(domain, &entries),
    };
    let counter =
        |quota| Counter { key: hash.counter(quota, rule.mode, rule.scope), quota: *quota };
    Some(Planned { at, rule, counters: rule.limits.iter().map(counter).collect() })
}

/// A rule that another rule of the same request names in `replaces` does not apply. An unlimited
/// rule can replace others and is never replaced: it has no limit to lift.
fn drop_replaced(plans: &mut SmallVec<[Planned<'_>; 2]>) {
    if plans.iter().all(|plan| plan.rule.replaces.is_empty()) {
        return;
    }
    let replaced: Vec<Arc<str>> =
        plans.iter().flat_map(|plan| plan.rule.replaces.iter().cloned()).collect();
    plans.retain(|plan| {
        let name = plan.rule.name.as_ref().filter(|_| !plan.counters.is_empty());
        !name.is_some_and(|name| replaced.contains(name))
    });
}

impl Status<'_> {
    /// Whether every limit lets the hits pass.
    #[inline]
    pub(super) fn is_within(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.allowed)
    }

    fn count(&self, hits: Hits) {
        let stats = &self.rule.stats;
        let counter = match (self.is_within(), self.rule.shadow) {
            (true, _) => &stats.allowed,
            (false, false) => &stats.denied,
            (false, true) => &stats.shadowed,
        };
        RuleStats::add(counter, hits.charge());
        if self.rule.is_soft_limited(&self.verdicts) {
            RuleStats::add(&stats.soft_limited, hits.charge());
        }
        if !self.verdicts.is_empty() {
            RuleStats::add(&stats.local, 1);
        }
    }
}

/// Whether the request may pass: no rule refuses it (shadow mode and quota rules aside), and its
/// quota rules do not all refuse it.
#[inline]
pub(super) fn is_allowed(statuses: &[Status<'_>]) -> bool {
    let (mut quotas, mut quotas_refused) = (0, 0);
    for status in statuses.iter().filter(|status| !status.verdicts.is_empty()) {
        let is_over = !status.is_within() && !status.rule.shadow;
        if status.rule.quota_mode {
            quotas += 1;
            quotas_refused += usize::from(is_over);
        } else if is_over {
            return false;
        }
    }
    quotas == 0 || quotas_refused < quotas
}

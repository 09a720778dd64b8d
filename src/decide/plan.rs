//! What is to be done for one request, decided before anything is done.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_cluster::mesh::wire::Check;
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::store::{Counter, KeyHasher};
use tidegate_limiter::units::Hits;
use tidegate_rules::Found;
use tidegate_rules::book::{Book, Rule};
use tidegate_rules::metadata::Metadata;
use tidegate_rules::tally::Tallies;

use super::CheckRequest;
use crate::config::Envoy;

/// What is to be done for one descriptor.
#[derive(Clone, Debug)]
pub(super) enum Plan {
    /// No rule matches, or the rule has no limit.
    Pass(Option<Arc<Rule>>),
    /// Have it decided.
    Limit(Limited),
}

/// A descriptor that a limit applies to.
#[derive(Clone, Debug)]
pub(super) struct Limited {
    pub(super) rule: Arc<Rule>,
    pub(super) check: Check,
    /// The name of its hits in the statistics, where that is not the rule's id.
    pub(super) name: Option<Box<str>>,
    /// What Envoy is told when it passes.
    pub(super) metadata: Option<Arc<Metadata>>,
}

/// The plans of a request, one a descriptor.
pub(super) type Plans = SmallVec<[Plan; 2]>;

/// What plans are made from.
#[derive(Clone, Copy)]
pub(super) struct Planner<'a> {
    pub(super) book: &'a Book,
    pub(super) hasher: &'a KeyHasher,
    pub(super) envoy: &'a Envoy,
    pub(super) tallies: &'a Tallies,
}

impl Planner<'_> {
    /// Matches every descriptor and names its counters, then drops what another rule replaces.
    pub(super) fn plan(&self, ask: &CheckRequest<'_>) -> Plans {
        let descriptors = ask.descriptors.iter();
        let mut plans = descriptors.map(|it| self.one(ask.domain, it, ask.hits)).collect();
        drop_replaced(&mut plans);
        plans
    }

    fn one(&self, domain: &str, descriptor: &Descriptor<'_>, hits: Hits) -> Plan {
        let hits = descriptor.hits.unwrap_or(hits);
        let entries = &descriptor.entries;
        if let Some(limit) = descriptor.limit.filter(|_| self.envoy.overrides)
            && self.book.has_domain(domain)
        {
            let rule = Arc::new(Rule::brought_along(domain, entries, limit));
            let check = self.check(&rule, domain, entries, hits);
            return Plan::Limit(Limited { rule, check, name: None, metadata: None });
        }
        let Some(found) = self.book.find(domain, entries) else {
            if !self.book.has_domain(domain) {
                self.tallies.domain_not_found(domain);
            }
            return Plan::Pass(None);
        };
        if found.rule.limits.is_empty() {
            return Plan::Pass(Some(found.rule.clone()));
        }
        let check = match found.counted_as(entries) {
            Some(shared) => self.check(found.rule, domain, &shared, hits),
            None => self.check(found.rule, domain, entries, hits),
        };
        let Found { rule, name, metadata, .. } = found;
        Plan::Limit(Limited { rule: rule.clone(), check, name, metadata: metadata.cloned() })
    }

    fn check(&self, rule: &Rule, domain: &str, entries: &[Entry<'_>], hits: Hits) -> Check {
        let hash = self.hasher.descriptor(domain, entries);
        let counters = rule
            .limits
            .iter()
            .map(|quota| Counter { key: hash.counter(quota, rule.mode, rule.scope), quota: *quota })
            .collect();
        // Only a check that leaves this node needs a name.
        Check { id: 0, scope: rule.scope, counters, hits, durability: rule.durability }
    }
}

impl Plan {
    /// The limit that applies, if one does.
    pub(super) fn limited(&self) -> Option<&Limited> {
        match self {
            Self::Limit(limited) => Some(limited),
            Self::Pass(_) => None,
        }
    }
}

/// A rule that is named by another's `replaces` does not apply to the same request. An unlimited
/// rule replaces too, and is not replaced: there is nothing to lift.
///
/// Source: envoyproxy/ratelimit, `src/service/ratelimit.go`, `constructLimitsToCheck`.
fn drop_replaced(plans: &mut Plans) {
    let rules = plans.iter().filter_map(|plan| match plan {
        Plan::Pass(rule) => rule.as_deref(),
        Plan::Limit(limited) => Some(&*limited.rule),
    });
    let replaced: SmallVec<[Arc<str>; 2]> =
        rules.flat_map(|rule| rule.replaces.iter().cloned()).collect();
    if replaced.is_empty() {
        return;
    }
    for plan in plans {
        let name = plan.limited().and_then(|limited| limited.rule.name.as_ref());
        if name.is_some_and(|name| replaced.contains(name)) {
            *plan = Plan::Pass(None);
        }
    }
}

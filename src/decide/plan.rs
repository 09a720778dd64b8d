//! From a request to planned checks: which rule applies to each descriptor, and which counters it
//! charges. Nothing is counted yet.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_cluster::interventions::Interventions;
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::policy::{Durability, Mode, OnUnavailable};
use tidegate_limiter::store::{Counter, DescriptorHash, KeyHash, KeyHasher};
use tidegate_limiter::units::{Hits, Timestamp};
use tidegate_rules::Found;
use tidegate_rules::book::{Book, Rule};
use tidegate_rules::metadata::Metadata;
use tidegate_rules::tally::Tallies;

use super::check::CheckRequest;
use super::limits::Limits;
use crate::config::Envoy;

/// A rule that applies to one descriptor, with the counters that it charges.
#[derive(Clone, Debug)]
pub(super) struct PlannedCheck {
    pub(super) rule: Arc<Rule>,
    /// One per limit of the rule, all with the same token; empty when the rule has no limit.
    pub(super) counters: SmallVec<[Counter; 1]>,
    pub(super) hits: Hits,
    /// Name of its hits in the statistics, where that is not the rule's id.
    pub(super) tally_name: Option<Box<str>>,
    /// What Envoy receives when the rule lets the request pass.
    pub(super) metadata: Option<Arc<Metadata>>,
    /// Until when an operator has blocked it; [`Timestamp::EPOCH`] if none has.
    pub(super) blocked_until: Timestamp,
}

/// The counters of a descriptor, and until when they are blocked by hand.
type Counted = (SmallVec<[Counter; 1]>, Timestamp);

/// One entry per descriptor; `None` where no rule matches.
pub(super) type Plans = SmallVec<[Option<PlannedCheck>; 2]>;

/// What plans are made from.
#[derive(Clone, Copy)]
pub(super) struct Planner<'a> {
    pub(super) book: &'a Book,
    pub(super) hasher: &'a KeyHasher,
    pub(super) interventions: &'a Interventions,
    pub(super) envoy: &'a Envoy,
    /// Of limits in requests where no rule matches.
    pub(super) on_unavailable: OnUnavailable,
    pub(super) tallies: &'a Tallies,
}

impl Planner<'_> {
    /// Matches every descriptor and derives the keys of its counters, then drops the rules that
    /// another rule replaces.
    pub(super) fn plan(&self, request: &CheckRequest<'_>) -> Plans {
        let descriptors = request.descriptors.iter();
        let mut plans =
            descriptors.map(|it| self.plan_one(request.domain, it, request.hits)).collect();
        drop_replaced(&mut plans);
        plans
    }

    fn plan_one(
        &self,
        domain: &str,
        descriptor: &Descriptor<'_>,
        hits: Hits,
    ) -> Option<PlannedCheck> {
        let hits = descriptor.hits.unwrap_or(hits);
        let entries = &descriptor.entries;
        if let Some(limit) = descriptor.limit.filter(|_| self.envoy.overrides)
            && self.book.has_domain(domain)
        {
            let own = self.hasher.descriptor(domain, entries);
            let (ordered, on_unavailable, durability) = match self.book.find(domain, entries) {
                Some(found) => (
                    descriptor_hash(self.hasher, domain, entries, &found),
                    found.rule.on_unavailable,
                    found.rule.durability,
                ),
                None => (own, self.on_unavailable, Durability::default()),
            };
            let rule = Rule::brought_along(domain, entries, limit, on_unavailable, durability);
            let rule = Arc::new(rule);
            let (counters, blocked_until) = self.counters(&rule, own, ordered);
            let (tally_name, metadata) = (None, None);
            return Some(PlannedCheck {
                rule,
                counters,
                hits,
                tally_name,
                metadata,
                blocked_until,
            });
        }
        let Some(found) = self.book.find(domain, entries) else {
            if !self.book.has_domain(domain) {
                self.tallies.domain_not_found(domain);
            }
            return None;
        };
        let (counters, blocked_until) = if found.rule.limits.is_empty() {
            (SmallVec::new(), Timestamp::EPOCH)
        } else {
            let hash = descriptor_hash(self.hasher, domain, entries, &found);
            self.counters(found.rule, hash, hash)
        };
        let Found { rule, name, metadata, .. } = found;
        let (rule, metadata) = (rule.clone(), metadata.cloned());
        Some(PlannedCheck { rule, counters, hits, tally_name: name, metadata, blocked_until })
    }

    /// The counters of `hash`, after what was done by hand to the descriptor `ordered`: the same,
    /// but for a limit in a request in place of one that several values share.
    fn counters(&self, rule: &Rule, mut hash: DescriptorHash, ordered: DescriptorHash) -> Counted {
        let mut blocked_until = Timestamp::EPOCH;
        if let Some(intervention) = self.interventions.find(ordered) {
            hash = intervention.counts_part_as(hash);
            blocked_until = intervention.block.until;
        }
        let counter = |quota| {
            let key = hash.counter(quota, rule.mode, rule.scope);
            Counter { key, quota: *quota }
        };
        (rule.limits.iter().map(counter).collect(), blocked_until)
    }
}

impl PlannedCheck {
    /// Whether there is anything to decide: a rule without limits always passes.
    pub(super) fn has_limits(&self) -> bool {
        !self.counters.is_empty()
    }

    pub(super) fn limits(&self) -> Limits {
        let Self { rule, counters, .. } = self;
        let leased = (rule.mode == Mode::Leased).then(|| rule.stats.clone());
        let (scope, durability) = (rule.scope, rule.durability);
        Limits { scope, durability, leased, is_share: false, counters: counters.clone() }
    }

    /// The key of its first counter. Equal descriptors have equal keys.
    pub(super) fn key(&self) -> Option<KeyHash> {
        self.counters.first().map(|counter| counter.key)
    }
}

/// The hash under which a descriptor is counted, before interventions: that of its entries, or of
/// those that several values share (`share_threshold`).
pub(crate) fn descriptor_hash(
    hasher: &KeyHasher,
    domain: &str,
    entries: &[Entry<'_>],
    found: &Found<'_>,
) -> DescriptorHash {
    match found.counted_as(entries) {
        Some(shared) => hasher.descriptor(domain, &shared),
        None => hasher.descriptor(domain, entries),
    }
}

/// The names of rules that others of the same request replace, so that they do not apply.
///
/// Source: envoyproxy/ratelimit, `src/service/ratelimit.go`, `constructLimitsToCheck`.
pub(super) fn replaced<'r>(rules: impl Iterator<Item = &'r Rule>) -> SmallVec<[Arc<str>; 2]> {
    rules.flat_map(|rule| rule.replaces.iter().cloned()).collect()
}

/// An unlimited rule can replace others and is never replaced: it has no limit to lift.
fn drop_replaced(plans: &mut Plans) {
    let replaced = replaced(plans.iter().flatten().map(|check| &*check.rule));
    if replaced.is_empty() {
        return;
    }
    for plan in plans {
        let name = plan.as_ref().filter(|it| it.has_limits()).and_then(|it| it.rule.name.as_ref());
        if name.is_some_and(|name| replaced.contains(name)) {
            *plan = None;
        }
    }
}

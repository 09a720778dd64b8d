//! What is to be done for one descriptor, decided before anything is done.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::cluster::mesh::wire::Check;
use crate::config::policy::Mode;
use crate::rules::book::{Book, Rule};
use crate::rules::descriptor::Descriptor;
use crate::store::{Counter, KeyHasher};
use crate::units::Hits;

/// What is to be done for one descriptor.
#[derive(Clone, Debug)]
pub(super) enum Plan {
    /// No rule matches, or the rule has no limit.
    Pass(Option<Arc<Rule>>),
    /// Decide it on the spot, in this node's own column.
    Eventual(Arc<Rule>, Check),
    /// Have it decided by whoever holds its key.
    Strict(Arc<Rule>, Check),
}

/// Matches one descriptor and names its counters. Pure.
pub(super) fn plan(
    book: &Book,
    hasher: &KeyHasher,
    domain: &str,
    descriptor: &Descriptor<'_>,
    hits: Hits,
) -> Plan {
    let Some(rule) = book.find(domain, &descriptor.entries) else { return Plan::Pass(None) };
    let rule = rule.clone();
    if rule.limits.is_empty() {
        return Plan::Pass(Some(rule));
    }
    let hash = hasher.descriptor(domain, &descriptor.entries);
    let counters: SmallVec<[Counter; 1]> = rule
        .limits
        .iter()
        .map(|quota| Counter { key: hash.counter(quota, rule.mode, rule.scope), quota: *quota })
        .collect();
    let check = Check {
        // Only a check that leaves this node needs a name.
        id: 0,
        scope: rule.scope,
        counters,
        hits: descriptor.hits.unwrap_or(hits),
        durability: rule.durability,
    };
    match rule.mode {
        Mode::Eventual => Plan::Eventual(rule, check),
        Mode::Strict => Plan::Strict(rule, check),
    }
}

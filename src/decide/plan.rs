//! What is to be done for one descriptor, decided before anything is done.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::cluster::identity::NodeId;
use crate::cluster::mesh::wire::Check;
use crate::cluster::route::{Route, Topology};
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
    /// Decide it here.
    Here(Arc<Rule>, Check),
    /// Ask its owner.
    Forward(Arc<Rule>, Check, NodeId),
    /// Nobody owns it: every node of its ring drains.
    Nobody(Arc<Rule>, Check),
}

/// Matches one descriptor and routes its key. Pure.
pub(super) fn plan(
    book: &Book,
    topology: &Topology,
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
        id: 0,
        scope: rule.scope,
        counters,
        hits: descriptor.hits.unwrap_or(hits),
        durability: rule.durability,
    };
    if rule.mode == Mode::Eventual {
        return Plan::Here(rule, check);
    }
    match topology.route(rule.scope, hash.place()) {
        Route::Local => Plan::Here(rule, check),
        Route::Forward(owner) => Plan::Forward(rule, check, owner.clone()),
        Route::Nobody => Plan::Nobody(rule, check),
    }
}

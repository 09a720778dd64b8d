//! Keys with a known owner, rings and ownership set by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::config::Config;
use tidegate::decide::{CheckResponse, Counters, VerdictSource};
use tidegate_cluster::mesh::wire::Check;
use tidegate_cluster::ownership::OwnedRanges;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::policy::{Durability, Mode, Scope};
use tidegate_limiter::store::Counter;
use tidegate_limiter::units::{Hits, Span};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::membership::View;
use tidegate_ownership::ranges::Ranges;
use tidegate_ownership::route::Topology;
use tidegate_testkit::in_process::Node;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(15);
pub(crate) const VNODES: u32 = 128;
pub(crate) const RULES: &str = "
domain: test
descriptors:
  - key: window
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 100}
  - key: bucket
    on_unavailable: deny
    rate_limit: {window: 1d, requests_per_unit: 20, algorithm: gcra}
  - key: kept
    on_unavailable: deny
    durability: replicated
    rate_limit: {window: 1d, requests_per_unit: 20, algorithm: gcra}
";

/// Owners have more time than a busy machine takes.
pub(crate) fn patient(config: &mut Config) {
    config.cluster.deadline = Span::from_secs(1);
}

pub(crate) fn id(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// The ring position of one entry.
pub(crate) fn token(node: &Node, key: &str, value: &str) -> u64 {
    let entries = [Entry { key, value }];
    node.core.hasher.descriptor("test", &entries).token()
}

/// A value of `key` whose token satisfies `is_wanted`.
pub(crate) fn value(node: &Node, key: &str, is_wanted: impl Fn(u64) -> bool) -> String {
    let mut values = (0..10_000).map(|n| format!("k{n}"));
    values.find(|value| is_wanted(token(node, key, value))).expect("one of ten thousand")
}

/// A value of `key` that `owner` owns by the ring of `node`.
pub(crate) fn value_of(node: &Node, key: &str, owner: &str) -> String {
    let topology = node.core.topology.load();
    value(node, key, |token| topology.owner(Scope::Region, token) == Some(&id(owner)))
}

/// The ring that `node` sees, less one member.
pub(crate) fn without(node: &Node, gone: &str) -> Topology {
    let now = node.core.topology.load();
    let members = now.view.members().iter().filter(|member| member.id != id(gone)).cloned();
    Topology::new(now.me.clone(), now.region.clone(), View::new(members), VNODES)
}

/// Lets `node` forget the rings before the one it sees.
pub(crate) fn forget_rings(node: &Node) {
    let now = node.core.topology.load();
    let fresh = Topology::new(now.me.clone(), now.region.clone(), now.view.clone(), VNODES);
    node.core.topology.store(Arc::new(fresh));
}

/// Lets `node` believe that the ring it sees took the place of `before`.
pub(crate) fn replaced(node: &Node, before: &Topology) {
    let now = Topology::clone(&node.core.topology.load()).after(before);
    node.core.topology.store(Arc::new(now));
}

/// Sets the ranges that `node` decides, and the node that it names as the new owner of all.
pub(crate) fn holds(node: &Node, decides: Ranges, given: Option<&str>) {
    let given = given.map(|to| (Ranges::all(), id(to))).into_iter().collect();
    let owned_ranges = OwnedRanges { decides, transferred: given, ..OwnedRanges::default() };
    let ownership = &node.core.ownership;
    ownership.publish(ownership.right().leases, owned_ranges);
}

/// A check as a node would forward it.
pub(crate) fn check(node: &Node, check_id: u64, key: &str, value: &str, hits: i64) -> Check {
    let parts = &node.core;
    let entries = [Entry { key, value }];
    let book = parts.book.load();
    let quota = book.find("test", &entries).unwrap().rule.limits[0];
    let hash = parts.hasher.descriptor("test", &entries);
    let key = hash.counter(&quota, Mode::Strict, Scope::Region);
    Check {
        id: check_id,
        scope: Scope::Region,
        counters: [Counter { key, quota }].into_iter().collect(),
        hits: Hits::new(hits),
        durability: Durability::Async,
        deadline: Span::from_nanos(u64::MAX),
    }
}

pub(crate) fn count(node: &Node, counter: fn(&Counters) -> &AtomicU64) -> u64 {
    counter(node.core.decider.counters()).load(Ordering::Relaxed)
}

pub(crate) fn source(answer: &CheckResponse) -> VerdictSource {
    answer.statuses[0].source
}

pub(crate) fn remaining(answer: &CheckResponse) -> u32 {
    answer.statuses[0].verdicts[0].remaining
}

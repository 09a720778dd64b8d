//! Edges change no cluster map: they are in none, and none changes because of them.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::World;
use crate::fault::Fault;
use crate::scenario::Scenario;

/// What was seen of the maps.
#[derive(Debug, Default)]
pub(crate) struct Edges {
    /// When the load began.
    since_ms: Option<u64>,
    /// Epochs of the map that were in force under load, once the map had settled.
    epochs: BTreeSet<u64>,
}

const FOLLOW_INTERVAL_MS: u64 = 50;
/// When the load begins the members have what is to be agreed on after the first map before them.
const SETTLED_AFTER_MS: u64 = 1_500;

impl World<'_> {
    /// Looks for edges in the maps that are in force.
    pub(super) fn follow_edges(&mut self) {
        if self.layout.edges == 0 || !self.is_time(FOLLOW_INTERVAL_MS) {
            return;
        }
        let map = self.newest_map(0);
        let edges = &self.nodes[self.layout.cores()..];
        let is_edge = |name: &str| edges.iter().any(|edge| edge.id == name);
        let found = map.members.iter().find(|one| is_edge(one.identity.node.as_str()));
        if let Some(member) = found {
            let found = format!("{} is an edge, and in the map", member.identity.node);
            if !self.report.violations.contains(&found) {
                self.report.violation(found);
            }
        }
        let now = self.time.millis();
        if !self.traffic.on.load(Ordering::Relaxed) {
            return;
        }
        let since_ms = *self.edges.since_ms.get_or_insert(now);
        if now >= since_ms + SETTLED_AFTER_MS {
            self.edges.epochs.insert(map.epoch.0);
        }
    }

    /// The epochs of the map under load, if there were several and no fault but of edges explains
    /// it.
    pub(crate) fn changed_by_edges(&self, scenario: &Scenario) -> Option<&BTreeSet<u64>> {
        let is_of_edge = |fault: &Fault| fault.node().is_some_and(|node| self.layout.is_edge(node));
        let mut others = scenario.incidents.iter().filter(|it| !is_of_edge(&it.fault));
        let moves_keys = others.any(|incident| incident.fault.moves_keys());
        (!moves_keys && self.edges.epochs.len() > 1).then_some(&self.edges.epochs)
    }
}

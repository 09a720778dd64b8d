//! Who stands for a region and who votes in the global map, how its homes change, and the operator.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use tidegate_ownership::ClusterMap;
use tidegate_ownership::cluster_map::Identity;

use super::World;
use crate::coverage::Situation;
use crate::layout::Failover;
use crate::node::Process;

/// What was seen of the global map.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// The region that the operator says is lost.
    pub(super) order: Option<usize>,
    homes: Vec<String>,
    /// When each region became a home for the last time.
    home_since_ms: BTreeMap<String, u64>,
    /// When a region was struck off last while several others were homes.
    struck_off_ms: Option<u64>,
    voters: BTreeSet<Identity>,
}

const FOLLOW_INTERVAL_MS: u64 = 50;
/// How often the operator repeats an order.
const ORDER_INTERVAL_MS: u64 = 1_000;

impl World<'_> {
    /// Records how the global map has changed, and carries out the order of the operator.
    pub(super) fn follow_regions(&mut self) {
        if self.layout.names.len() == 1 || !self.is_time(FOLLOW_INTERVAL_MS) {
            return;
        }
        self.record_cuts();
        let map = self.newest_global_map();
        let (before, after) = (self.standing.homes.clone(), map.homes.names.clone());
        if !before.is_empty() && before != after {
            self.log.event(format_args!("homes are {after:?}, were {before:?}"));
            if before.iter().any(|region| !after.contains(region)) {
                self.report.reached.insert(match self.layout.failover {
                    Some(Failover::Manual) => Situation::FailedOverByOrder,
                    _ => Situation::RegionFailedOver,
                });
            }
            if after.iter().any(|region| !before.contains(region)) {
                self.report.reached.insert(Situation::RegionReturned);
            }
        }
        let now = self.time.millis();
        // Where all homes were lost at once, the next one may not have their counts.
        let have_counts = before.is_empty() || after.iter().any(|region| before.contains(region));
        for region in after.iter().filter(|region| !before.contains(region)) {
            self.standing.home_since_ms.remove(region);
            if have_counts {
                self.standing.home_since_ms.insert(region.clone(), now);
            }
        }
        if before.iter().any(|region| !after.contains(region)) && after.len() > 1 {
            self.standing.struck_off_ms = Some(now);
        }
        self.standing.homes = after;
        let voters: BTreeSet<Identity> = map.voters.current.iter().cloned().collect();
        if !self.standing.voters.is_empty() && !voters.is_subset(&self.standing.voters) {
            self.report.reached.insert(Situation::GlobalVoterReplaced);
        }
        self.standing.voters = voters;
        let has_copied = |process: &Process| {
            process.global().is_some_and(|global| global.copied.load(Ordering::Relaxed) > 0)
        };
        if self.processes().any(has_copied) {
            self.report.reached.insert(Situation::CopiedHome);
        }
        if self.is_time(ORDER_INTERVAL_MS) {
            self.give_order();
        }
    }

    /// When a region was struck off last while several others were homes.
    pub(super) fn struck_off_ms(&self) -> Option<u64> {
        self.standing.struck_off_ms
    }

    /// When `region` became a home for the last time.
    pub(super) fn home_since_ms(&self, region: usize) -> Option<u64> {
        self.standing.home_since_ms.get(self.layout.names[region]).copied()
    }

    /// Whether node `index` runs and is a member of the global map.
    pub(super) fn stands(&self, index: usize) -> bool {
        let identity = self.nodes[index].process.as_ref().and_then(Process::identity);
        let map = self.newest_global_map();
        identity.is_some_and(|own| map.present().any(|member| member.identity == own))
    }

    /// The nodes that run and vote in the global map.
    pub(super) fn running_global_voters(&self) -> Vec<usize> {
        let map = self.newest_global_map();
        let votes = |index: &usize| {
            let process = self.nodes[*index].process.as_ref();
            let identity = process.and_then(Process::identity);
            identity.is_some_and(|own| map.voters.contains(&own))
        };
        (0..self.nodes.len()).filter(votes).collect()
    }

    /// The global map of the highest epoch that is in force on a running node.
    pub(super) fn newest_global_map(&self) -> Arc<ClusterMap> {
        let maps = self.processes().map(Process::global_map);
        maps.max_by_key(|map| map.epoch).unwrap_or_default()
    }

    pub(super) fn is_cut_off(&self, region: usize) -> bool {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).is_cut_off(region)
    }

    /// Says at each node that reaches others that the region is lost, as `tidegate regions --lost`
    /// does at one.
    fn give_order(&mut self) {
        let Some(region) = self.standing.order else { return };
        let name = self.layout.names[region];
        if !self.newest_global_map().homes.contains(name) {
            return;
        }
        for process in self.processes() {
            let Some(global) = process.global() else { continue };
            let membership = &global.membership;
            if membership.maps().borrow().homes.contains(name) {
                // Those that do not lead refuse.
                let _ = membership.region_lost(name);
            }
        }
    }

    fn record_cuts(&mut self) {
        for region in 0..self.layout.homes {
            if !self.is_cut_off(region) {
                continue;
            }
            self.report.reached.insert(Situation::RegionCutOff);
            let processes = self
                .layout
                .nodes(region)
                .filter_map(|node| self.nodes[node].process.as_ref().and_then(Process::deciding));
            let deciding: Vec<_> = processes.collect();
            if deciding.is_empty() {
                continue;
            }
            if self.layout.failover.is_none() {
                self.report.reached.insert(Situation::CutOffWithFixedHomes);
            } else if deciding.iter().all(|one| !one.has_region_lease) {
                self.report.reached.insert(Situation::CutOffWithoutLease);
            }
        }
    }
}

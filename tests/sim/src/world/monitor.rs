//! Scheduled crashes, records of faults for the checks, and the check for two owners of a token.

use std::sync::PoisonError;

use tidegate_cluster::mesh::IN_FLIGHT_MAX;

use super::{Crash, Stall, World};
use crate::coverage::Situation;
use crate::keys::{self, Key};
use crate::node::{Deciding, Node, Process};

/// A longer pause outlasts a lease.
const LONG_PAUSE_MS: u64 = 600;
const OWNER_CHECK_INTERVAL_MS: u64 = 5;
/// Longest time from a crash fault to the crash.
const CRASH_DELAY_MAX_MS: u64 = 100;
/// After this time without a fault the replicas are complete.
const QUIET_MS: u64 = 5_000;
/// Records searched for a pending request: more than are ever in flight.
const RECENT: usize = 500;
/// `cluster.lease`, and time for a ping in flight.
const LEASE_MS: u64 = 700;
/// A ping interval and a round trip: a node whose machine was stopped may not know it before.
pub(crate) const UNAWARE_MS: u64 = 120;

impl World<'_> {
    /// Schedules a crash for the next moment in which another node waits for a verdict.
    pub(super) fn schedule_crash(&mut self, node: usize) {
        self.pending_crashes.push((node, self.time.millis() + CRASH_DELAY_MAX_MS));
    }

    /// Crashes scheduled nodes for whose verdict another node waits, or whose deadline has passed.
    pub(super) fn run_pending_crashes(&mut self) {
        let now = self.time.millis();
        for (index, deadline_ms) in std::mem::take(&mut self.pending_crashes) {
            let owned = self.owned_keys(index);
            let has_waiter = self.has_waiter(index, &owned);
            if !has_waiter && now < deadline_ms {
                self.pending_crashes.push((index, deadline_ms));
                continue;
            }
            if has_waiter {
                self.report.reached.insert(Situation::OwnerCrashedMidRequest);
            }
            self.crash(index);
        }
    }

    /// Ends the process of node `index` without shutdown, if it runs.
    pub(super) fn crash(&mut self, index: usize) {
        if self.nodes[index].process.is_none() {
            return;
        }
        let now = self.time.millis();
        let owned = self.owned_keys(index);
        let region = self.layout.of_nodes[index];
        // A node without others in its region has no replica.
        let has_replica = {
            let mut others = self.layout.nodes(region).filter(|node| *node != index);
            others.any(|node| self.nodes[node].process.is_some())
        };
        let is_only_fault = has_replica && !self.is_disrupted(region);
        let id = &self.nodes[index].id;
        self.log.event(format_args!("{id} crashes, only_fault={is_only_fault}"));
        self.record_grants(index);
        if self.layout.is_edge(index) {
            self.report.reached.insert(Situation::EdgeCrashed);
        } else {
            self.doubt_recent_crashes(region);
            self.last_disruption_ms[region] = now;
        }
        self.crashes.push(Crash {
            node: index,
            start: self.nodes[index].starts,
            at_ms: now,
            owned,
            is_only_fault,
        });
        self.crashed.push(index);
        self.stalls.push(Stall { node: index, from_ms: now, to_ms: now });
        self.nodes[index].crash();
    }

    /// Records what a node that crashes has granted, and was granted.
    fn record_grants(&mut self, index: usize) {
        let grants = |node: &Node| node.process.as_ref().map(Process::grants).unwrap_or_default();
        let own = grants(&self.nodes[index]);
        if own.held > 0 {
            self.report.reached.insert(Situation::HolderCrashed);
        }
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != index);
        let are_held = others.map(|(_, node)| grants(node)).any(|other| other.held > 0);
        if own.granted > own.taken_back && are_held {
            self.report.reached.insert(Situation::GrantingOwnerCrashed);
        }
    }

    /// A node of `region` ends or is cut off. It may have the replicas of one that crashed shortly
    /// before.
    pub(super) fn doubt_recent_crashes(&mut self, region: usize) {
        let now = self.time.millis();
        let of_nodes = &self.layout.of_nodes;
        let recent =
            |crash: &&mut Crash| of_nodes[crash.node] == region && now - crash.at_ms < QUIET_MS;
        self.crashes.iter_mut().filter(recent).for_each(|crash| crash.is_only_fault = false);
    }

    /// Whether a write to a disk has failed.
    pub(crate) fn has_failed_write(&self) -> bool {
        self.nodes.iter().any(Node::has_failed_write)
    }

    /// The strict keys that node `index` decides.
    fn owned_keys(&self, index: usize) -> Vec<Key> {
        let keys = keys::checked(self.selection);
        keys.filter(|key| key.kind.is_strict() && self.decides(index, *key)).collect()
    }

    /// Whether another node waits for a verdict on one of `owned`, keys of node `index`.
    pub(super) fn has_waiter(&self, index: usize, owned: &[Key]) -> bool {
        self.history.with(|records| {
            records.iter().rev().take(RECENT).any(|record| {
                record.response.is_none() && record.node != index && owned.contains(&record.key)
            })
        })
    }

    pub(super) fn pause(&mut self, index: usize, for_ms: u64, is_machine: bool) {
        let from_ms = self.time.millis();
        self.stalls.push(Stall { node: index, from_ms, to_ms: from_ms + for_ms });
        self.nodes[index].pause(for_ms, is_machine);
        if is_machine {
            self.stops.push((index, from_ms + for_ms));
        }
        if for_ms > LONG_PAUSE_MS {
            self.report.reached.insert(Situation::LongPause);
        }
    }

    /// Records a full send queue if the burst of the previous step was partly sent. With an
    /// unresponsive peer none of it would be.
    pub(super) fn record_full_queue(&mut self) {
        let Some((node, unsent_before)) = self.bursting.take() else { return };
        let Some(process) = &self.nodes[node].process else { return };
        let unsent = process.unsent() - unsent_before;
        if (1..IN_FLIGHT_MAX as u64).contains(&unsent) {
            self.report.reached.insert(Situation::FullQueue);
        }
    }

    /// Whether another fault in `region` is or recently was active, so that replicas may be
    /// incomplete.
    pub(super) fn is_disrupted(&self, region: usize) -> bool {
        let last_ms = self.last_disruption_ms[region];
        let is_recent = self.time.millis() - last_ms <= QUIET_MS;
        self.has_link_faults(region) || last_ms > 0 && is_recent
    }

    pub(super) fn is_any_cut(&self) -> bool {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).is_any_cut()
    }

    /// Whether any link inside of `region` has a fault.
    pub(super) fn has_link_faults(&self, region: usize) -> bool {
        !self.links.lock().unwrap_or_else(PoisonError::into_inner).is_healthy_within(region)
    }

    pub(super) fn record_handoff(&mut self) {
        if self.is_any_cut() {
            self.report.reached.insert(Situation::HandoffInPartition);
        }
    }

    /// Checks that no two running nodes decide the same token, and adds up the time in which they
    /// do.
    pub(super) fn check_single_owner(&mut self) {
        if !self.is_time(OWNER_CHECK_INTERVAL_MS) {
            return;
        }
        self.record_isolation();
        self.record_troubles();
        // A paused process decides nothing, whatever its own clock shows.
        let running = self.nodes.iter().enumerate().filter(|(_, node)| !node.is_paused());
        let deciding: Vec<(usize, Deciding)> = running
            .filter_map(|(index, node)| Some((index, node.process.as_ref()?.deciding()?)))
            .collect();
        let overlap = self.overlaps(&deciding);
        self.follow_owners(&deciding);
        let now = self.time.millis();
        let unaware = self.stops.iter().filter(|(node, end)| {
            let region = self.layout.of_nodes[*node];
            // Also for a moment after the links have healed.
            let last = self.last_link_fault_ms[region];
            let had_faults = last.is_some_and(|last_ms| now <= last_ms + UNAWARE_MS);
            let has_faults = self.has_link_faults(region) || had_faults;
            let unaware_ms = if has_faults { LEASE_MS } else { UNAWARE_MS };
            (*end..=end + unaware_ms).contains(&now)
        });
        let unaware: Vec<usize> = unaware.map(|(node, _)| *node).collect();
        for (one, other) in overlap {
            let (one_id, other_id) = (&self.nodes[one].id, &self.nodes[other].id);
            self.log.event(format_args!("{one_id} and {other_id} own the same tokens"));
            if unaware.contains(&one) || unaware.contains(&other) {
                self.report.unaware_owners_ms += OWNER_CHECK_INTERVAL_MS;
            } else {
                self.report.two_owners_ms += OWNER_CHECK_INTERVAL_MS;
            }
        }
    }

    /// Records which nodes are not reached by some others, or do not run, at present.
    fn record_isolation(&mut self) {
        let now = self.time.millis();
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if node.is_paused() || links.isolates(index) {
                node.isolated_ms = Some(now);
            }
        }
    }
}

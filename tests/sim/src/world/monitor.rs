//! Scheduled crashes, records of faults for the checks, and the check for two owners of a token.

use std::sync::PoisonError;

use tidegate_cluster::mesh::IN_FLIGHT_MAX;
use tidegate_ownership::ranges::Ranges;

use super::{Crash, Isolation, Stall, World};
use crate::coverage::Situation;
use crate::fault::Fault;
use crate::keys::{self, Key};
use crate::scenario::LOAD_MS;

/// A longer pause outlasts a lease.
const LONG_PAUSE_MS: u64 = 600;
const OWNER_CHECK_INTERVAL_MS: u64 = 5;
/// Longest time from a crash fault to the crash.
const CRASH_DELAY_MAX_MS: u64 = 100;
/// After this time without a fault the replicas are complete.
const QUIET_MS: u64 = 2_000;
/// Records searched for a pending request: more than are ever in flight.
const RECENT: usize = 500;
/// `cluster.lease`, and time for a ping in flight.
const LEASE_MS: u64 = 700;
/// A ping interval and a round trip: a node whose machine was stopped may not know it before.
const UNAWARE_MS: u64 = 120;
/// `cluster.replicas`
const REPLICAS: usize = 1;

impl World<'_> {
    /// Schedules a crash for the next moment in which another node waits for a verdict.
    pub(super) fn schedule_crash(&mut self, node: usize) {
        self.pending_crashes.push((node, self.time.millis() + CRASH_DELAY_MAX_MS));
    }

    /// Crashes scheduled nodes for whose verdict another node waits, or whose deadline has passed.
    pub(super) fn run_pending_crashes(&mut self) {
        let now = self.time.millis();
        for (index, deadline_ms) in std::mem::take(&mut self.pending_crashes) {
            let node = &self.nodes[index];
            let owned: Vec<Key> = keys::checked()
                .filter(|key| key.kind.is_strict() && self.decides(node, *key))
                .collect();
            let has_waiter = self.has_waiter(index, &owned);
            if !has_waiter && now < deadline_ms {
                self.pending_crashes.push((index, deadline_ms));
                continue;
            }
            if has_waiter {
                self.report.reached.insert(Situation::OwnerCrashedMidRequest);
            }
            let is_only_fault = !self.is_disrupted();
            self.log.event(format_args!("n{} crashes, only_fault={is_only_fault}", index + 1));
            // This node may have held the replicas of a node that crashed shortly before.
            let recent = |crash: &&mut Crash| now - crash.at_ms < QUIET_MS;
            self.crashes.iter_mut().filter(recent).for_each(|crash| crash.is_only_fault = false);
            self.crashes.push(Crash { at_ms: now, owned, is_only_fault });
            self.crashed.push(index);
            self.stalls.push(Stall { node: index, from_ms: now, to_ms: now });
            self.last_disruption_ms = now;
            self.nodes[index].crash();
        }
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

    /// Records how long an owner may decide without reaching its replicas.
    pub(super) fn record_isolation(&mut self, fault: &Fault) {
        let now = self.time.millis();
        let lasts_ms = match fault {
            // It may decide until its lease ends.
            Fault::Partition { .. } | Fault::OneWayPartition { .. } => LEASE_MS,
            // It decides nothing meanwhile, but its last datagrams may not have arrived.
            Fault::Pause { .. } => 0,
            // It decides until it has read a peer's clock.
            Fault::Stop { for_ms, .. } => for_ms + LEASE_MS,
            // Leases are lost and regained until this fault ends, which is an incident of its own.
            Fault::PacketFaults { .. } | Fault::Slow { .. } if fault.moves_keys() => LOAD_MS,
            _ => return,
        };
        // An owner and its replica may be on one side, and the quorum on the other.
        let may_cut_off_both = match fault {
            Fault::Partition { side } => side.len().min(self.nodes.len() - side.len()) > REPLICAS,
            _ => false,
        };
        let from_ms = if may_cut_off_both || self.is_disrupted() { 0 } else { now };
        self.isolations.push(Isolation { from_ms, to_ms: now + lasts_ms });
    }

    /// Whether another fault is or recently was active, so that replicas may be incomplete.
    pub(super) fn is_disrupted(&self) -> bool {
        let is_recent = self.time.millis() - self.last_disruption_ms <= QUIET_MS;
        self.has_link_faults() || self.last_disruption_ms > 0 && is_recent
    }

    pub(super) fn is_any_cut(&self) -> bool {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).is_any_cut()
    }

    /// Whether any link has a fault.
    pub(super) fn has_link_faults(&self) -> bool {
        !self.links.lock().unwrap_or_else(PoisonError::into_inner).is_healthy()
    }

    pub(super) fn record_handoff(&mut self) {
        if self.is_any_cut() {
            self.report.reached.insert(Situation::HandoffInPartition);
        }
    }

    /// Checks that no two running nodes decide the same token, and adds up the time in which they
    /// do.
    pub(super) fn check_single_owner(&mut self) {
        if !self.time.millis().is_multiple_of(OWNER_CHECK_INTERVAL_MS) {
            return;
        }
        // A paused process decides nothing, whatever its own clock shows.
        let running = self.nodes.iter().filter(|node| !node.is_paused());
        let deciding: Vec<(&str, Ranges)> = running
            .filter_map(|node| Some((node.id.as_str(), node.process.as_ref()?.deciding()?)))
            .collect();
        let pairs = deciding.iter().enumerate();
        let pairs =
            pairs.flat_map(|(rank, one)| deciding[..rank].iter().map(move |other| (other, one)));
        let overlap = pairs.filter(|((_, ours), (_, theirs))| !ours.shared_with(theirs).is_empty());
        let now = self.time.millis();
        let unaware_ms = if self.has_link_faults() { LEASE_MS } else { UNAWARE_MS };
        let unaware = self.stops.iter().filter(|(_, end)| (*end..=end + unaware_ms).contains(&now));
        let unaware: Vec<&str> = unaware.map(|(node, _)| self.nodes[*node].id.as_str()).collect();
        for ((one, _), (other, _)) in overlap {
            self.log.event(format_args!("{one} and {other} own the same tokens"));
            if unaware.contains(one) || unaware.contains(other) {
                self.report.unaware_owners_ms += OWNER_CHECK_INTERVAL_MS;
            } else {
                self.report.two_owners_ms += OWNER_CHECK_INTERVAL_MS;
            }
        }
    }
}

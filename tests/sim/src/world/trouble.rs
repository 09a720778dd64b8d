//! What a run notes while things go wrong: crashes at the worst moment, who decided what, and which
//! of it may be forgotten.

use std::sync::PoisonError;

use tidegate_cluster::mesh::IN_FLIGHT_MAX;
use tidegate_ownership::ranges::Ranges;

use super::{Crash, Isolation, Stall, World};
use crate::coverage::Situation;
use crate::fault::Fault;
use crate::keys::{self, Key};
use crate::scenario::LOAD_MS;

/// A pause longer than this outlives a lease.
const LONG_PAUSE_MS: u64 = 600;
/// How often owners are compared.
const WATCH_EVERY_MS: u64 = 5;
/// How long a doomed node is waited for.
const DOOM_MS: u64 = 100;
/// After this long without trouble a crash finds its replicas complete.
const QUIET_MS: u64 = 2_000;
/// Asks that are looked through for one that waits: more than are under way.
const RECENT: usize = 500;
/// `cluster.lease`, and some for a ping that was under way.
const LEASE_MS: u64 = 700;
/// `cluster.replicas`
const REPLICAS: usize = 1;

impl World<'_> {
    /// Lets a node crash at the next good moment.
    pub(super) fn doom(&mut self, node: usize) {
        self.doomed.push((node, self.time.millis() + DOOM_MS));
    }

    /// Crashes the doomed whose time has come: the best moment is when another node waits for a
    /// verdict.
    pub(super) fn crash_doomed(&mut self) {
        let now = self.time.millis();
        for (index, at_the_latest) in std::mem::take(&mut self.doomed) {
            let node = &self.nodes[index];
            let owned: Vec<Key> = keys::checked()
                .filter(|key| key.kind.is_strict() && self.decides(node, *key))
                .collect();
            let is_awaited = self.is_awaited(index, &owned);
            if !is_awaited && now < at_the_latest {
                self.doomed.push((index, at_the_latest));
                continue;
            }
            if is_awaited {
                self.report.reached.insert(Situation::OwnerDiedMidAsk);
            }
            let is_alone = !self.is_troubled();
            self.log.say(format_args!("n{} crashes, alone={is_alone}", index + 1));
            // Nor was the one before: this node may have held the copies that were to take over.
            let recent = |crash: &&mut Crash| now - crash.at_ms < QUIET_MS;
            self.crashes.iter_mut().filter(recent).for_each(|crash| crash.is_alone = false);
            self.crashes.push(Crash { at_ms: now, owned, is_alone });
            self.crashed.push(index);
            self.stalls.push(Stall { node: index, from_ms: now, to_ms: now });
            self.troubled_ms = now;
            self.nodes[index].crash();
        }
    }

    /// Whether another node waits for a verdict on one of `owned`, which `index` decides.
    pub(super) fn is_awaited(&self, index: usize, owned: &[Key]) -> bool {
        self.history.with(|records| {
            records.iter().rev().take(RECENT).any(|record| {
                record.outcome.is_none() && record.node != index && owned.contains(&record.key)
            })
        })
    }

    pub(super) fn pause(&mut self, index: usize, for_ms: u64) {
        let from_ms = self.time.millis();
        self.stalls.push(Stall { node: index, from_ms, to_ms: from_ms + for_ms });
        self.nodes[index].pause(for_ms);
        if for_ms > LONG_PAUSE_MS {
            self.report.reached.insert(Situation::LongPause);
        }
    }

    /// Whether a burst of the step before filled a lane: some of it was not sent, but not all, as
    /// it would be to a silent peer.
    pub(super) fn note_full_lane(&mut self) {
        let Some((node, unsent_before)) = self.bursting.take() else { return };
        let Some(process) = &self.nodes[node].process else { return };
        let unsent = process.unsent() - unsent_before;
        if (1..IN_FLIGHT_MAX as u64).contains(&unsent) {
            self.report.reached.insert(Situation::FullQueue);
        }
    }

    /// Notes for how long an owner may decide what no replica hears of.
    pub(super) fn note_isolation(&mut self, fault: &Fault) {
        let now = self.time.millis();
        let lasts_ms = match fault {
            // It may decide until its lease has run out.
            Fault::Split { .. } | Fault::CutOneWay { .. } => LEASE_MS,
            // It decides nothing more, but what it sent last may not have arrived.
            Fault::Pause { .. } => 0,
            // Leases come and go until the end of it, which is an incident of its own.
            Fault::Weather { .. } | Fault::Slow { .. } if fault.moves_keys() => LOAD_MS,
            _ => return,
        };
        // An owner and its one replica may be on one side, and the quorum on the other.
        let takes_both = match fault {
            Fault::Split { side } => side.len().min(self.nodes.len() - side.len()) > REPLICAS,
            _ => false,
        };
        let from_ms = if takes_both || self.is_troubled() { 0 } else { now };
        self.isolations.push(Isolation { from_ms, to_ms: now + lasts_ms });
    }

    /// Whether something else is wrong, or was a moment ago, so that replicas may be incomplete.
    pub(super) fn is_troubled(&self) -> bool {
        let is_recent = self.time.millis() - self.troubled_ms <= QUIET_MS;
        self.is_stormy() || self.troubled_ms > 0 && is_recent
    }

    pub(super) fn is_any_cut(&self) -> bool {
        self.weather.lock().unwrap_or_else(PoisonError::into_inner).is_any_cut()
    }

    /// Whether any link is worse than it should be.
    pub(super) fn is_stormy(&self) -> bool {
        !self.weather.lock().unwrap_or_else(PoisonError::into_inner).is_fair()
    }

    pub(super) fn note_handoff(&mut self) {
        if self.is_any_cut() {
            self.report.reached.insert(Situation::HandoffInSplit);
        }
    }

    /// Adds up for how long two nodes that run both decide some place on the circle: whatever the
    /// keys, there is to be none.
    pub(super) fn watch_owners(&mut self) {
        if !self.time.millis().is_multiple_of(WATCH_EVERY_MS) {
            return;
        }
        // A process that stands still decides nothing, whatever its own clock says.
        let running = self.nodes.iter().filter(|node| !node.is_paused());
        let deciding: Vec<(&str, Ranges)> = running
            .filter_map(|node| Some((node.id.as_str(), node.process.as_ref()?.deciding()?)))
            .collect();
        let pairs = deciding.iter().enumerate();
        let pairs = pairs.flat_map(|(rank, one)| deciding[..rank].iter().map(move |o| (o, one)));
        let overlap = pairs.filter(|((_, ours), (_, theirs))| !ours.shared_with(theirs).is_empty());
        for ((one, _), (other, _)) in overlap {
            self.log.say(format_args!("{one} and {other} decide the same places"));
            self.report.two_owners_ms += WATCH_EVERY_MS;
        }
    }
}

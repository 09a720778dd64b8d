//! Keys far from their limit are synchronised by a slow background scan.
//!
//! The store's `background_scan` describes the idea and the bound. This file adds what the store
//! does not know: the number of nodes in all regions that share the sync slack, and the interval of
//! the rounds.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_limiter::engine::ActorCounters;
use tidegate_limiter::store::{BackgroundScan, KeyHash, SYNC_SLACK_DIVISOR, Store};
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::route::Topology;

/// How long one scan of all keys takes, and so the greatest age of what a peer shows for a key far
/// from its limit. At one message a minute a key costs a thousandth of one a round.
const SCAN_TIME: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct LazySync {
    slack_divisor: AtomicU32,
    scan: Mutex<BackgroundScan>,
    /// Rounds of one scan.
    rounds: usize,
}

impl LazySync {
    /// Without slack until [`LazySync::set_topology`].
    pub(super) fn new(interval: Duration) -> Self {
        let rounds = SCAN_TIME.as_millis() / interval.as_millis().max(1);
        let rounds = usize::try_from(rounds).unwrap_or(usize::MAX).max(1);
        Self { slack_divisor: AtomicU32::new(0), scan: Mutex::default(), rounds }
    }

    /// Divides the slack among the members. A node that leaves has none. What nodes of an earlier,
    /// smaller cluster held back is sent because every key is queued when the members change.
    pub(super) fn set_topology(&self, topology: &Topology) {
        let nodes = u32::try_from(topology.view.members().len()).unwrap_or(u32::MAX);
        let divisor =
            if topology.is_leaving() { 0 } else { SYNC_SLACK_DIVISOR.saturating_mul(nodes) };
        self.slack_divisor.store(divisor, Ordering::Relaxed);
    }

    /// From now on every change is sent in the next round.
    pub(super) fn disable(&self) {
        self.slack_divisor.store(0, Ordering::Relaxed);
    }

    pub(super) fn slack_divisor(&self) -> u32 {
        self.slack_divisor.load(Ordering::Relaxed)
    }

    /// This round's part of the scan: hands up to about `max` keys to `take`.
    pub(super) fn drain(
        &self,
        store: &Store,
        max: usize,
        now: Timestamp,
        take: &mut dyn FnMut(KeyHash, &ActorCounters),
    ) {
        store.drain_lazy(&mut self.scan.lock(), self.rounds, max, now, take);
    }
}

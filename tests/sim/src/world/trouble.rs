//! When each region was last in trouble: not all of its nodes ran, or its links to other regions
//! failed.
//!
//! What a region had admitted and not sent when its trouble began is lost when its keys move to
//! another region ([`Cause::Failover`](super::Cause)). Two troubles with a short time in between are
//! one: what was not sent in the first is sent only then.

use std::sync::PoisonError;

use super::World;

/// The last trouble of each region, if any.
#[derive(Debug)]
pub(super) struct Troubles(Vec<Option<Trouble>>);

/// A time of trouble.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trouble {
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
}

/// How long a region needs after a trouble to send what it had not sent: a round of digests begins
/// every 7 s, and takes some round trips.
const RECOVERY_MS: u64 = 9_000;

impl Troubles {
    pub(super) fn new(regions: usize) -> Self {
        Self(vec![None; regions])
    }

    pub(super) fn last(&self, region: usize) -> Option<Trouble> {
        self.0[region]
    }

    fn record(&mut self, region: usize, now_ms: u64) {
        match &mut self.0[region] {
            Some(last) if last.to_ms + RECOVERY_MS >= now_ms => last.to_ms = now_ms,
            last => *last = Some(Trouble { from_ms: now_ms, to_ms: now_ms }),
        }
    }
}

impl World<'_> {
    /// Records which regions are in trouble at present.
    pub(super) fn record_troubles(&mut self) {
        let now_ms = self.time.millis();
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        for region in 0..self.layout.names.len() {
            let is_of_region = |node: &usize| self.layout.of_nodes[*node] == region;
            if !links.is_far_healthy(region) || self.crashed.iter().any(is_of_region) {
                self.troubles.record(region, now_ms);
            }
        }
    }
}

//! When each region was last in trouble: not all of its nodes ran, or its links to other regions
//! failed.
//!
//! What a region had admitted and not sent when its trouble began is lost when its keys move to
//! another region ([`Cause::Failover`](super::Cause)). Two troubles with a short time in between
//! are one: what was not sent in the first is sent only then. But a region that becomes a home has
//! all counts, so troubles that were over by then do not matter to it.

use std::sync::PoisonError;

use super::World;

/// The troubles of each region, in order.
#[derive(Debug)]
pub(super) struct Troubles(Vec<Vec<Trouble>>);

/// A time of trouble.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trouble {
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
}

/// How long a region needs after a trouble to send what it had not sent: a round of digests begins
/// every 7 s, and takes some round trips.
const RECOVERY_MS: u64 = 9_000;

/// A time without trouble that is not worth a name.
const INSTANT_MS: u64 = 100;

impl Troubles {
    pub(super) fn new(regions: usize) -> Self {
        Self(vec![Vec::new(); regions])
    }

    /// The last trouble of `region`, of those that ended at `since_ms` or later.
    pub(super) fn last(&self, region: usize, since_ms: u64) -> Option<Trouble> {
        let mut troubles = self.0[region].iter().rev().filter(|one| one.to_ms >= since_ms);
        let mut last = *troubles.next()?;
        for before in troubles {
            if before.to_ms + RECOVERY_MS < last.from_ms {
                break;
            }
            last.from_ms = before.from_ms;
        }
        Some(last)
    }

    fn record(&mut self, region: usize, now_ms: u64) {
        match self.0[region].last_mut() {
            Some(last) if last.to_ms + INSTANT_MS >= now_ms => last.to_ms = now_ms,
            _ => self.0[region].push(Trouble { from_ms: now_ms, to_ms: now_ms }),
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

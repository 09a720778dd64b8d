//! Keys far from their limit: how far is far in this cluster, and how slowly they are told.
//!
//! See `store/far.rs` for the idea and the bound. Here stands what the store does not know: the
//! number of nodes that may hide something, in all regions, and the time of a round.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_limiter::engine::ActorCounters;
use tidegate_limiter::store::{BackgroundScan, KeyHash, SYNC_SLACK_DIVISOR};
use tidegate_ownership::route::Topology;
use tokio::task::JoinSet;

use super::{ROUND_KEYS_MAX, Synchroniser};
use crate::mesh::Mesh;

/// How long a walk over all keys takes that finds the far ones: how old the counts of such a key
/// may be that a peer shows. At a minute a key costs a thousandth of what telling every round does.
const FAR_WALK: Duration = Duration::from_secs(60);

/// What may be told late.
#[derive(Debug)]
pub(super) struct Far {
    /// See [`LocalActor::slack_divisor`](tidegate_limiter::store::Me::far_part).
    part: AtomicU32,
    walk: Mutex<BackgroundScan>,
    /// Rounds of a walk.
    rounds: usize,
}

impl Far {
    /// Hides nothing before it follows a topology: nobody tells anything yet.
    pub(super) fn new(interval: Duration) -> Self {
        let rounds = FAR_WALK.as_millis() / interval.as_millis().max(1);
        let rounds = usize::try_from(rounds).unwrap_or(usize::MAX).max(1);
        Self { part: AtomicU32::new(0), walk: Mutex::default(), rounds }
    }

    /// Shares out what may be hidden among the nodes there are. What nodes of an earlier, smaller
    /// cluster hid is told by whoever notices the change. A node that leaves hides nothing more.
    pub(super) fn follow(&self, topology: &Topology) {
        let nodes = u32::try_from(topology.view.members().len()).unwrap_or(u32::MAX);
        let part = if topology.is_leaving() { 0 } else { SYNC_SLACK_DIVISOR.saturating_mul(nodes) };
        self.part.store(part, Ordering::Relaxed);
    }

    pub(super) fn hide_nothing(&self) {
        self.part.store(0, Ordering::Relaxed);
    }
}

impl Synchroniser {
    /// See [`LocalActor::slack_divisor`](tidegate_limiter::store::Me::far_part).
    pub fn slack_divisor(&self) -> u32 {
        self.shared.far.part.load(Ordering::Relaxed)
    }

    /// This round's stretch of the walk.
    pub(super) fn drain_lazy(&self, take: &mut dyn FnMut(KeyHash, &ActorCounters)) {
        let shared = &self.shared;
        let (walk, now) = (&mut shared.far.walk.lock(), shared.clock.now());
        shared.store.drain_lazy(walk, shared.far.rounds, ROUND_KEYS_MAX, now, take);
    }

    /// Tells everything that was not told, and leaves the last messages to be awaited.
    pub(super) async fn tell_hidden(
        &self,
        topology: &Topology,
        mesh: &Mesh,
        messages: &mut JoinSet<()>,
    ) {
        let (mut walk, mut has_more) = (BackgroundScan::default(), true);
        while has_more {
            while messages.join_next().await.is_some() {}
            let batches = self.collect(topology, |take| {
                has_more = self.drain_hidden(&mut walk, take);
            });
            self.send(batches, true, mesh, messages);
        }
    }

    /// As much of a whole walk as fits into a round; whether there may be more.
    fn drain_hidden(
        &self,
        walk: &mut BackgroundScan,
        take: &mut dyn FnMut(KeyHash, &ActorCounters),
    ) -> bool {
        let shared = &self.shared;
        let now = shared.clock.now();
        shared.store.drain_lazy(walk, 1, ROUND_KEYS_MAX, now, take) >= ROUND_KEYS_MAX
    }
}

//! The task that writes: a round every interval, and a last one.

use std::sync::Arc;

use tidegate_cluster::environment::Clock;
use tidegate_limiter::store::Store;
use tidegate_limiter::units::Span;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::snapshots::Snapshots;

/// Writes what changed in a store to its file. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SnapshotTask {
    /// The file.
    pub snapshots: Arc<Snapshots>,
    /// What is written.
    pub store: Arc<Store>,
    /// When it is written.
    pub clock: Arc<dyn Clock>,
    /// How often.
    pub interval: Span,
}

impl SnapshotTask {
    /// Writes every interval until `stop`, and then all that is left. To be stopped when nothing
    /// is decided any more.
    pub async fn run(self, stop: CancellationToken) {
        let mut ticks = interval(self.interval.to_std());
        // A disk that stalled is not made up for: the next round has all of it.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = ticks.tick() => {}
            }
            self.round().await;
        }
        while self.round().await {}
    }

    /// One round on a thread that may wait for the disk. Returns whether there is more to write.
    async fn round(&self) -> bool {
        let Self { snapshots, store, clock, .. } = self.clone();
        let round = tokio::task::spawn_blocking(move || snapshots.round(&store, clock.now()));
        // Fails only when the runtime is going away, and then there is nobody to write.
        round.await.unwrap_or(false)
    }
}

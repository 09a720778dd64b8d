//! Opens the node's snapshot file and loads it before the first decision.

use std::sync::Arc;

use tidegate_cluster::environment::Clock;
use tidegate_limiter::store::Store;
use tidegate_limiter::units::{Span, Timestamp};

use super::clock::signed_difference;
use crate::config::Config;
use crate::storage::disk::PathOnDisk;
use crate::storage::{Origin, Secret, SnapshotTask, Snapshots};

/// A time further ahead is more likely wrong than the clock of the machine. Counts of then are
/// skipped: they would refuse hits until it has come.
const BEHIND_MAX: Span = Span::from_secs(24 * 3_600);
/// The name of the file in `node.data_dir`.
const COUNTS_FILE: &str = "counts.redb";

/// What a node begins with.
pub(super) struct Started {
    /// Writes the file; `None` without one.
    pub(super) snapshot_task: Option<SnapshotTask>,
    /// Of the key hashes.
    pub(super) secret: [u8; 16],
    /// The time of the counts on the disk.
    pub(super) counted_until: Option<Timestamp>,
}

/// Loads the counts in `node.data_dir` into `store`, if it is set. The node starts whatever is
/// wrong with them.
///
/// The decision clock does not go back over a restart: if the machine's was set back since the file
/// was written, it goes on from that time.
///
/// `secret` is that of the cluster (`is_shared`), or was generated at this start for a standalone
/// node, which uses that of the file instead if there is one.
pub(super) async fn start(
    config: &Config,
    secret: [u8; 16],
    is_shared: bool,
    store: &Arc<Store>,
    clock: &Arc<dyn Clock>,
) -> Started {
    let none = Started { snapshot_task: None, secret, counted_until: None };
    let Some(folder) = config.node.data_dir.clone() else { return none };
    let origin = Origin {
        cluster: config.cluster.name.clone(),
        node: config.node.id.clone(),
        secret: if is_shared {
            Secret::Shared(config.limits.new_hasher(secret).fingerprint())
        } else {
            Secret::Fresh(secret)
        },
    };
    let (into, its_clock) = (store.clone(), clock.clone());
    let read = tokio::task::spawn_blocking(move || {
        // Without the folder the file cannot be opened, which says why.
        let _ = std::fs::create_dir_all(&folder);
        let path = folder.join(COUNTS_FILE);
        let disk = Box::new(PathOnDisk::new(path));
        let (snapshots, secret) = Snapshots::open(disk, origin, its_clock.now());
        let now = its_clock.now();
        let is_credible = |at: &Timestamp| at.since(now) <= BEHIND_MAX;
        let counted_until = snapshots.written_at().filter(is_credible);
        if let Some(time) = counted_until.filter(|at| *at > now) {
            go_on_from(time, &*its_clock);
        }
        // By their own time: that of the machine may be ahead of the time by which the members
        // decide, which is not known yet.
        snapshots.load(&into, counted_until.unwrap_or(now));
        (Arc::new(snapshots), secret, counted_until)
    });
    match read.await {
        Ok((snapshots, found, counted_until)) => {
            let (store, clock, interval) = (store.clone(), clock.clone(), config.storage.interval);
            let secret = if let Secret::Own(own) = found { own } else { secret };
            let task = SnapshotTask { snapshots, store, clock, interval };
            Started { snapshot_task: Some(task), secret, counted_until }
        }
        Err(error) => {
            tracing::error!("node.data_dir: {error}; this node runs without storage");
            none
        }
    }
}

/// Steps the clock of a node that has decided nothing to `time`, which is later.
fn go_on_from(time: Timestamp, clock: &dyn Clock) {
    let behind = Span::from_millis(time.since(clock.now()).as_millis_ceil());
    tracing::warn!(
        "the clock of this machine is {behind} behind the counts in node.data_dir; windows go on \
         from there. Correct the clock; if the counts are of the future, stop the node and remove \
         {COUNTS_FILE}"
    );
    clock.step(signed_difference(time, clock.system()));
    // From there it follows the machine's clock again.
    clock.slew(0);
}

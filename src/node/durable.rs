//! Opens the node's snapshot file and loads it before the first decision.

use std::sync::Arc;

use tidegate_cluster::environment::Clock;
use tidegate_limiter::store::{KeyHasher, Store};

use crate::config::Config;
use crate::storage::disk::PathOnDisk;
use crate::storage::{Origin, Secret, SnapshotTask, Snapshots};

/// The name of the file in `node.data_dir`.
const COUNTS_FILE: &str = "counts.redb";

/// Loads the counts in `node.data_dir` into `store`, if it is set. The node starts whatever is
/// wrong with them. Returns the task that writes the file, and the secret of the key hashes.
///
/// `secret` is that of the cluster (`is_shared`), or was generated at this start for a standalone
/// node, which uses that of the file instead if there is one.
pub(super) async fn start(
    config: &Config,
    secret: [u8; 16],
    is_shared: bool,
    store: &Arc<Store>,
    clock: &Arc<dyn Clock>,
) -> (Option<SnapshotTask>, [u8; 16]) {
    let Some(folder) = config.node.data_dir.clone() else { return (None, secret) };
    let origin = Origin {
        cluster: config.cluster.name.clone(),
        node: config.node.id.clone(),
        secret: if is_shared {
            Secret::Shared(KeyHasher::new(secret).fingerprint())
        } else {
            Secret::Fresh(secret)
        },
    };
    let (into, now) = (store.clone(), clock.now());
    let read = tokio::task::spawn_blocking(move || {
        // Without the folder the file cannot be opened, which says why.
        let _ = std::fs::create_dir_all(&folder);
        let path = folder.join(COUNTS_FILE);
        let (snapshots, secret) = Snapshots::open(Box::new(PathOnDisk::new(path)), origin, now);
        snapshots.load(&into, now);
        (Arc::new(snapshots), secret)
    });
    match read.await {
        Ok((snapshots, found)) => {
            let (store, clock, interval) = (store.clone(), clock.clone(), config.storage.interval);
            let secret = if let Secret::Own(own) = found { own } else { secret };
            (Some(SnapshotTask { snapshots, store, clock, interval }), secret)
        }
        Err(error) => {
            tracing::error!("node.data_dir: {error}; this node runs without storage");
            (None, secret)
        }
    }
}

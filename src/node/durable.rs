//! Opens the node's snapshot file and loads it before the first decision.

use std::sync::Arc;

use tidegate_cluster::environment::Environment;
use tidegate_limiter::store::{KeyHasher, Store};

use crate::config::Config;
use crate::storage::disk::PathOnDisk;
use crate::storage::{Origin, Secret, SnapshotTask, Snapshots};

/// The snapshot task, and the secret of the key hashes.
pub(super) struct Durable {
    pub(super) snapshot_task: Option<SnapshotTask>,
    pub(super) secret: [u8; 16],
}

/// The secret of the key hashes.
#[derive(Clone, Copy)]
pub(super) enum Given {
    /// Shared by the cluster.
    Shared([u8; 16]),
    /// Generated at this start, for a standalone node.
    Fresh([u8; 16]),
}

/// Loads the file of `storage.path` into `store`, if there is one. The node starts whatever is
/// wrong with it.
pub(super) async fn start(
    config: &Config,
    given: Given,
    store: &Arc<Store>,
    environment: &Environment,
) -> Durable {
    let (Given::Shared(secret) | Given::Fresh(secret)) = given;
    let Some(path) = config.storage.path.clone() else {
        return Durable { snapshot_task: None, secret };
    };
    let origin = Origin {
        cluster: config.cluster.name.clone(),
        node: config.node.id.clone(),
        secret: match given {
            Given::Shared(secret) => Secret::Shared(KeyHasher::new(secret).fingerprint()),
            Given::Fresh(secret) => Secret::Fresh(secret),
        },
    };
    let (into, now) = (store.clone(), environment.clock.now());
    let read = tokio::task::spawn_blocking(move || {
        let (snapshots, secret) = Snapshots::open(Box::new(PathOnDisk::new(path)), origin, now);
        snapshots.load(&into, now);
        (snapshots, secret)
    });
    match read.await {
        Ok((snapshots, found)) => {
            let (store, clock) = (store.clone(), environment.clock.clone());
            let interval = config.storage.interval;
            let snapshot_task =
                SnapshotTask { snapshots: Arc::new(snapshots), store, clock, interval };
            let secret = match found {
                Secret::Own(own) => own,
                Secret::Fresh(_) | Secret::Shared(_) => secret,
            };
            Durable { snapshot_task: Some(snapshot_task), secret }
        }
        Err(error) => {
            tracing::error!("storage.path: {error}; this node runs without storage");
            Durable { snapshot_task: None, secret }
        }
    }
}

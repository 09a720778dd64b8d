//! The start of the node's file of counts: opened and read before anything is decided.

use std::sync::Arc;

use tidegate_cluster::environment::Environment;
use tidegate_limiter::store::{KeyHasher, Store};

use crate::config::Config;
use crate::storage::disk::PathOnDisk;
use crate::storage::{Origin, Secret, SnapshotTask, Snapshots};

/// The file, and the secret that its keys are hashed under.
pub(super) struct Durable {
    pub(super) snapshot_task: Option<SnapshotTask>,
    pub(super) secret: [u8; 16],
}

/// Whose secret a node hashes keys under.
#[derive(Clone, Copy)]
pub(super) enum Given {
    /// The cluster's.
    Shared([u8; 16]),
    /// This start's, for a node that stands alone.
    Fresh([u8; 16]),
}

/// Reads the file of `storage.path` into `store`, if there is one. Whatever is wrong with it, the
/// node starts.
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

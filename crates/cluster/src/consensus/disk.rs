//! What a node keeps of the cluster map, on its disk or in memory.
//!
//! One record, written whole: who this node is, the newest map it knows, and what its consensus
//! engine must not forget. A node without a disk draws another birth at each start, so it is
//! another voter each time, and nothing that it promised before binds it.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidegate_ownership::cluster_map::{ClusterMap, Identity, MapState, Voters};
use tidegate_ownership::identity::NodeId;

use super::engine::{Engine, Record};
use crate::encoding;

/// Where the record is kept.
#[async_trait]
pub trait Disk: std::fmt::Debug + Send + Sync {
    /// The record that was saved last; `None` on an empty disk.
    ///
    /// # Errors
    ///
    /// The disk could not be read.
    async fn load(&self) -> io::Result<Option<Vec<u8>>>;

    /// Replaces the record. It survives a loss of power once this has returned.
    ///
    /// # Errors
    ///
    /// The disk could not be written; the earlier record is still there.
    async fn save(&self, record: Vec<u8>) -> io::Result<()>;

    /// Whether a record survives the process.
    fn is_durable(&self) -> bool;

    /// The place of another record beside this one, for the global map.
    fn beside(&self) -> Arc<dyn Disk> {
        Arc::new(MemoryDisk::default())
    }
}

/// A disk that does not survive the process.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk(Arc<Mutex<Option<Vec<u8>>>>);

/// The record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    pub node: NodeId,
    pub birth: u64,
    /// The newest committed map that this node knows.
    pub map: Option<ClusterMap>,
    /// Of a voter, or of a member that was one.
    pub engine: Option<Record>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It belongs to another node, or another version of this program wrote it.
    #[error("the record of the cluster map is not readable: {0}")]
    Unreadable(String),
    #[error("the record is that of node {0}; every node needs a node.data_dir of its own")]
    OtherNode(NodeId),
    #[error("the record contains no cluster map: this node has never been a member")]
    NoMap,
    #[error("the record is of cluster {0}")]
    OtherCluster(String),
}

impl Saved {
    /// A node that has never been a member; `birth` is random.
    pub fn new(node: NodeId, birth: u64) -> Self {
        Self { node, birth: birth.max(1), map: None, engine: None }
    }

    pub fn identity(&self) -> Identity {
        Identity { node: self.node.clone(), birth: self.birth }
    }

    /// Loads the record of `node`; `None` on an empty disk.
    ///
    /// # Errors
    ///
    /// [`Error`]: the node must not start, because it would forget what it promised as a voter.
    pub async fn load(disk: &dyn Disk, node: &NodeId) -> Result<Option<Self>, Error> {
        let Some(bytes) = disk.load().await? else { return Ok(None) };
        let saved: Self =
            encoding::from_record(&bytes).map_err(|error| Error::Unreadable(error.to_string()))?;
        if saved.node != *node {
            return Err(Error::OtherNode(saved.node));
        }
        Ok(Some(saved))
    }

    /// # Errors
    ///
    /// As [`Disk::save`].
    pub async fn save(&self, disk: &dyn Disk) -> io::Result<()> {
        disk.save(encoding::to_record(self)).await
    }

    /// Makes this node the only voter of its cluster, after a majority of the voters was lost for
    /// good. All members have to join again, which they do by themselves when they meet this node.
    ///
    /// Only one node of a cluster may do this, once: two of them would give different maps one
    /// epoch.
    ///
    /// # Errors
    ///
    /// [`Error::NoMap`], or [`Error::OtherCluster`] when its cluster is not `cluster`.
    pub fn recover(&mut self, cluster: &str) -> Result<(), Error> {
        let map = self.map.as_mut().ok_or(Error::NoMap)?;
        if map.cluster.to_string() != cluster {
            return Err(Error::OtherCluster(map.cluster.to_string()));
        }
        let me = Identity { node: self.node.clone(), birth: self.birth };
        map.epoch = map.epoch.recovered();
        map.last_member = map.last_member.recovered();
        map.voters = Voters { changed_at: map.epoch, ..Voters::of([me.clone()]) };
        for member in &mut map.members {
            member.state = MapState::Down;
        }
        self.engine = Engine::found(&me, map, 1).take_output().record;
        Ok(())
    }
}

#[async_trait]
impl Disk for MemoryDisk {
    async fn load(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().clone())
    }

    async fn save(&self, record: Vec<u8>) -> io::Result<()> {
        *self.0.lock() = Some(record);
        Ok(())
    }

    fn is_durable(&self) -> bool {
        false
    }
}

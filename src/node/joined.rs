//! The components of a node that are connected to peers.

use std::sync::Arc;
use std::time::Duration;

use tidegate_cluster::gossip::Gossip;
use tidegate_cluster::mesh::Mesh;
use tidegate_cluster::ownership::Driver;
use tidegate_cluster::replication::Replicator;
use tidegate_cluster::sync::Synchroniser;
use tokio_util::sync::CancellationToken;

use super::service::PeerCounters;

/// The connection to peers.
#[derive(Clone)]
pub struct Joined {
    pub mesh: Arc<Mesh>,
    pub gossip: Arc<Gossip>,
    pub synchroniser: Arc<Synchroniser>,
    pub ownership_driver: Arc<Driver>,
    pub replicator: Arc<Replicator>,
    /// Cancelled when this node has joined and may own keys.
    pub is_member: CancellationToken,
    /// Rejected messages of peers.
    pub(super) refused: Arc<PeerCounters>,
    /// Interval of gossip rounds.
    pub(super) gossip_interval: Duration,
    /// Whether seeds are configured; a node without seeds is the first of its cluster.
    pub(super) has_seeds: bool,
}

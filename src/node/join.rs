//! The connection to peers, and when a node may own keys and open its listeners.
//!
//! A node has joined when it is connected to at least one peer, every connected peer is in its
//! view, and the view has been stable for [`QUIET_ROUNDS`] gossip rounds. A node without seeds
//! waits [`FIRST_ROUNDS`] for members that remember it from before a restart. A node whose seeds do
//! not answer starts alone after [`JOIN_TIMEOUT`].

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tidegate_cluster::gossip::Gossip;
use tidegate_cluster::mesh::Mesh;
use tidegate_cluster::ownership::Driver;
use tidegate_cluster::replication::Replicator;
use tidegate_cluster::sync::Synchroniser;
use tidegate_limiter::units::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::clock_sync::ClockSync;

/// The components of a node that are connected to peers. Cheap to clone.
#[derive(Clone)]
pub struct Joined {
    pub mesh: Arc<Mesh>,
    pub gossip: Arc<Gossip>,
    pub synchroniser: Arc<Synchroniser>,
    pub ownership_driver: Arc<Driver>,
    pub replicator: Arc<Replicator>,
    /// When the certificate of this node expires.
    pub(super) certificate_expires: Timestamp,
    /// Cancelled when this node has joined and may own keys.
    pub is_member: CancellationToken,
    /// Malformed frames of peers, and calls out of bounds.
    pub(super) malformed: Arc<AtomicU64>,
    /// Interval of gossip rounds.
    pub(super) gossip_interval: Duration,
    /// Whether seeds are configured; a node without seeds is the first of its cluster.
    pub(super) has_seeds: bool,
}

/// Poll interval.
const INTERVAL: Duration = Duration::from_millis(20);
/// How long a node waits for a seed before it starts as the first of its cluster.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a joined node waits for its ranges before it opens its listeners without them.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Gossip rounds that a node without seeds waits for members that remember it from before its
/// restart: a second at the default interval.
const FIRST_ROUNDS: u32 = 5;
/// Gossip rounds without a change after which a view counts as complete.
const QUIET_ROUNDS: u32 = 2;

/// Waits until the node has joined. Cancel-safe.
pub(super) async fn until_joined(joined: &Joined, time: &ClockSync) {
    let start = Instant::now();
    let mut ticks = tokio::time::interval(INTERVAL);
    let views = joined.gossip.views();
    let mut view = views.borrow().clone();
    let mut quiet_since = start;
    let is_first = || !joined.has_seeds && start.elapsed() >= joined.gossip_interval * FIRST_ROUNDS;
    loop {
        ticks.tick().await;
        let current = views.borrow().clone();
        if current.fingerprint() != view.fingerprint() {
            quiet_since = Instant::now();
        }
        view = current;
        let peers = joined.mesh.peers();
        let is_complete = peers.iter().all(|peer| view.get(&peer.id).is_some());
        let is_quiet = quiet_since.elapsed() >= joined.gossip_interval * QUIET_ROUNDS;
        let has_company = !peers.is_empty() && is_complete && is_quiet && time.has_compared();
        if has_company || is_first() || start.elapsed() >= JOIN_TIMEOUT {
            return;
        }
    }
}

/// Waits until the joined node owns its ranges: listeners that open earlier would forward their
/// first requests. Without a majority that never happens; then `on_unavailable` answers, and the
/// listeners open after [`SETTLE_TIMEOUT`]. Cancel-safe.
pub(super) async fn until_settled(joined: &Joined) {
    let settled = async {
        let mut ticks = tokio::time::interval(INTERVAL);
        while !joined.ownership_driver.is_settled() {
            ticks.tick().await;
        }
    };
    let _ = tokio::time::timeout(SETTLE_TIMEOUT, settled).await;
}

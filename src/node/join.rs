//! The connection to peers, and when a node becomes a member and opens its listeners.
//!
//! A node asks to join, or founds, once it has compared its clock with those of the peers that it
//! is connected to; a node without peers does so after [`COMPARE_TIMEOUT`]. Its listeners open when
//! it is a member and has its ranges. A node that was a member before and cannot become one again,
//! because no majority of the voters is there, opens them after [`STRANDED_TIMEOUT`]: it answers by
//! each rule's `on_unavailable`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tidegate_cluster::global::Global;
use tidegate_cluster::gossip::Gossip;
use tidegate_cluster::membership::Membership;
use tidegate_cluster::mesh::Mesh;
use tidegate_cluster::ownership::Driver;
use tidegate_cluster::replication::Replicator;
use tidegate_cluster::sync::Synchroniser;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::clock_sync::ClockSync;

/// The components of a node that are connected to peers. Cheap to clone.
#[derive(Clone)]
pub struct Joined {
    pub mesh: Arc<Mesh>,
    pub gossip: Arc<Gossip>,
    pub membership: Arc<Membership>,
    /// `None` without `global.founders`.
    pub global: Option<Arc<Global>>,
    pub synchroniser: Arc<Synchroniser>,
    pub ownership_driver: Arc<Driver>,
    pub replicator: Arc<Replicator>,
    /// Cancelled when this node has joined and may own keys.
    pub is_member: CancellationToken,
    /// Malformed frames of peers, and calls out of bounds.
    pub(super) malformed: Arc<AtomicU64>,
}

/// Poll interval.
const INTERVAL: Duration = Duration::from_millis(20);
/// How long a node without peers waits for one before it goes on with its own clock.
const COMPARE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a node that knows its cluster waits to be admitted before it opens its listeners.
const STRANDED_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a node that finds no cluster says so.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// How long a member waits for its ranges, and for its vote, before it opens its listeners without
/// them.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Waits until the node has compared its clock with its peers. Cancel-safe.
pub(super) async fn until_joined(joined: &Joined, time: &ClockSync) {
    let start = Instant::now();
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        ticks.tick().await;
        let has_company = !joined.mesh.peers().is_empty();
        if (has_company && time.has_compared()) || start.elapsed() >= COMPARE_TIMEOUT {
            return;
        }
    }
}

/// Waits until the node is a member, or has waited long enough to know that it cannot become one.
/// Returns whether it is. Cancel-safe.
pub(super) async fn until_member(joined: &Joined) -> bool {
    let start = Instant::now();
    let mut ticks = tokio::time::interval(INTERVAL);
    let mut reported = start;
    while !joined.membership.is_member() {
        ticks.tick().await;
        if joined.membership.has_map() && start.elapsed() >= STRANDED_TIMEOUT {
            tracing::warn!(
                "not admitted to the cluster: no majority of the voters is reachable; answering by \
                 each rule's on_unavailable until there is one"
            );
            return false;
        }
        if reported.elapsed() >= REPORT_INTERVAL {
            reported = Instant::now();
            tracing::warn!(
                peers = joined.mesh.peers().len(),
                "no cluster found; waiting for the founders (cluster.founders or \
                 cluster.bootstrap_expect), or for a member (cluster.seeds)"
            );
        }
    }
    true
}

/// Waits until the member owns its ranges: listeners that open earlier would forward their first
/// requests. And until a change of the voters is complete: nodes are restarted one after the other
/// as they become ready, and without disks each is another voter, which the others have to agree on
/// before they lose the next one. Without a majority neither happens; then `on_unavailable`
/// answers, and the listeners open after [`SETTLE_TIMEOUT`]. Cancel-safe.
pub(super) async fn until_settled(joined: &Joined) {
    let settled = async {
        let mut ticks = tokio::time::interval(INTERVAL);
        let driver = &joined.ownership_driver;
        while !driver.is_settled() || driver.is_joint() {
            ticks.tick().await;
        }
    };
    let _ = tokio::time::timeout(SETTLE_TIMEOUT, settled).await;
}

//! The connection to peers, and when a node becomes a member and opens its listeners.
//!
//! A node asks to join, or founds, once it has compared its clock with those of the peers that it
//! is connected to; a node without peers does so after [`COMPARE_TIMEOUT`]. Its listeners open when
//! it is a member and has its ranges. A node that was a member before and cannot become one again,
//! because no majority of the voters is there, opens them after [`STRANDED_TIMEOUT`]: it answers by
//! each rule's `on_unavailable`.

use std::sync::Arc;
use std::time::Duration;

use tidegate_cluster::global::Global;
use tidegate_cluster::gossip::Gossip;
use tidegate_cluster::membership::Membership;
use tidegate_cluster::mesh::Mesh;
use tidegate_cluster::ownership::{Driver, Ownership};
use tidegate_cluster::replication::Replicator;
use tidegate_cluster::sync::Synchroniser;
use tidegate_ownership::Epoch;
use tidegate_ownership::cluster_map::{ClusterMap, Identity, MapMember, MapState};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::clock_sync::ClockSync;
use super::malformed::Malformed;

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
    /// Cancelled when the agreement of the regions allows the restart of the next node.
    pub is_agreed: CancellationToken,
    /// Malformed frames of peers, and calls out of bounds.
    pub(super) malformed: Arc<Malformed>,
}

/// Poll interval.
const INTERVAL: Duration = Duration::from_millis(20);
/// How long a node without peers waits for one before it goes on with its own clock.
const COMPARE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a node waits for the lease of its region before it asks to join.
const REGION_LEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a node that knows its cluster waits to be admitted before it opens its listeners.
const STRANDED_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a node that finds no cluster says so.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// How long a member waits for its ranges, and for its vote, before it opens its listeners without
/// them.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a node waits for the agreement of the regions: whether there is one, and until its
/// change of voters is complete.
const FIND_AGREEMENT_TIMEOUT: Duration = Duration::from_secs(2);
const AGREE_TIMEOUT: Duration = Duration::from_secs(30);

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

/// Waits until this node may decide the global keys that are at home in its region: the owners hand
/// their ranges over to a member that has restarted, which could decide none of these before. For
/// [`REGION_LEASE_TIMEOUT`] at most, as the regions may not be able to agree. Cancel-safe.
pub(super) async fn until_region_lease(joined: &Joined, ownership: &Ownership) {
    let Some(global) = &joined.global else { return };
    let region = joined.ownership_driver.topology().region.clone();
    let maps = global.membership.maps();
    let is_no_home = || {
        let map = maps.borrow();
        map.epoch > Epoch(0) && !map.homes.contains(&region)
    };
    let granted = async {
        let mut ticks = tokio::time::interval(INTERVAL);
        while !ownership.may_hold_global_keys() && !is_no_home() {
            ticks.tick().await;
        }
    };
    let _ = tokio::time::timeout(REGION_LEASE_TIMEOUT, granted).await;
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

/// Waits until the agreement of the regions has replaced the voters that restarted. Nodes are
/// restarted one after the other as they become ready, and without disks each is another voter. Two
/// changes at once may leave no majority that can come back. A change takes some
/// [`global.lease`](crate::config::Global). At most for half a minute: where voters stay away, no
/// restart makes it worse. Cancel-safe.
pub(super) async fn until_agreed(joined: &Joined) {
    let Some(global) = &joined.global else { return };
    if global.membership.is_saving().is_some() {
        return;
    }
    let region = joined.ownership_driver.topology().region.clone();
    let mut maps = global.membership.maps();
    let (me, wanted) = (global.membership.identity(), global.membership.voters_wanted());
    let is_agreed = |map: &ClusterMap| {
        let is_up = |member: &&MapMember| member.state == MapState::Up;
        let up = || map.present().filter(is_up);
        let voters = &map.voters.current;
        // Their number is odd.
        let voters_min = (up().count().min(wanted).saturating_sub(1) / 2) * 2 + 1;
        // The map may not know yet that an earlier run of this node has ended.
        let is_earlier = |other: &Identity| other.node == me.node && other != me;
        let is_up_to_date =
            |voter: &Identity| up().any(|member| member.identity == *voter && !is_earlier(voter));
        !map.voters.are_joint()
            && voters.len() >= voters_min
            && voters.iter().all(is_up_to_date)
            && up().any(|member| member.zone == region)
    };
    let is_found = maps.wait_for(|map| map.epoch > Epoch(0));
    if matches!(tokio::time::timeout(FIND_AGREEMENT_TIMEOUT, is_found).await, Ok(Ok(_))) {
        let _ = tokio::time::timeout(AGREE_TIMEOUT, maps.wait_for(|map| is_agreed(map))).await;
    }
}

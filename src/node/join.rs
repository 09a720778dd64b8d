//! When a node knows enough of its cluster to own keys and to open its doors.
//!
//! A node has joined when it knows its fellow members: every peer that it is connected to is in its
//! view, there is one, and the view has not changed for a moment. The first node of a cluster has
//! nobody to wait for but those that may remember it; one whose seeds do not answer takes itself
//! for the first after [`JOIN_PATIENCE`], because a limiter that never starts is worse than one
//! that starts alone.

use std::time::Duration;

use tokio::time::Instant;

use super::clock_sync::ClockSync;
use super::core::Joined;

/// How often it is looked.
const INTERVAL: Duration = Duration::from_millis(20);
/// How long a node waits for a seed before it takes itself for the first of its cluster.
const JOIN_PATIENCE: Duration = Duration::from_secs(5);
/// How long a node that joined waits for its keys before it opens its doors without them.
const SETTLE_PATIENCE: Duration = Duration::from_secs(2);
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
        if current.epoch() != view.epoch() {
            quiet_since = Instant::now();
        }
        view = current;
        let peers = joined.mesh.peers();
        let is_complete = peers.iter().all(|peer| view.get(&peer.id).is_some());
        let is_quiet = quiet_since.elapsed() >= joined.gossip_interval * QUIET_ROUNDS;
        let has_company = !peers.is_empty() && is_complete && is_quiet && time.has_compared();
        if has_company || is_first() || start.elapsed() >= JOIN_PATIENCE {
            return;
        }
    }
}

/// Waits until the node that joined holds what is its own: doors that open before would send their
/// first clients around. Without the others that may never be; then policies have to answer, and
/// the doors open after [`SETTLE_PATIENCE`]. Cancel-safe.
pub(super) async fn until_settled(joined: &Joined) {
    let settled = async {
        let mut ticks = tokio::time::interval(INTERVAL);
        while !joined.ownership_driver.is_settled() {
            ticks.tick().await;
        }
    };
    let _ = tokio::time::timeout(SETTLE_PATIENCE, settled).await;
}

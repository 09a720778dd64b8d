//! Whether this node may be sent traffic, and when its doors open.
//!
//! A node has joined when it knows its fellow members: every peer that it is connected to is in its
//! view, there is one, and the view has not changed for a moment. The first node of a cluster has
//! nobody to wait for but those that may remember it; one whose seeds do not answer takes itself
//! for the first after [`JOIN_PATIENCE`], because a limiter that never starts is worse than one
//! that starts alone.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::core::{Core, Failed, Joined};
use super::skew::Skew;
use crate::front::rls;
use crate::observe::Health;

/// Membership is kept.
pub(super) const GOSSIP: &str = "gossip";
/// The other members are known.
pub(super) const JOIN: &str = "join";
/// The node is not about to leave.
pub(super) const DRAIN: &str = "drain";

/// The clock is within `cluster.max_skew` of the members' median; asked for by
/// `cluster.skew_unready`.
const CLOCK: &str = "clock";

/// How often readiness is looked at.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long a node waits for a seed before it takes itself for the first of its cluster.
const JOIN_PATIENCE: Duration = Duration::from_secs(5);
/// How long a node without seeds waits for members that remember it from before its restart.
const FIRST_PATIENCE: Duration = Duration::from_secs(1);
/// Gossip rounds without a change after which a view counts as complete.
const QUIET_ROUNDS: u32 = 2;

/// Keeps readiness as it is, for HTTP and gRPC alike.
pub(super) struct Readiness {
    pub(super) core: Arc<Core>,
    pub(super) health: Health,
    pub(super) grpc: rls::Health,
    /// Cancelled when the node has joined, once and for good.
    pub(super) joined: CancellationToken,
    /// What listens where from then on, for the log.
    pub(super) opens: String,
    /// Whether a clock beyond `cluster.max_skew` makes the node not ready.
    pub(super) skew_unready: bool,
}

/// How long the view has been as it is.
struct Quiet {
    epoch: u64,
    since: Instant,
}

impl Readiness {
    /// Runs until `stop`.
    pub(super) async fn keep(self, stop: CancellationToken) -> Result<(), Failed> {
        let mut ticks = tokio::time::interval(INTERVAL);
        let start = Instant::now();
        let mut quiet = Quiet { epoch: 0, since: start };
        loop {
            match &self.core.joined {
                None => {
                    self.health.green(GOSSIP);
                    self.open();
                }
                Some(joined) => {
                    if *joined.gossip.running().borrow() {
                        self.health.green(GOSSIP);
                    } else {
                        self.health.red(GOSSIP, "membership is being rebuilt");
                    }
                    if self.knows_members(joined, start, &mut quiet)
                        || start.elapsed() > JOIN_PATIENCE
                    {
                        self.open();
                    }
                }
            }
            if self.joined.is_cancelled() {
                if self.health.green(JOIN) {
                    tracing::info!("listening on {}", self.opens);
                }
            } else {
                self.health.red(JOIN, "the other members are not known yet");
            }
            if self.skew_unready {
                self.look_at_clock();
            }
            self.grpc.set_serving(self.health.ready().is_ok()).await;
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = ticks.tick() => {}
            }
        }
    }

    fn open(&self) {
        // Before the first decision, not behind it.
        self.core.time.put_in_use();
        self.joined.cancel();
    }

    fn look_at_clock(&self) {
        let Skew { median_ns, is_beyond } = self.core.skew();
        if is_beyond {
            let behind_ms = median_ns / 1_000_000;
            self.health.red(CLOCK, format!("{behind_ms} ms behind the members' median"));
        } else {
            self.health.green(CLOCK);
        }
    }

    fn knows_members(&self, joined: &Joined, start: Instant, quiet: &mut Quiet) -> bool {
        let topology = self.core.topology.load();
        let epoch = topology.view.epoch();
        if epoch != quiet.epoch {
            *quiet = Quiet { epoch, since: Instant::now() };
        }
        let peers = joined.mesh.peers();
        let is_complete = peers.iter().all(|peer| topology.view.get(&peer.id).is_some());
        let is_first = !joined.has_seeds && start.elapsed() >= FIRST_PATIENCE;
        let has_company = !peers.is_empty()
            && is_complete
            && self.core.time.has_compared()
            && quiet.since.elapsed() >= joined.gossip_interval * QUIET_ROUNDS;
        is_first || has_company
    }
}

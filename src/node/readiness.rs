//! Whether this node may be sent traffic, and when its doors open.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::core::{Core, Failed};
use crate::front::rls;
use crate::observe::Health;

/// Membership is kept.
pub(super) const GOSSIP: &str = "gossip";
/// The other members are known.
pub(super) const JOIN: &str = "join";
/// The node is not about to leave.
pub(super) const DRAIN: &str = "drain";

/// How often readiness is looked at.
const INTERVAL: Duration = Duration::from_millis(50);

/// Keeps readiness as it is, for HTTP and gRPC alike.
pub(super) struct Readiness {
    pub(super) core: Arc<Core>,
    pub(super) health: Health,
    pub(super) grpc: rls::Health,
    /// Cancelled when the node has joined, once and for good.
    pub(super) joined: CancellationToken,
    /// What listens where from then on, for the log.
    pub(super) opens: String,
}

impl Readiness {
    /// Runs until `stop`.
    pub(super) async fn keep(self, stop: CancellationToken) -> Result<(), Failed> {
        let mut ticks = tokio::time::interval(INTERVAL);
        loop {
            match &self.core.joined {
                None => {
                    self.health.green(GOSSIP);
                    self.joined.cancel();
                }
                Some(joined) => {
                    if *joined.gossip.running().borrow() {
                        self.health.green(GOSSIP);
                    } else {
                        self.health.red(GOSSIP, "membership is being rebuilt");
                    }
                    if joined.has_joined.is_cancelled() {
                        self.joined.cancel();
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
            self.grpc.set_serving(self.health.ready().is_ok()).await;
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = ticks.tick() => {}
            }
        }
    }
}

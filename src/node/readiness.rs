//! Whether this node may receive traffic, and when its listeners open.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limiter::policy::Scope;
use tokio_util::sync::CancellationToken;

use super::core::{Core, Failed};
use super::rulebook::RuleBook;
use super::skew::Skew;
use crate::front::rls;
use crate::observe::Health;

/// The gossip task runs.
pub(super) const GOSSIP: &str = "gossip";
/// The node has joined.
pub(super) const JOIN: &str = "join";
/// The node has a lease from a majority, so that it may own keys.
pub(super) const QUORUM: &str = "quorum";
/// Rules are loaded.
pub(super) const RULES: &str = "rules";
/// The node is not draining.
pub(super) const DRAIN: &str = "drain";

/// The clock is within `cluster.max_skew` of the members' median; checked with
/// `cluster.skew_unready`.
const CLOCK: &str = "clock";

const INTERVAL: Duration = Duration::from_millis(50);

/// Updates readiness for HTTP and gRPC.
pub(super) struct Readiness {
    pub(super) core: Arc<Core>,
    pub(super) rules: RuleBook,
    pub(super) health: Health,
    pub(super) grpc: rls::Health,
    /// Cancelled when the node has joined.
    pub(super) joined: CancellationToken,
    /// The listeners and their addresses, for the log.
    pub(super) opens: String,
    /// Whether a clock beyond `cluster.max_skew` makes the node not ready.
    pub(super) skew_unready: bool,
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
                        self.health.red(GOSSIP, "gossip is restarting");
                    }
                    if joined.is_member.is_cancelled() {
                        self.joined.cancel();
                    }
                }
            }
            self.check_rules();
            self.check_lease();
            if self.joined.is_cancelled() {
                if self.health.green(JOIN) {
                    tracing::info!("listening on {}", self.opens);
                }
            } else {
                self.health.red(JOIN, "the other members are not known yet");
            }
            if self.skew_unready {
                self.check_clock();
            }
            self.grpc.set_serving(self.health.ready().is_ok()).await;
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = ticks.tick() => {}
            }
        }
    }

    fn check_rules(&self) {
        if let Some(what) = self.rules.lacks() {
            self.health.red(RULES, &*what);
        } else {
            self.health.green(RULES);
        }
    }

    /// Red on the minority side of a partition. The failure of other nodes alone does not turn a
    /// node red.
    fn check_lease(&self) {
        let ownership = &self.core.ownership;
        if ownership.has_lease(Scope::Region) || !self.joined.is_cancelled() {
            self.health.green(QUORUM);
        } else {
            self.health.red(QUORUM, "no majority of the voters grants this node a lease");
        }
    }

    fn check_clock(&self) {
        let Skew { median_ns, is_beyond } = self.core.skew();
        if is_beyond {
            let behind_ms = median_ns / 1_000_000;
            self.health.red(CLOCK, format!("{behind_ms} ms behind the members' median"));
        } else {
            self.health.green(CLOCK);
        }
    }
}

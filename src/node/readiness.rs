//! Whether this node may be sent traffic, and when its doors open.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limiter::policy::Scope;
use tokio_util::sync::CancellationToken;

use super::core::{Core, Failed};
use super::rulebook::RuleBook;
use super::skew::Skew;
use crate::front::rls;
use crate::observe::Health;

/// Membership is kept.
pub(super) const GOSSIP: &str = "gossip";
/// The other members are known.
pub(super) const JOIN: &str = "join";
/// A majority recognises the node, so that it may own keys.
pub(super) const QUORUM: &str = "quorum";
/// There are rules to decide by.
pub(super) const RULES: &str = "rules";
/// The node is not about to leave.
pub(super) const DRAIN: &str = "drain";

/// The clock is within `cluster.max_skew` of the members' median; asked for by
/// `cluster.skew_unready`.
const CLOCK: &str = "clock";

/// How often readiness is looked at.
const INTERVAL: Duration = Duration::from_millis(50);

/// Keeps readiness as it is, for HTTP and gRPC alike.
pub(super) struct Readiness {
    pub(super) core: Arc<Core>,
    pub(super) rules: RuleBook,
    pub(super) health: Health,
    pub(super) grpc: rls::Health,
    /// Cancelled when the node has joined, once and for good.
    pub(super) joined: CancellationToken,
    /// What listens where from then on, for the log.
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
                        self.health.red(GOSSIP, "membership is being rebuilt");
                    }
                    if joined.is_member.is_cancelled() {
                        self.joined.cancel();
                    }
                }
            }
            self.look_at_rules();
            self.look_at_lease();
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

    fn look_at_rules(&self) {
        if let Some(what) = self.rules.lacks() {
            self.health.red(RULES, &*what);
        } else {
            self.health.green(RULES);
        }
    }

    /// The smaller side of a split owns nothing. That others died makes no node red.
    fn look_at_lease(&self) {
        let ownership = &self.core.ownership;
        if ownership.has_lease(Scope::Region) || !self.joined.is_cancelled() {
            self.health.green(QUORUM);
        } else {
            self.health.red(QUORUM, "no majority of the known members recognises this node");
        }
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
}

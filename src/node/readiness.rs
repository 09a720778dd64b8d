//! Whether this node may receive traffic, and when its listeners open.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::core::Core;
use super::rulebook::RuleBook;
use super::skew::Skew;
use crate::front::rls;
use crate::observe::Health;

/// The gossip task runs.
pub(super) const GOSSIP: &str = "gossip";
/// The node has joined.
pub(super) const JOIN: &str = "join";
/// The node has a lease from a majority, so that it may own keys.
const QUORUM: &str = "quorum";
/// The agreement of the regions is not changing its voters since this node started.
const REGIONS: &str = "regions";
/// Rules are loaded.
const RULES: &str = "rules";
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
    pub(super) async fn keep(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(INTERVAL);
        let mut shown = None;
        loop {
            self.check();
            let is_ready = self.health.ready().is_ok();
            // Those who watch receive each setting.
            if shown.replace(is_ready) != Some(is_ready) {
                self.grpc.set_serving(is_ready).await;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
        }
    }

    fn check(&self) {
        let Self { core, rules, health, joined, .. } = self;
        core.seen_elsewhere.look(&core.topology.load(), core.clock.monotonic());
        let cluster = core.joined.as_ref();
        let has_gossip = cluster.is_none_or(|cluster| *cluster.gossip.running().borrow());
        health.set(GOSSIP, (!has_gossip).then_some("gossip is restarting"));
        let is_open = core.edge.as_ref().is_none_or(|edge| edge.is_open.is_cancelled());
        if is_open && cluster.is_none_or(|cluster| cluster.is_member.is_cancelled()) {
            joined.cancel();
        }
        let has_joined = joined.is_cancelled();
        health.set(RULES, rules.lacks().as_deref());
        // Red on the minority side of a partition. The failure of other nodes alone does not turn a
        // node red.
        // Nor does that of all cores an edge: its service would go down with them.
        let has_quorum = core.ownership.has_lease() || !has_joined || core.edge.is_some();
        let reason = "no majority of the voters grants this node a lease";
        health.set(QUORUM, (!has_quorum).then_some(reason));
        let is_agreed = cluster.is_none_or(|cluster| cluster.is_agreed.is_cancelled());
        let reason = "the regions agree on voters in place of those that restarted; wait until \
                      then before the next restart";
        health.set(REGIONS, (has_joined && !is_agreed).then_some(reason));
        let reason = match core.edge {
            Some(_) => "no core has told this edge where keys are decided yet",
            None => "this node is no member of a cluster yet",
        };
        if health.set(JOIN, (!has_joined).then_some(reason)) && has_joined {
            tracing::info!("listening on {}", self.opens);
        }
        if self.skew_unready {
            let Skew { median_ns, is_beyond, .. } = core.skew();
            let reason = || format!("{} ms behind the members' median", median_ns / 1_000_000);
            health.set(CLOCK, is_beyond.then(reason));
        }
    }
}

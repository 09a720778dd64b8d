//! `[cluster]`: where the other nodes are and how long to wait for them.

use std::net::SocketAddr;

use serde::Deserialize;
use tidegate_limiter::units::Span;
use tidegate_ownership::QuorumRule;

use super::duration;

/// `[cluster]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// Name of the cluster: letters, digits, `-`, `_` and `.`, at most 63. Nodes of another name
    /// are refused even with a good certificate, so that staging never joins production.
    ///
    /// Default `tidegate`. Change it when one certificate authority serves several clusters.
    pub name: String,
    /// UDP address of the mesh, `IP:PORT`. Needs `[tls]`: there is no plaintext mesh.
    ///
    /// Default none: the node stands alone. Set it on every node of a cluster.
    pub listen: Option<SocketAddr>,
    /// Address that peers reach this node at, `IP:PORT`.
    ///
    /// Default `listen`. Set it when `listen` is `0.0.0.0` or when the node is behind NAT.
    pub advertise: Option<SocketAddr>,
    /// `HOST:PORT` of some members, at most 64; the rest is found by gossip. A DNS name that stands
    /// for several addresses will do. A node may name itself.
    ///
    /// Default none: the first node of a cluster, which the others name. Two or three nodes that
    /// are seldom down at once are best.
    pub seeds: Vec<String>,
    /// Deadline of a forwarded check inside the region, in milliseconds, 1 to 1,000. When it
    /// passes, the rule's `on_unavailable` answers.
    ///
    /// Default 10: half of Envoy's 20 ms, so that an owner that just died costs the caller no
    /// error. Raise it only together with the caller's own deadline.
    pub deadline_ms: u64,
    /// Deadline of a forwarded check to another region (`scope: global`), in milliseconds, 1 to
    /// 10,000.
    ///
    /// Default 150: a round trip half around the globe. Lower it to what your farthest regions
    /// need.
    pub global_deadline_ms: u64,
    /// How often eventual columns are synchronised inside the region, in milliseconds, 5 to 10,000.
    ///
    /// Default 50: at a limit of 1,000 a second, 50 hits of staleness. Lower costs messages, higher
    /// admits more over the limit.
    pub sync_interval_ms: u64,
    /// How often regions exchange their columns, in milliseconds, 10 to 60,000.
    ///
    /// Default 200: about one round trip of the long link, which more often would not beat.
    pub region_sync_interval_ms: u64,
    /// How often a node gossips, in milliseconds, 20 to 5,000.
    ///
    /// Default 200: a dead node is noticed within a second. Lower costs traffic at every node.
    pub gossip_interval_ms: u64,
    /// Virtual nodes a member has on the ring, 1 to 1,024. The same on every node, or they disagree
    /// about owners.
    ///
    /// Default 128: keeps the largest share within some 20 % of the fair one and the table in the
    /// L2 cache. Change it only while the whole cluster is down.
    pub vnodes: u32,
    /// Nodes that hold a copy of each strict count beside its owner, 0 to 3. Copies go to another
    /// zone where there is one.
    ///
    /// Default 1: a node that dies takes no count with it. Two survive two deaths within a second;
    /// 0 saves the memory and the traffic, and a crash forgets.
    pub replicas: u32,
    /// How often an owner sends changed counts to its replicas, in milliseconds, 1 to 1,000. A
    /// crash may forget what was counted since, unless a rule asks for `durability: replicated`.
    ///
    /// Default 5. Higher saves messages when few keys are busy.
    pub replication_interval_ms: u64,
    /// How long a node may own keys after a majority last answered it, 150ms to 10s. The same on
    /// every node. Shorter than the failure detector (about five `gossip_interval_ms`), so that an
    /// owner that is cut off has stopped before another takes over.
    ///
    /// Default `600ms`: six pings, of which five may be lost; a dead node is given up later.
    #[serde(deserialize_with = "duration::read")]
    pub lease: Span,
    /// Who may own keys while the cluster is split: `majority` of the known members, or `none`.
    ///
    /// Default `majority`: at most one side decides strict limits, the other answers by
    /// `on_unavailable`. With `none` each side decides alone, and up to one limit a side is
    /// admitted until the split heals.
    pub quorum: QuorumRule,
    /// How long a member that was lost without leaving still counts for the majority, 10s to 30d.
    ///
    /// Default `1h`: longer than any split that nobody looks after. Lower it where crashed nodes
    /// come back under new ids.
    #[serde(deserialize_with = "duration::read")]
    pub forget_after: Span,
    /// How far this node's clock may be from the members' median, 10ms to 60s. Beyond it the node
    /// says so and takes the median for window numbers.
    ///
    /// Default `500ms`: what NTP holds with ease, and half of the shortest usual window.
    #[serde(deserialize_with = "duration::read")]
    pub max_skew: Span,
    /// Whether a node whose clock is beyond `max_skew` is not ready.
    ///
    /// Default false: it uses the members' time and can answer.
    pub skew_unready: bool,
}

impl Cluster {
    /// The address peers are told: `advertise`, else `listen`; none when the node stands alone.
    pub fn advertised(&self) -> Option<SocketAddr> {
        self.listen.map(|listen| self.advertise.unwrap_or(listen))
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            name: "tidegate".into(),
            listen: None,
            advertise: None,
            seeds: Vec::new(),
            deadline_ms: 10,
            global_deadline_ms: 150,
            sync_interval_ms: 50,
            region_sync_interval_ms: 200,
            gossip_interval_ms: 200,
            vnodes: 128,
            replicas: 1,
            replication_interval_ms: 5,
            lease: Span::from_millis(600),
            quorum: QuorumRule::Majority,
            forget_after: Span::from_secs(3_600),
            max_skew: Span::from_millis(500),
            skew_unready: false,
        }
    }
}

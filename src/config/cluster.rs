//! `[node]` and `[cluster]`: the identity of this node, its peers, and the timing between them.

use std::net::SocketAddr;

use serde::Deserialize;
use tidegate_limiter::units::Span;
use tidegate_ownership::QuorumRule;

use super::value::duration;

/// `[node]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Node {
    /// Stable name of this node, unchanged by a restart: lower-case letters, digits and `-`, at
    /// least one letter, at most 63. It is the name in the node's certificate and determines its
    /// tokens on the ring: renaming a node moves its keys, changing its address does not.
    ///
    /// Default `node-1`, for a standalone node. Every node of a cluster needs its own.
    pub id: String,
    /// The region, written like `id`. Nodes of one region share strict limits, so a forwarded check
    /// must return within `cluster.deadline` anywhere in it.
    ///
    /// Default `local`. Set it when nodes are more than a few milliseconds apart.
    pub region: String,
    /// The zone inside the region, written like `id`: a failure domain. Replicas are placed in
    /// another zone where there is one.
    ///
    /// Default `local`. Set it to the cloud's availability zone or to the rack.
    pub zone: String,
    /// Worker threads for everything but the RESP listener, 0 to 256; 0 is the number of cores
    /// available to the process.
    ///
    /// Default 0. Set it where several nodes share a machine: the threads of all nodes together
    /// should not exceed the cores by much.
    pub threads: usize,
}

/// `[cluster]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// Name of the cluster: letters, digits, `-`, `_` and `.`, at most 63. Nodes of another cluster
    /// are refused even with a valid certificate, so that staging never joins production.
    ///
    /// Default `tidegate`. Change it when one certificate authority serves several clusters.
    pub name: String,
    /// UDP address of the mesh, `IP:PORT`. Requires `[tls]`: there is no plaintext mesh.
    ///
    /// Default none: the node is standalone. Set it on every node of a cluster.
    pub listen: Option<SocketAddr>,
    /// Address at which peers reach this node, `IP:PORT`.
    ///
    /// Default `listen`. Set it when `listen` is `0.0.0.0` or the node is behind NAT.
    pub advertise: Option<SocketAddr>,
    /// `HOST:PORT` of some members, at most 64; gossip finds the others. A DNS name may resolve to
    /// several addresses. A node may list itself.
    ///
    /// Default none: the first node of a cluster, which the others list. Two or three nodes that
    /// are rarely down together are enough.
    pub seeds: Vec<String>,
    /// Deadline of a forwarded check inside the region, 1ms to 1s. After it, the rule's
    /// `on_unavailable` applies.
    ///
    /// Default `10ms`: half of Envoy's 20 ms, so that the failure of an owner causes no client
    /// error. Raise it only together with the client's deadline.
    #[serde(deserialize_with = "duration")]
    pub deadline: Span,
    /// Deadline of a forwarded check to another region (`scope: global`), 1ms to 10s.
    ///
    /// Default `150ms`: a round trip half around the globe. Lower it to the needs of the most
    /// distant region.
    #[serde(deserialize_with = "duration")]
    pub global_deadline: Span,
    /// Interval of synchronisation of eventual counters inside the region, 5ms to 10s.
    ///
    /// Default `50ms`: 50 hits of staleness at a limit of 1,000 per second. A shorter interval
    /// costs messages, a longer one admits more over the limit.
    #[serde(deserialize_with = "duration")]
    pub sync_interval: Span,
    /// Interval of synchronisation of eventual counters between regions, 10ms to 60s.
    ///
    /// Default `200ms`: about one round trip; a shorter interval gains nothing.
    #[serde(deserialize_with = "duration")]
    pub region_sync_interval: Span,
    /// Interval of gossip, 20ms to 5s.
    ///
    /// Default `200ms`: a dead node is detected within a second. A shorter interval costs traffic
    /// on every node.
    #[serde(deserialize_with = "duration")]
    pub gossip_interval: Span,
    /// Virtual nodes of a member on the ring, 1 to 1,024. It must be the same on every node,
    /// otherwise nodes disagree about owners.
    ///
    /// Default 128: the largest share stays within 20 % of the mean and the table in the L2 cache.
    /// Change it only while the whole cluster is down.
    pub vnodes: u32,
    /// Copies of each strict counter beside its owner, 0 to 3, in another zone where there is one.
    ///
    /// Default 1: the failure of one node loses no counter. 2 survives two failures within a
    /// second; 0 saves memory and traffic, and a crash loses counters.
    pub replicas: u32,
    /// Interval at which an owner sends changed counters to its replicas, 1ms to 1s. A crash may
    /// lose the hits since the last one, unless the rule has `durability: replicated`.
    ///
    /// Default `5ms`. A longer interval saves messages when few keys are busy.
    #[serde(deserialize_with = "duration")]
    pub replication_interval: Span,
    /// How long a node may own keys after the last answer of a majority, 150ms to 10s. The same on
    /// every node. It must be shorter than the failure detector (about five `gossip_interval`s), so
    /// that an isolated owner has stopped before another takes over.
    ///
    /// Default `600ms`: six pings, of which five may be lost.
    #[serde(deserialize_with = "duration")]
    pub lease: Span,
    /// Which side may own keys during a partition: `majority` of the known members, or `none`.
    ///
    /// Default `majority`: at most one side decides strict limits, the other falls back to
    /// `on_unavailable`. With `none` each side decides alone, and up to one limit per side is
    /// admitted until the partition heals.
    pub quorum: QuorumRule,
    /// How long a member that was lost without leaving counts for the majority, 10s to 30d.
    ///
    /// Default `1h`: longer than an unattended partition. Lower it where crashed nodes come back
    /// under new ids.
    #[serde(deserialize_with = "duration")]
    pub forget_after: Span,
    /// Largest offset of this node's clock from the members' median, 10ms to 60s. Beyond it the
    /// node logs a warning and uses the median for window numbers.
    ///
    /// Default `500ms`: easily met with NTP, and half of the shortest common window.
    #[serde(deserialize_with = "duration")]
    pub max_skew: Span,
    /// Whether a node whose clock is beyond `max_skew` is not ready.
    ///
    /// Default false: it uses the members' time and its decisions are correct.
    pub skew_unready: bool,
}

/// Largest number of threads of each kind.
pub(super) const THREADS_MAX: usize = 256;

impl Cluster {
    /// The address announced to peers: `advertise`, else `listen`; none for a standalone node.
    pub fn advertised(&self) -> Option<SocketAddr> {
        self.listen.map(|listen| self.advertise.unwrap_or(listen))
    }
}

impl Default for Node {
    fn default() -> Self {
        Self { id: "node-1".into(), region: "local".into(), zone: "local".into(), threads: 0 }
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            name: "tidegate".into(),
            listen: None,
            advertise: None,
            seeds: Vec::new(),
            deadline: Span::from_millis(10),
            global_deadline: Span::from_millis(150),
            sync_interval: Span::from_millis(50),
            region_sync_interval: Span::from_millis(200),
            gossip_interval: Span::from_millis(200),
            vnodes: 128,
            replicas: 1,
            replication_interval: Span::from_millis(5),
            lease: Span::from_millis(600),
            quorum: QuorumRule::Majority,
            forget_after: Span::from_secs(3_600),
            max_skew: Span::from_millis(500),
            skew_unready: false,
        }
    }
}

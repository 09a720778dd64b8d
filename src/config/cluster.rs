//! `[cluster]`: where the other nodes are and how long to wait for them.

use std::net::SocketAddr;

use serde::Deserialize;

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
        }
    }
}

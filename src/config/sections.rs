//! The whole of `cluster.toml`.

use serde::Deserialize;
use tidegate_cluster::pki::Tls;
use tidegate_rules::Defaults;

use super::{
    Admin, Auth, Cluster, Debug, Envoy, Grpc, Http, Limits, Node, Resp, Rules, Stats, Storage, Xds,
};

/// The whole configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Who this node is.
    pub node: Node,
    /// The cluster it belongs to. Without a `listen` address the node stands alone.
    pub cluster: Cluster,
    /// The node's certificate for the mesh.
    pub tls: Tls,
    /// The HTTP front door.
    pub http: Http,
    /// The gRPC front door.
    pub grpc: Grpc,
    /// The door for clients of Redis.
    pub resp: Resp,
    /// The operator's door: status, metrics, health.
    pub admin: Admin,
    /// The debug door: rules and statistics as envoyproxy/ratelimit shows them.
    pub debug: Debug,
    /// Where the rules are.
    pub rules: Rules,
    /// What outlives the process.
    pub storage: Storage,
    /// Every bound a deployment may want to move.
    pub limits: Limits,
    /// Forward-auth: how a request becomes descriptors.
    pub auth: Auth,
    /// What a rule means when it does not say.
    pub defaults: Defaults,
    /// How Envoy's rate limit service answers.
    pub envoy: Envoy,
    /// Statistics under the names of envoyproxy/ratelimit.
    pub stats: Stats,
    /// The management server that the rules come from, if they do not come from a folder.
    pub xds: Xds,
}

impl Config {
    /// What a node runs with when nobody gave it a file: it stands alone, every door is on
    /// loopback, so that trying it out opens nothing to the network.
    pub fn standalone() -> Self {
        let mut config = Self::default();
        config.stand_alone();
        config
    }

    /// Opens the doors that nobody placed elsewhere on loopback.
    pub(super) fn stand_alone(&mut self) {
        self.http.listen.get_or_insert(Http::LOOPBACK);
        self.grpc.listen.get_or_insert(Grpc::LOOPBACK);
        self.resp.listen.get_or_insert(Resp::LOOPBACK);
        self.admin.listen.get_or_insert(Admin::LOOPBACK);
    }
}

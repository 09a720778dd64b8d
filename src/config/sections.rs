//! The sections of `cluster.toml`.

use serde::Deserialize;
use tidegate_cluster::pki::Tls;
use tidegate_rules::Defaults;

use super::auth::Auth;
use super::cluster::{Cluster, Node};
use super::envoy::{Envoy, Stats};
use super::limits::{Limits, Storage};
use super::listeners::{Admin, Debug, Grpc, Http, Resp};
use super::rules::{Rules, Xds};

/// The whole configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub node: Node,
    /// Without a `listen` address the node is standalone.
    pub cluster: Cluster,
    /// The node's certificate for the mesh.
    pub tls: Tls,
    pub http: Http,
    pub grpc: Grpc,
    pub resp: Resp,
    pub admin: Admin,
    pub debug: Debug,
    pub rules: Rules,
    pub storage: Storage,
    pub limits: Limits,
    #[serde(deserialize_with = "Auth::valid")]
    pub auth: Auth,
    /// Defaults of rules.
    pub defaults: Defaults,
    pub envoy: Envoy,
    pub stats: Stats,
    pub xds: Xds,
}

impl Config {
    /// The configuration without a file: a standalone node whose listeners are on loopback.
    pub fn standalone() -> Self {
        let mut config = Self::default();
        config.listen_on_loopback();
        config
    }

    /// Gives listeners without an address their loopback default.
    pub(super) fn listen_on_loopback(&mut self) {
        self.http.listen.get_or_insert(Http::LOOPBACK);
        self.grpc.listen.get_or_insert(Grpc::LOOPBACK);
        self.resp.listen.get_or_insert(Resp::LOOPBACK);
        self.admin.listen.get_or_insert(Admin::LOOPBACK);
    }
}

//! `[grpc]`: the gRPC front door.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::Deserialize;

/// `[grpc]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Grpc {
    /// Address of Envoy's rate limit service and `grpc.health.v1`, `IP:PORT`.
    ///
    /// Default none: the door is closed. (With no configuration file at all: `127.0.0.1:8081`.)
    pub listen: Option<SocketAddr>,
}

impl Grpc {
    /// Where the door is when there is no configuration file: the port envoyproxy/ratelimit uses.
    pub const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8081);
}

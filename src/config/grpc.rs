//! `[grpc]`: the gRPC front door.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;

/// `[grpc]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Grpc {
    /// Address of Envoy's rate limit service and `grpc.health.v1`, `IP:PORT`.
    ///
    /// Default none: the door is closed. (With no configuration file at all: `127.0.0.1:8081`.)
    pub listen: Option<SocketAddr>,
    /// This door's certificate chain (PEM), its own certificate first. Read again when it changes.
    ///
    /// Default none: the door speaks plain HTTP/2.
    pub tls_cert: Option<PathBuf>,
    /// The private key to it (PEM).
    pub tls_key: Option<PathBuf>,
    /// The authorities that may have signed a client's certificate (PEM).
    ///
    /// Default none: clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// The DNS name or IP address that a client's certificate must carry.
    ///
    /// Default none: any that `client_ca` signed will do.
    pub client_san: Option<String>,
}

impl Grpc {
    /// Where the door is when there is no configuration file: the port envoyproxy/ratelimit uses.
    pub const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8081);
}

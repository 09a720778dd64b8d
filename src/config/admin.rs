//! `[admin]`: the operator's door.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::Deserialize;

/// `[admin]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// Address of `/status`, `/owner`, `/metrics`, `/healthz` and `/readyz`, `IP:PORT`. It asks for
    /// no password and names every member: keep it off public networks.
    ///
    /// Default none: the door is closed. (With no configuration file at all: `127.0.0.1:8082`.)
    pub listen: Option<SocketAddr>,
}

impl Admin {
    /// Where the door is when there is no configuration file, and where `tidegate status` asks.
    pub const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8082);
}

//! `[http]`: the HTTP front door.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::Deserialize;

/// `[http]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Address of the check API and forward-auth, `IP:PORT`.
    ///
    /// Default none: the door is closed. (With no configuration file at all: `127.0.0.1:8080`.)
    pub listen: Option<SocketAddr>,
    /// Status code of a refusal, 400 to 599.
    ///
    /// Default 429, which clients know to wait after. 503 is for callers that only retry on 5xx.
    pub denied_status: u16,
}

impl Http {
    /// Where the door is when there is no configuration file.
    pub const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
}

impl Default for Http {
    fn default() -> Self {
        Self { listen: None, denied_status: 429 }
    }
}

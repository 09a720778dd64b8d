//! `[debug]`: the door of envoyproxy/ratelimit's debug port.

use std::net::SocketAddr;

use serde::Deserialize;

/// `[debug]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Debug {
    /// Address of `/rlconfig` and `/stats`, `IP:PORT`. It only tells, but it tells every rule and
    /// every counted name: keep it off public networks.
    ///
    /// Default none: the door is closed.
    pub listen: Option<SocketAddr>,
}

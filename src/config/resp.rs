//! `[resp]`: the door for clients of Redis.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::Deserialize;
use tidegate_limiter::policy::Mode;
use tidegate_limiter::units::Span;

use super::{Secret, duration};

/// `[resp]`. What one request may be, how many connections there may be, and how long a client may
/// take over a command is in `[limits]`, as for the other doors.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resp {
    /// Address of the door, `IP:PORT`. Off loopback it needs a `password`: the protocol has no
    /// certificates, and whoever can use up limits can lock others out.
    ///
    /// Default none: the door is closed. (With no configuration file at all: `127.0.0.1:6380`.)
    pub listen: Option<SocketAddr>,
    /// The name that goes with the password.
    ///
    /// Default `default`, which is what clients send that were given a password alone.
    pub username: String,
    /// What clients must say (`AUTH`) before anything else. Give it by the variable
    /// `TIDEGATE_RESP__PASSWORD` where the file is readable by others.
    ///
    /// Default none: on loopback nobody is asked for one.
    pub password: Option<Secret>,
    /// Who decides limits that clients name themselves (`CL.THROTTLE`): `strict` or `eventual`.
    ///
    /// Default: that of `[defaults]`. The same on every node.
    pub mode: Option<Mode>,
    /// Threads that serve connections, 0 to 256, beside those that serve the other doors; 0 is half
    /// the cores, at least 1.
    ///
    /// Default 0: as with Redis, whoever asks runs on the same machine as often as not.
    pub threads: usize,
    /// How long a connection may be silent before it is closed, 1s to 7d.
    ///
    /// Default `10m`: longer than pools of connections rest, short enough that those who vanished
    /// do not fill the door.
    #[serde(deserialize_with = "duration::read")]
    pub idle_timeout: Span,
}

impl Resp {
    /// Where the door is when there is no configuration file: beside Redis' own port, which a Redis
    /// on the same machine has.
    pub const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6380);
}

impl Default for Resp {
    fn default() -> Self {
        Self {
            listen: None,
            username: "default".to_owned(),
            password: None,
            mode: None,
            threads: 0,
            idle_timeout: Span::from_secs(600),
        }
    }
}

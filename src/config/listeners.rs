//! `[http]`, `[grpc]`, `[resp]`, `[admin]` and `[debug]`: the listeners.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;
use tidegate_limiter::policy::Mode;
use tidegate_limiter::units::Span;

use super::value::{Secret, duration};

/// `[http]`: the check API and forward-auth.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// `IP:PORT`.
    ///
    /// Default none: no listener. (Without a configuration file: `127.0.0.1:8080`.)
    pub listen: Option<SocketAddr>,
    /// Status code of a denied request, 400 to 599.
    ///
    /// Default 429, on which clients back off. 503 is for clients that retry only on 5xx.
    pub denied_status: u16,
}

/// `[grpc]`: Envoy's rate limit service and `grpc.health.v1`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Grpc {
    /// `IP:PORT`.
    ///
    /// Default none: no listener. (Without a configuration file: `127.0.0.1:8081`.)
    pub listen: Option<SocketAddr>,
    /// Certificate chain of the listener (PEM), its own certificate first. Reloaded when the file
    /// changes.
    ///
    /// Default none: plaintext HTTP/2.
    pub tls_cert: Option<PathBuf>,
    /// Private key of `tls_cert` (PEM).
    pub tls_key: Option<PathBuf>,
    /// Authorities that must have signed a client's certificate (PEM).
    ///
    /// Default none: clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// DNS name or IP address that a client's certificate must contain.
    ///
    /// Default none: any certificate signed by `client_ca` is accepted.
    pub client_san: Option<String>,
}

/// `[resp]`: Redis clients. The bounds on requests and connections and the time for a command are
/// in `[limits]`, as for the other listeners.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resp {
    /// `IP:PORT`. Off loopback it requires a `password`: the protocol has no certificates, and any
    /// client can use up the limits of others.
    ///
    /// Default none: no listener. (Without a configuration file: `127.0.0.1:6380`.)
    pub listen: Option<SocketAddr>,
    /// User name that belongs to the password.
    ///
    /// Default `default`, which clients send when they are given a password alone.
    pub username: String,
    /// Password that clients must send (`AUTH`) before any other command. Use the variable
    /// `TIDEGATE_RESP__PASSWORD` where others can read the file.
    ///
    /// Default none: no authentication, on loopback only.
    pub password: Option<Secret>,
    /// Mode of limits that clients define themselves (`CL.THROTTLE`): `strict` or `eventual`. The
    /// same on every node.
    ///
    /// Default: the mode of `[defaults]`.
    pub mode: Option<Mode>,
    /// Worker threads for connections, 0 to 256, beside those of `node.threads`; 0 is half the
    /// cores, at least 1.
    ///
    /// Default 0: as with Redis, clients often run on the same machine.
    pub threads: usize,
    /// How long a connection may be idle before it is closed, 1s to 7d.
    ///
    /// Default `10m`: longer than connection pools keep idle connections, short enough that
    /// abandoned ones do not fill the listener.
    #[serde(deserialize_with = "duration")]
    pub idle_timeout: Span,
}

/// `[admin]`: `/status`, `/owner`, `/drain`, `/metrics`, `/healthz` and `/readyz`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// `IP:PORT`. It has no authentication and exposes every member: keep it off public networks.
    ///
    /// Default none: no listener. (Without a configuration file: `127.0.0.1:8082`.)
    pub listen: Option<SocketAddr>,
}

/// `[debug]`: the debug port of envoyproxy/ratelimit, `/rlconfig` and `/stats`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Debug {
    /// `IP:PORT`. It is read-only and exposes every rule and statistic: keep it off public
    /// networks.
    ///
    /// Default none: no listener.
    pub listen: Option<SocketAddr>,
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

impl Http {
    /// Address without a configuration file.
    pub const LOOPBACK: SocketAddr = loopback(8080);
}

impl Grpc {
    /// Address without a configuration file: the port of envoyproxy/ratelimit.
    pub const LOOPBACK: SocketAddr = loopback(8081);
}

impl Resp {
    /// Address without a configuration file: one above Redis' own port, which may be in use.
    pub const LOOPBACK: SocketAddr = loopback(6380);
}

impl Admin {
    /// Address without a configuration file, and the default of `tidegate status`.
    pub const LOOPBACK: SocketAddr = loopback(8082);
}

impl Default for Http {
    fn default() -> Self {
        Self { listen: None, denied_status: 429 }
    }
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

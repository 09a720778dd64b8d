//! `[proxy]`: a reverse proxy beside one application, which limits what passes.
//!
//! ```toml
//! [proxy]
//! listen = "0.0.0.0:8000"
//! upstream = ["http://127.0.0.1:3000"]
//! ```
//!
//! A request becomes descriptors as [`[auth]`](super::auth) says; without `auth.domain` by
//! [`mapping`].

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use ipnet::IpNet;
use serde::Deserialize;
use tidegate_limiter::units::Span;

use super::auth::{Auth, AuthDescriptor, AuthEntry, AuthValue};
use super::value::duration;

/// The domain of a proxy without a mapping of its own.
pub const DEFAULT_DOMAIN: &str = "http";
/// Most servers of one application.
pub const UPSTREAMS_MAX: usize = 64;

/// `[proxy]`. Without `listen` there is no proxy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::struct_field_names, reason = "the protocol has this name")]
pub struct Proxy {
    /// `IP:PORT`.
    ///
    /// Default none: no listener. (`tidegate proxy`: `127.0.0.1:8000`.)
    pub listen: Option<SocketAddr>,
    /// The servers of the application, 1 to 64, each `http://HOST:PORT` or
    /// `https://HOST:PORT`. Requests go to the one with the fewest in flight.
    pub upstream: Vec<Upstream>,
    pub protocol: UpstreamProtocol,
    /// Status of a refused request, 400 to 599.
    ///
    /// Default 429, on which clients back off.
    pub denied_status: u16,
    /// How long a server may take to accept a connection, 1ms to 60s.
    ///
    /// Default `1s`: a server beside the proxy accepts within a millisecond, and another one can
    /// still be tried.
    #[serde(deserialize_with = "duration")]
    pub connect_timeout: Span,
    /// How long a server may take to begin its response after the last byte of the request, 1ms to
    /// 1h.
    ///
    /// Default `60s`, as in other proxies.
    #[serde(deserialize_with = "duration")]
    pub response_timeout: Span,
    /// How long a response or a tunnel may stay without a byte, 1ms to 24h.
    ///
    /// Default `5m`: event streams send a comment more often than that.
    #[serde(deserialize_with = "duration")]
    pub idle_timeout: Span,
    /// How long an idle connection to a server is kept, 1ms to 1h.
    ///
    /// Default `4s`: below the 5 s after which Node.js closes one. Keep it below the time of the
    /// server, or a request may be sent on a connection that is being closed.
    #[serde(deserialize_with = "duration")]
    pub pool_idle_timeout: Span,
    /// Most requests at the servers at a time, 1 to 1,000,000, and so most connections to them.
    /// Further ones are answered with 503.
    ///
    /// Default 1,024.
    pub in_flight_max: usize,
    /// Most requests at one server at a time when its limit is adapted to its response times, 1 to
    /// 1,000,000. While they are longer than usual the limit falls, down to
    /// `adaptive_concurrency_min`; further requests are answered with 503.
    ///
    /// Default none: off. What a server can take at all: under an overload that does not end the
    /// limit grows to this.
    pub adaptive_concurrency_max: Option<u32>,
    /// Requests that one server may have at a time, however slow it is, 1 to
    /// `adaptive_concurrency_max`. The limit begins here.
    ///
    /// Default 20, as in Netflix concurrency-limits: a pause of a server must not close it.
    pub adaptive_concurrency_min: u32,
    /// How often the limit of a server is computed anew, 10ms to 60s, after ten responses at
    /// least.
    ///
    /// Default `1s`: it grows by 0.8 a second at most and falls by a tenth, and what is usual is
    /// the mean of some ten minutes.
    #[serde(deserialize_with = "duration")]
    pub adaptive_concurrency_window: Span,
    /// Most requests that wait for their turn in the queue of a `leaky_bucket`, 1 to 1,000,000, for
    /// `auth.hold_max` at most. Further ones are refused, and their hits given back.
    ///
    /// Default 1,024.
    pub held_max: usize,
    /// Certificate chain of the listener (PEM), its own certificate first. Reloaded when the file
    /// changes.
    ///
    /// Default none: plain text.
    pub tls_cert: Option<PathBuf>,
    /// Private key of `tls_cert` (PEM). A file that others can read is refused.
    pub tls_key: Option<PathBuf>,
    /// Authorities that must have signed the certificates of servers with `https` (PEM). Reloaded
    /// when the file changes.
    ///
    /// Default none: those of the system.
    pub upstream_ca: Option<PathBuf>,
    /// Networks of load balancers that begin each connection with a header of the PROXY protocol
    /// (version 1 or 2), which then must be there.
    ///
    /// Default none.
    pub proxy_protocol_from: Vec<IpNet>,
    /// Failures of a server in a row after which it is left out for 10 s, 0 to 1,000; 0 is never.
    /// The last server is never left out.
    ///
    /// Default 5.
    pub eject_after: u32,
    /// Path of a health check, a `GET` that a healthy server answers with a status below 400.
    ///
    /// Default none: no checks.
    pub health_path: Option<HealthPath>,
    /// How often a server is checked, and how long a check may take, 10ms to 10m. Two failed checks
    /// take it out, the next good one brings it back.
    ///
    /// Default `5s`.
    #[serde(deserialize_with = "duration")]
    pub health_interval: Span,
    /// File to which each request is written as a line of JSON; `-` is standard output.
    ///
    /// Default none.
    pub access_log: Option<PathBuf>,
}

/// How the requests at one server are limited by its response times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveConcurrency {
    pub min: u32,
    pub max: u32,
    pub window: Duration,
}

/// The path of a health check.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct HealthPath(pub PathAndQuery);

/// A server: `http://HOST:PORT` or `https://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Upstream {
    pub scheme: Scheme,
    pub authority: Authority,
}

/// What is spoken to the servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamProtocol {
    /// HTTP/2 for gRPC, HTTP/1.1 for everything else.
    #[default]
    Auto,
    Http1,
    /// HTTP/2, without TLS with prior knowledge.
    H2c,
}

/// The mapping of a proxy: that of `[auth]`, or without `auth.domain` the domain
/// [`DEFAULT_DOMAIN`] with the descriptors `remote_address`, `path`, and `method` with
/// `remote_address`.
pub fn mapping(auth: &Auth) -> Auth {
    if auth.domain.is_some() {
        return auth.clone();
    }
    let entry = |key: &str, value| AuthEntry { key: key.to_owned(), value };
    let address = || entry("remote_address", AuthValue::ClientAddress);
    let descriptors = [
        vec![address()],
        vec![entry("path", AuthValue::Path)],
        vec![entry("method", AuthValue::Method), address()],
    ];
    Auth {
        domain: Some(DEFAULT_DOMAIN.to_owned()),
        descriptors: descriptors.map(|entries| AuthDescriptor { entries }).into(),
        ..auth.clone()
    }
}

impl Proxy {
    /// `None`: the requests at one server are not limited.
    pub fn adaptive_concurrency(&self) -> Option<AdaptiveConcurrency> {
        let max = self.adaptive_concurrency_max?;
        let min = self.adaptive_concurrency_min;
        Some(AdaptiveConcurrency { min, max, window: self.adaptive_concurrency_window.to_std() })
    }
}

impl Default for Proxy {
    fn default() -> Self {
        Self {
            listen: None,
            upstream: Vec::new(),
            protocol: UpstreamProtocol::default(),
            denied_status: 429,
            connect_timeout: Span::from_secs(1),
            response_timeout: Span::from_secs(60),
            idle_timeout: Span::from_secs(300),
            pool_idle_timeout: Span::from_secs(4),
            in_flight_max: 1_024,
            adaptive_concurrency_max: None,
            adaptive_concurrency_min: 20,
            adaptive_concurrency_window: Span::from_secs(1),
            held_max: 1_024,
            tls_cert: None,
            tls_key: None,
            upstream_ca: None,
            proxy_protocol_from: Vec::new(),
            eject_after: 5,
            health_path: None,
            health_interval: Span::from_secs(5),
            access_log: None,
        }
    }
}

impl TryFrom<String> for Upstream {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let refused = || format!("{text:?} is not http://HOST:PORT or https://HOST:PORT");
        let uri: Uri = text.parse().map_err(|_| refused())?;
        let is_bare = uri.path_and_query().is_none_or(|path| path == "/");
        let parts = uri.into_parts();
        match (parts.scheme, parts.authority) {
            (Some(scheme), Some(authority))
                if (scheme == Scheme::HTTP || scheme == Scheme::HTTPS)
                    && is_bare
                    && !authority.as_str().contains('@')
                    && !authority.host().is_empty() =>
            {
                Ok(Self { scheme, authority })
            }
            _ => Err(refused()),
        }
    }
}

impl TryFrom<String> for HealthPath {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let path = text.parse().ok().filter(|_| text.starts_with('/'));
        path.map(Self).ok_or_else(|| format!("{text:?} is not a path"))
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_url_without_a_path() {
        for good in
            ["http://127.0.0.1:3000", "http://app", "http://[::1]:80/", "http://a.b:1", "https://a"]
        {
            let server = Upstream::try_from(good.to_owned()).expect(good);
            assert_eq!(server.to_string(), good.trim_end_matches('/'));
        }
        for bad in
            ["", "app", "app:3000", "http://", "http://a/b", "http://a?b", "ftp://a", "http://u@a"]
        {
            assert!(Upstream::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn without_a_domain_requests_are_mapped_by_address_path_and_method() {
        let mapped = mapping(&Auth::default());
        let shown: Vec<String> = mapped
            .descriptors
            .iter()
            .map(|descriptor| {
                let entries = descriptor.entries.iter().map(ToString::to_string);
                entries.collect::<Vec<_>>().join(", ")
            })
            .collect();
        assert_eq!(mapped.domain.as_deref(), Some("http"));
        assert_eq!(
            shown,
            [
                "remote_address = client address",
                "path = path",
                "method = method, remote_address = client address",
            ]
        );
        let own = Auth { domain: Some("edge".to_owned()), ..Auth::default() };
        assert_eq!(mapping(&own).domain.as_deref(), Some("edge"));
    }
}

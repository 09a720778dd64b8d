//! `[xds]`: rules from a management server instead of a folder.

use std::path::PathBuf;

use serde::Deserialize;
use tidegate_limiter::units::Span;

use super::duration;

/// `[xds]`. What envoyproxy/ratelimit takes from `CONFIG_TYPE=GRPC_XDS_SOTW` and
/// `CONFIG_GRPC_XDS_*`: the way in which Envoy Gateway drives it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Xds {
    /// The management server: `HOST:PORT`, or a URL that begins with `http://` or `https://`.
    ///
    /// Default none: the rules are read from `rules.path`, which is not looked at otherwise.
    pub server: Option<String>,
    /// The id by which the server knows which rules are for this node.
    ///
    /// Default `default`. Nodes of one cluster take the same: they must hold the same rules.
    pub node_id: String,
    /// `NAME=VALUE` pairs that the server is told about this node, at most 64.
    pub node_metadata: Vec<String>,
    /// `NAME:VALUE` pairs that are sent as headers with the request, at most 64; a token, say.
    pub headers: Vec<String>,
    /// Whether to speak TLS with a server that is given as `HOST:PORT`.
    pub tls: bool,
    /// The authorities that may have signed the server's certificate (PEM).
    ///
    /// Default none: those of the system.
    pub tls_ca: Option<PathBuf>,
    /// This node's certificate chain for the server (PEM); together with `tls_key`.
    pub tls_cert: Option<PathBuf>,
    /// The private key to it (PEM).
    pub tls_key: Option<PathBuf>,
    /// The name that the server's certificate must carry.
    ///
    /// Default none: the host of `server`.
    pub server_name: Option<String>,
    /// Most bytes of one message of the server, 1,024 to 67,108,864: all rules come in one.
    ///
    /// Default 4 MiB, as everywhere in gRPC.
    pub max_message_bytes: usize,
    /// How long to wait before the first attempt to connect again, 10ms to 60s; it doubles with
    /// every attempt that brought nothing.
    ///
    /// Default `500ms`: a server that restarts is found again soon, and not overrun.
    #[serde(deserialize_with = "duration::read")]
    pub backoff_initial: Span,
    /// The longest wait, 10ms to 600s, and not below `backoff_initial`.
    ///
    /// Default `30s`: what rules are late by after a long absence of the server.
    #[serde(deserialize_with = "duration::read")]
    pub backoff_max: Span,
}

impl Xds {
    /// The server as a URL, if there is one; whether it says `https` is whether TLS is spoken.
    ///
    /// gRPC's own way to write a target, `dns:///HOST:PORT`, is a plain `HOST:PORT` here.
    pub fn url(&self) -> Option<String> {
        let server = self.server.as_deref()?;
        let server = server.strip_prefix("dns:///").unwrap_or(server);
        if server.contains("://") {
            return Some(server.to_owned());
        }
        let scheme = if self.tls { "https" } else { "http" };
        Some(format!("{scheme}://{server}"))
    }

    /// [`Xds::node_metadata`] as names and values. What has no `=` is left out, as the reference
    /// does; a validated configuration has no such.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        self.node_metadata.iter().filter_map(|pair| pair.split_once('='))
    }

    /// [`Xds::headers`] as names and values, likewise.
    pub fn header_pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.headers.iter().filter_map(|pair| pair.split_once(':'));
        pairs.map(|(name, value)| (name.trim(), value.trim()))
    }
}

impl Default for Xds {
    fn default() -> Self {
        Self {
            server: None,
            node_id: "default".to_owned(),
            node_metadata: Vec::new(),
            headers: Vec::new(),
            tls: false,
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
            server_name: None,
            max_message_bytes: 4 << 20,
            backoff_initial: Span::from_millis(500),
            backoff_max: Span::from_secs(30),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_url_or_gets_to_be_one() {
        for (server, tls, expected) in [
            ("gateway:18001", false, "http://gateway:18001"),
            ("gateway:18001", true, "https://gateway:18001"),
            ("dns:///gateway:18001", false, "http://gateway:18001"),
            ("https://gateway:18001", false, "https://gateway:18001"),
        ] {
            let xds = Xds { server: Some(server.to_owned()), tls, ..Xds::default() };
            assert_eq!(xds.url().as_deref(), Some(expected));
        }
        assert_eq!(Xds::default().url(), None);
    }

    #[test]
    fn pairs_are_parted_at_the_first_sign() {
        let xds = Xds {
            node_metadata: vec!["a=1=2".to_owned()],
            headers: vec!["authorization: Bearer x:y".to_owned()],
            ..Xds::default()
        };
        assert_eq!(xds.metadata().collect::<Vec<_>>(), [("a", "1=2")]);
        assert_eq!(xds.header_pairs().collect::<Vec<_>>(), [("authorization", "Bearer x:y")]);
    }
}

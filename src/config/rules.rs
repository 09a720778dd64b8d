//! `[rules]` and `[xds]`: the source of the rules, a folder or a management server. `[envoy]` and
//! `[stats]`: the behaviour and the statistics of envoyproxy/ratelimit, which takes them from its
//! environment. [`crate::compat::envoy_ratelimit`] describes the compatibility.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use tidegate_limiter::units::Span;

use super::value::duration;

/// Rules of a node without a configuration file and without a `rules` folder: file name and content
/// of the shipped folder, in order.
pub const EXAMPLES: &[(&str, &str)] = &[
    ("algorithms.yaml", include_str!("../../rules/algorithms.yaml")),
    ("basic.yaml", include_str!("../../rules/basic.yaml")),
    ("bytes.yaml", include_str!("../../rules/bytes.yaml")),
    ("demo.yaml", include_str!("../../rules/demo.yaml")),
    ("modes.yaml", include_str!("../../rules/modes.yaml")),
    ("several-limits.yaml", include_str!("../../rules/several-limits.yaml")),
];

/// `[rules]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own")]
pub struct Rules {
    /// Folder of rule files (`*.yaml`, `*.yml`), or one such file, relative to the configuration
    /// file. Changes apply within two seconds.
    ///
    /// Default `rules`.
    pub path: PathBuf,
    /// Whether several files may define one domain. Their descriptors must differ.
    ///
    /// Default false: a domain in two files is an error.
    pub merge_domains: bool,
    /// Whether the node starts only with valid rules.
    ///
    /// Default true: an error in a rule fails the start. With false the node starts, is not ready,
    /// and applies the first valid rules. With `may_be_empty` a folder that does not exist is an
    /// empty one.
    pub required: bool,
    /// Whether a node without any rule is ready.
    ///
    /// Default false: without rules every request passes.
    pub may_be_empty: bool,
    /// Set by the loader: there is neither a configuration file nor a folder at `path`, so the node
    /// uses [`EXAMPLES`].
    #[serde(skip)]
    pub embedded: bool,
}

/// `[xds]`: what envoyproxy/ratelimit configures with `CONFIG_TYPE=GRPC_XDS_SOTW` and
/// `CONFIG_GRPC_XDS_*`, as Envoy Gateway does.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Xds {
    /// The management server: `HOST:PORT`, or a URL with `http://` or `https://`.
    ///
    /// Default none: rules are read from `rules.path`, which is ignored otherwise.
    pub server: Option<String>,
    /// Node id sent to the server, which selects the rules by it.
    ///
    /// Default `default`. Nodes of one cluster use the same id because they need the same rules.
    pub node_id: String,
    /// `NAME=VALUE` pairs of node metadata sent to the server, at most 64.
    pub node_metadata: Vec<String>,
    /// `NAME:VALUE` pairs sent as request headers, at most 64; a token, for example.
    pub headers: Vec<String>,
    /// Whether to use TLS with a server given as `HOST:PORT`.
    pub tls: bool,
    /// Authorities that must have signed the server's certificate (PEM).
    ///
    /// Default none: those of the system.
    pub tls_ca: Option<PathBuf>,
    /// Client certificate chain (PEM); requires `tls_key`.
    pub tls_cert: Option<PathBuf>,
    /// Private key of `tls_cert` (PEM).
    pub tls_key: Option<PathBuf>,
    /// Name that the server's certificate must contain.
    ///
    /// Default none: the host of `server`.
    pub server_name: Option<String>,
    /// Maximum size of a message of the server in bytes, 1,024 to 67,108,864: all rules arrive in
    /// one.
    ///
    /// Default 4 MiB, as is usual in gRPC.
    pub max_message_bytes: usize,
    /// Delay before the first reconnect, 10ms to 60s; it doubles with every failed attempt.
    ///
    /// Default `500ms`: reconnects soon after a restart of the server without overloading it.
    #[serde(deserialize_with = "duration")]
    pub backoff_initial: Span,
    /// Longest delay, 10ms to 600s, and at least `backoff_initial`.
    ///
    /// Default `30s`: the delay of new rules after a long outage of the server.
    #[serde(deserialize_with = "duration")]
    pub backoff_max: Span,
}

/// `[envoy]`. It applies to Envoy's rate limit service only: gRPC and its JSON form.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own")]
pub struct Envoy {
    /// Every response is `OK`, regardless of the limits; requests over a limit are counted.
    pub shadow_mode: bool,
    /// Every rule is treated as one with `quota_mode`: a request is over the limit only when all of
    /// its descriptors are.
    pub quota_mode: bool,
    /// Whether a limit in a request (`RateLimitDescriptor.limit`) overrides the rule's.
    ///
    /// Default true, as in envoyproxy/ratelimit. With false it is counted and ignored.
    pub overrides: bool,
    /// Whether a denied descriptor keeps the other descriptors of the request from being charged.
    ///
    /// Default false: each descriptor is charged independently. True costs a request with several
    /// descriptors a second lookup of each.
    pub all_or_nothing: bool,
    /// Whether a key denied in this window is denied from memory, uncounted, until the window ends.
    pub local_cache: bool,
    /// Fraction of a limit above which hits count as near the limit, 0 to 1.
    pub near_limit_ratio: f32,
    /// Whether responses carry the three headers below, which Envoy adds to its response.
    pub response_headers: bool,
    /// Name of the header with the limit.
    pub limit_header: String,
    /// Name of the header with the remaining hits.
    pub remaining_header: String,
    /// Name of the header with the seconds until the limit resets.
    pub reset_header: String,
    /// Whether responses carry the request and the `metadata` of the rules that admitted it.
    pub dynamic_metadata: bool,
}

/// `[stats]`. Metrics under tidegate's own names are independent of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stats {
    /// A statsd server, `HOST:PORT`, resolved at each connect.
    ///
    /// Default none.
    pub statsd: Option<String>,
    pub statsd_protocol: StatsdProtocol,
    /// Interval at which changes are sent, 100ms to 10m.
    ///
    /// Default `10s`, as in envoyproxy/ratelimit.
    #[serde(deserialize_with = "duration")]
    pub flush_interval: Span,
    /// Tags of every statistic, each `KEY:VALUE`, at most 32.
    pub extra_tags: Vec<String>,
    /// Whether `/metrics` includes these statistics beside tidegate's own metrics.
    ///
    /// Default false: without dashboards of envoyproxy/ratelimit they only duplicate.
    pub prometheus_names: bool,
    /// Address of a listener for these statistics alone, `IP:PORT`, for a scraper that is
    /// configured for it.
    ///
    /// Default none.
    pub prometheus_listen: Option<SocketAddr>,
    /// Path on that listener.
    ///
    /// Default `/metrics`.
    pub prometheus_path: String,
}

/// Protocol of the statsd server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatsdProtocol {
    /// Lines over one connection; tags in the names. The default, as in envoyproxy/ratelimit:
    /// a failed write is detected and repeated.
    #[default]
    Tcp,
    /// The same lines in datagrams.
    Udp,
    /// `DogStatsD`: datagrams with a tag section.
    Dogstatsd,
}

/// Most tags: every line carries all of them.
pub(super) const TAGS_MAX: usize = 32;

impl Xds {
    /// The server as a URL, if set; TLS is used when it begins with `https`.
    ///
    /// gRPC's own notation of a target, `dns:///HOST:PORT`, is the same as `HOST:PORT`.
    pub fn url(&self) -> Option<String> {
        let server = self.server.as_deref()?;
        let server = server.strip_prefix("dns:///").unwrap_or(server);
        if server.contains("://") {
            return Some(server.to_owned());
        }
        let scheme = if self.tls { "https" } else { "http" };
        Some(format!("{scheme}://{server}"))
    }

    /// [`Xds::node_metadata`] as names and values. Pairs without `=` are skipped, as in
    /// envoyproxy/ratelimit; validation rejects them.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        self.node_metadata.iter().filter_map(|pair| pair.split_once('='))
    }

    /// [`Xds::headers`] as names and values. Pairs without `:` are skipped.
    pub fn header_pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.headers.iter().filter_map(|pair| pair.split_once(':'));
        pairs.map(|(name, value)| (name.trim(), value.trim()))
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            path: "rules".into(),
            merge_domains: false,
            required: true,
            may_be_empty: false,
            embedded: false,
        }
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

impl Stats {
    /// The extra tags as pairs; one without a colon is skipped.
    pub fn tags(&self) -> Vec<(&str, &str)> {
        self.extra_tags.iter().filter_map(|tag| tag.split_once(':')).collect()
    }
}

impl Default for Envoy {
    fn default() -> Self {
        Self {
            shadow_mode: false,
            quota_mode: false,
            overrides: true,
            all_or_nothing: false,
            local_cache: false,
            near_limit_ratio: 0.8,
            response_headers: false,
            limit_header: "RateLimit-Limit".to_owned(),
            remaining_header: "RateLimit-Remaining".to_owned(),
            reset_header: "RateLimit-Reset".to_owned(),
            dynamic_metadata: false,
        }
    }
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            statsd: None,
            statsd_protocol: StatsdProtocol::default(),
            flush_interval: Span::from_secs(10),
            extra_tags: Vec::new(),
            prometheus_names: false,
            prometheus_listen: None,
            prometheus_path: "/metrics".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_are_the_shipped_folder() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/rules");
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, EXAMPLES.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }

    #[test]
    fn a_server_without_a_scheme_becomes_a_url() {
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
    fn pairs_are_split_at_the_first_separator() {
        let xds = Xds {
            node_metadata: vec!["a=1=2".to_owned()],
            headers: vec!["authorization: Bearer x:y".to_owned()],
            ..Xds::default()
        };
        assert_eq!(xds.metadata().collect::<Vec<_>>(), [("a", "1=2")]);
        assert_eq!(xds.header_pairs().collect::<Vec<_>>(), [("authorization", "Bearer x:y")]);
    }
}

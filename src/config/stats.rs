//! `[stats]`: the statistics of envoyproxy/ratelimit, under its names.

use std::net::SocketAddr;

use serde::Deserialize;
use tidegate_limiter::units::Span;

use super::duration;

/// `[stats]`. Our own metrics are told all the same, by the HTTP and the operator's door.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stats {
    /// A statsd server to send to, `HOST:PORT`. It is looked up at each connection.
    ///
    /// Default none.
    pub statsd: Option<String>,
    /// How it is spoken to.
    pub statsd_protocol: StatsdProtocol,
    /// How often what was counted since the last time is sent, 100ms to 10m.
    ///
    /// Default `10s`, as there.
    #[serde(deserialize_with = "duration::read")]
    pub flush_interval: Span,
    /// Tags that are sent with everything, each `KEY:VALUE`, at most [`TAGS_MAX`].
    pub extra_tags: Vec<String>,
    /// Whether `/metrics` tells these statistics too, beside our own metrics.
    ///
    /// Default false: whoever has no dashboards from there counts everything once.
    pub prometheus_names: bool,
    /// Address of a door that tells these statistics alone, `IP:PORT`, for a scraper that is set up
    /// to ask there.
    ///
    /// Default none.
    pub prometheus_listen: Option<SocketAddr>,
    /// The path there.
    ///
    /// Default `/metrics`.
    pub prometheus_path: String,
}

/// How a statsd server is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatsdProtocol {
    /// Lines over one connection; tags in the names.
    ///
    /// The default, as there: what was not sent is known, and sent later.
    #[default]
    Tcp,
    /// The same in datagrams.
    Udp,
    /// `DogStatsD`: datagrams, with tags of their own.
    Dogstatsd,
}

/// Most tags: each is in every line.
pub const TAGS_MAX: usize = 32;

impl Stats {
    /// The extra tags as pairs; one without a colon is none.
    pub fn tags(&self) -> Vec<(&str, &str)> {
        self.extra_tags.iter().filter_map(|tag| tag.split_once(':')).collect()
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

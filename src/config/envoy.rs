//! `[envoy]` and `[stats]`: the behaviour and the statistics of envoyproxy/ratelimit, which takes
//! them from its environment. [`crate::compat::envoy_ratelimit`] describes the compatibility.

use std::net::SocketAddr;

use serde::Deserialize;
use tidegate_limiter::units::Span;

use super::value::duration;

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

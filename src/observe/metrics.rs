//! The metrics of a node, exported to Prometheus.
//!
//! A metric on the request path is one atomic addition; its labels are resolved once, when the node
//! is built. Counters that other parts keep for themselves (rules, store, mesh) are read at each
//! scrape, so that there is only one number of each.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::latency::Latency;
use super::names::{BUILD, DECISION_SECONDS, DECISIONS, PREFIX};
use super::samples::{Readings, RuleSample, Scrape};

/// The `content-type` of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of one node.
#[derive(Debug)]
pub struct Metrics {
    /// `/v1/check` and forward-auth.
    pub http: Listener,
    /// Envoy's rate limit service.
    pub grpc: Listener,
    /// Redis clients.
    pub resp: Listener,
    /// Clients of Gubernator.
    pub gubernator: Listener,
    /// Requests of the proxy.
    pub proxy: Listener,
    registry: Registry,
    /// Metrics without the prefix `tidegate_`.
    unprefixed: Registry,
}

/// Decisions of one listener.
#[derive(Clone, Debug)]
pub struct Listener {
    pub allowed: Counter,
    pub denied: Counter,
    /// From the parsed request to the response.
    pub latency: Latency,
}

impl Metrics {
    /// All metrics at zero.
    pub fn new(version: &'static str) -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register(BUILD.name, BUILD.help, Info::new([("version", version)]));
        let decisions = Family::<[Label; 2], Counter>::default();
        registry.register(DECISIONS.name, DECISIONS.help, decisions.clone());
        let latency = Family::<[Label; 1], Latency>::default();
        registry.register(DECISION_SECONDS.name, DECISION_SECONDS.help, latency.clone());
        let listener = |name| Listener {
            allowed: decisions.get_or_create_owned(&[("listener", name), ("outcome", "allowed")]),
            denied: decisions.get_or_create_owned(&[("listener", name), ("outcome", "denied")]),
            latency: latency.get_or_create_owned(&[("listener", name)]),
        };
        let (http, grpc) = (listener("http"), listener("grpc"));
        let (resp, gubernator) = (listener("resp"), listener("gubernator"));
        let proxy = listener("proxy");
        Self { http, grpc, resp, gubernator, proxy, registry, unprefixed: Registry::default() }
    }

    /// Exports counters of the rules. `read` is called at each scrape; the order of its rules
    /// should be stable.
    pub fn watch_rules(&mut self, read: impl Fn() -> Vec<RuleSample> + Send + Sync + 'static) {
        self.registry.register_collector(Box::new(Scrape(Box::new(read))));
    }

    /// Exports counters of other parts. `read` is called at each scrape.
    pub fn watch(&mut self, read: impl Fn() -> Readings + Send + Sync + 'static) {
        self.registry.register_collector(Box::new(Scrape(Box::new(read))));
    }

    /// Exports metrics whose names do not begin with `tidegate_`.
    pub fn watch_unprefixed(&mut self, collector: Box<dyn Collector>) {
        self.unprefixed.register_collector(collector);
    }

    /// All metrics as `OpenMetrics` text, of type [`CONTENT_TYPE`].
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a `String` fails only if a collector does, and these do not.
        let _ = encode_registry(&mut text, &self.registry);
        let _ = encode_registry(&mut text, &self.unprefixed);
        let _ = encode_eof(&mut text);
        text
    }
}

type Label = (&'static str, &'static str);

#[cfg(test)]
mod tests {
    use tidegate_limiter::units::Span;

    use super::*;

    #[test]
    fn counts_are_exported() {
        let metrics = Metrics::new("1.2.3");
        metrics.grpc.denied.inc();
        metrics.grpc.clone().denied.inc();
        metrics.http.latency.record(Span::from_millis(15));
        let text = metrics.encode();
        for line in [
            "tidegate_build_info{version=\"1.2.3\"} 1",
            "tidegate_decisions_total{listener=\"grpc\",outcome=\"denied\"} 2",
            "tidegate_decision_seconds_bucket{le=\"0.01\",listener=\"http\"} 0",
            "tidegate_decision_seconds_bucket{le=\"0.02\",listener=\"http\"} 1",
            "tidegate_decision_seconds_sum{listener=\"http\"} 0.015",
            "# EOF",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}

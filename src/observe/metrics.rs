//! The metrics of a node, as Prometheus reads them.
//!
//! What is counted on the way of a request is one atomic addition, looked up by label once, when
//! the node is built. What other parts count for themselves (rules, store, mesh) is asked for when
//! somebody reads the metrics, so there is one number and not two that may differ.

use std::fmt;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::latency::Latency;
use super::names;
use super::samples::{Reading, Readings, RuleSample, Rules};

/// What [`Metrics::encode`] writes, for the answer's `content-type`.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of one node.
pub struct Metrics {
    /// The HTTP door: `/v1/check` and forward-auth.
    pub http: Listener,
    /// Envoy's rate limit service.
    pub grpc: Listener,
    /// The door for clients of Redis.
    pub resp: Listener,
    registry: Registry,
    /// Families that are not named by us, as text.
    foreign: Option<Box<dyn Fn() -> String + Send + Sync>>,
}

/// What one front door decided.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Requests that may pass.
    pub allowed: Counter,
    /// Requests that may not.
    pub denied: Counter,
    /// From a request read to its answer ready.
    pub latency: Latency,
}

impl Metrics {
    /// All metrics at zero.
    pub fn new(version: &'static str) -> Self {
        let mut registry = Registry::with_prefix(names::PREFIX);
        registry.register(
            names::BUILD,
            "Version of the program",
            Info::new([("version", version)]),
        );
        let decisions = Family::<[Label; 2], Counter>::default();
        registry.register(
            names::DECISIONS,
            "Requests decided, by door and outcome",
            decisions.clone(),
        );
        let latency = Family::<[Label; 1], Latency>::default();
        registry.register(
            names::DECISION_SECONDS,
            "Time from a request read to its answer ready, by door",
            latency.clone(),
        );
        let listener = |name| Listener {
            allowed: decisions.get_or_create_owned(&[("door", name), ("outcome", "allowed")]),
            denied: decisions.get_or_create_owned(&[("door", name), ("outcome", "denied")]),
            latency: latency.get_or_create_owned(&[("door", name)]),
        };
        let (http, grpc, resp) = (listener("http"), listener("grpc"), listener("resp"));
        Self { http, grpc, resp, registry, foreign: None }
    }

    /// Reports what the rules counted. `read` is called at each reading of the metrics; it should
    /// name the rules in a stable order.
    pub fn watch_rules(&mut self, read: impl Fn() -> Vec<RuleSample> + Send + Sync + 'static) {
        self.registry.register_collector(Box::new(Rules::new(read)));
    }

    /// Reports what others count. `read` is called at each reading of the metrics.
    pub fn watch(&mut self, read: impl Fn() -> Vec<Reading> + Send + Sync + 'static) {
        self.registry.register_collector(Box::new(Readings::new(read)));
    }

    /// Adds the text of whole families whose names begin otherwise. `read` is called at each
    /// reading of the metrics.
    pub fn watch_foreign(&mut self, read: impl Fn() -> String + Send + Sync + 'static) {
        self.foreign = Some(Box::new(read));
    }

    /// All metrics as `OpenMetrics` text, of type [`CONTENT_TYPE`].
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a `String` fails only if a collector does, and ours do not.
        let _ = encode_registry(&mut text, &self.registry);
        if let Some(read) = &self.foreign {
            text.push_str(&read());
        }
        let _ = encode_eof(&mut text);
        text
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("registry", &self.registry).finish_non_exhaustive()
    }
}

/// A label with its value.
type Label = (&'static str, &'static str);

#[cfg(test)]
mod tests {
    use tidegate_limiter::units::Span;

    use super::*;

    #[test]
    fn what_is_counted_is_what_is_read() {
        let metrics = Metrics::new("1.2.3");
        metrics.grpc.denied.inc();
        metrics.grpc.clone().denied.inc();
        metrics.http.latency.record(Span::from_millis(15));
        let text = metrics.encode();
        for line in [
            "tidegate_build_info{version=\"1.2.3\"} 1",
            "tidegate_decisions_total{door=\"grpc\",outcome=\"denied\"} 2",
            "tidegate_decision_seconds_bucket{le=\"0.01\",door=\"http\"} 0",
            "tidegate_decision_seconds_bucket{le=\"0.02\",door=\"http\"} 1",
            "tidegate_decision_seconds_sum{door=\"http\"} 0.015",
            "# EOF",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}

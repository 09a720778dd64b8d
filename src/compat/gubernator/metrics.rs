//! Metrics under the names that dashboards of Gubernator know, where there is a counterpart.
//!
//! | name | counts |
//! |---|---|
//! | `gubernator_getratelimit_counter{calltype}` | requests: `local`, `forward`, `global` |
//! | `gubernator_over_limit_counter` | requests over their limit |
//! | `gubernator_check_error_counter{error}` | `Invalid request`, `Request too large` |
//! | `gubernator_grpc_request_counts{method,status}` | calls of `GetRateLimits` |
//! | `gubernator_cache_size` | counters of the node, of all listeners |
//!
//! Their names do not end in `_total`, so in an `OpenMetrics` text they are of type `unknown`.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::front::gubernator::Calls;

/// A collector of these metrics; `keys` reads the number of counters.
pub fn collector(
    calls: Arc<Calls>,
    keys: impl Fn() -> usize + Send + Sync + 'static,
) -> Box<dyn Collector> {
    Box::new(Exposition { calls, keys: Box::new(keys) })
}

struct Exposition {
    calls: Arc<Calls>,
    keys: Box<dyn Fn() -> usize + Send + Sync>,
}

impl fmt::Debug for Exposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposition").field("calls", &self.calls).finish_non_exhaustive()
    }
}

const HELP: &str = "Same as in Gubernator";

type Labels<'a> = &'a [(&'static str, &'static str)];

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Calls { local, forwarded, global, over_limit, invalid, too_large, ok, failed } =
            &*self.calls;
        let keys = (self.keys)() as u64;
        let method = ("method", "/pb.gubernator.V1/GetRateLimits");
        let metrics: [(&str, &[(Labels<'_>, u64)]); 5] = [
            (
                "gubernator_getratelimit_counter",
                &[
                    (&[("calltype", "local")], local.get()),
                    (&[("calltype", "forward")], forwarded.get()),
                    (&[("calltype", "global")], global.get()),
                ],
            ),
            ("gubernator_over_limit_counter", &[(&[], over_limit.get())]),
            (
                "gubernator_check_error_counter",
                &[
                    (&[("error", "Invalid request")], invalid.get()),
                    (&[("error", "Request too large")], too_large.get()),
                ],
            ),
            (
                "gubernator_grpc_request_counts",
                &[
                    (&[method, ("status", "success")], ok.get()),
                    (&[method, ("status", "failed")], failed.get()),
                ],
            ),
            ("gubernator_cache_size", &[(&[], keys)]),
        ];
        for (name, samples) in metrics {
            let mut metric = encoder.encode_descriptor(name, HELP, None, MetricType::Unknown)?;
            for (labels, value) in samples {
                // `encode_counter` would append `_total` to the name.
                if labels.is_empty() {
                    metric.encode_gauge(value)?;
                } else {
                    metric.encode_family(&labels.to_vec())?.encode_gauge(value)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode_registry;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn metrics_have_the_names_that_dashboards_know() {
        let calls = Arc::new(Calls::default());
        calls.forwarded.add(7);
        calls.over_limit.add(2);
        let mut registry = Registry::default();
        registry.register_collector(collector(calls, || 42));
        let mut text = String::new();
        encode_registry(&mut text, &registry).expect("text");
        for line in [
            "gubernator_getratelimit_counter{calltype=\"forward\"} 7",
            "gubernator_over_limit_counter 2",
            "gubernator_check_error_counter{error=\"Invalid request\"} 0",
            "gubernator_cache_size 42",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
    }
}

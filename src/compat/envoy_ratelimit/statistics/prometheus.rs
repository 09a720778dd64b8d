//! Statistics in the Prometheus metrics of envoyproxy/ratelimit.
//!
//! There, statsd names are mapped to metrics and labels: the first part of a name is `domain`, the
//! second `key1`, the third, if any, `key2`; names that differ only beyond that share a series.
//!
//! ```text
//! edge.generic_key_api                    {domain="edge",key1="generic_key_api"}
//! edge.path_/a.remote_address.user_bob    {domain="edge",key1="path_/a",key2="remote_address"}
//! ```
//!
//! As there, a counter without a count has no series. Where the mapping has no row, or one that
//! matches by accident, this module exports the evident intent:
//!
//! - `..._over_limit_with_local_cache` and `..._domain_not_found` have no row there and become one
//!   metric for each domain and key, with both in its name. Here they are one metric with labels:
//!   clients must not choose names of metrics.
//! - The row of `over_limit` also matches `over_limit_with_local_cache` of names with three parts,
//!   so those hits count twice there.
//! - Extra tags break the mapping there. Here they apply to statsd only; Prometheus has target
//!   labels.
//!
//! The names end without `_total`. `docs/adr/0043` describes how prometheus-client writes them.
//!
//! Source: envoyproxy/ratelimit, `src/stats/prom/default_mapper.yaml`, and the mapper of
//! `prometheus/statsd_exporter`.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tidegate_rules::tally::COUNTERS;

use super::{Statistics, sanitized};
use crate::observe::latency::{BOUNDS, Times, seconds};
use crate::observe::samples::{Escaped, Scrape};

/// The `content-type` of [`Form::Plain`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Prefix of the counters of a tally.
pub const PREFIX: &str = "ratelimit_service_rate_limit_";
/// Checks of domains without rules, by `domain`.
pub const NOT_FOUND: &str = "ratelimit_service_rate_limit_domain_not_found";
/// Requests without a decision, by `err_type`.
pub const ERROR: &str = "ratelimit_service_should_rate_limit_error";
/// Successful loads of the rules.
pub const LOAD_SUCCESS: &str = "ratelimit_service_config_load_success";
/// Failed loads of the rules.
pub const LOAD_ERROR: &str = "ratelimit_service_config_load_error";
/// Requests admitted only because of the global shadow mode.
pub const SHADOW_MODE: &str = "ratelimit_service_global_shadow_mode";
/// Calls, by `grpc_method`.
pub const CALLS: &str = "ratelimit_service_total_requests";
/// Latency of calls, by `grpc_method`.
pub const TIMES: &str = "ratelimit_service_response_time_seconds";

/// One of the two text formats of Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Version 0.0.4, as in envoyproxy/ratelimit; see [`CONTENT_TYPE`].
    Plain,
    /// Part of an `OpenMetrics` text. A counter's name ends in `_total` there, so these metrics,
    /// whose names must not change, have the type `unknown`.
    OpenMetrics,
}

/// A collector that calls `read` at each scrape.
pub fn collector(
    read: impl Fn() -> Statistics + Send + Sync + 'static,
    form: Form,
) -> Box<dyn Collector> {
    Box::new(Exposition { read: Scrape(Box::new(read)), form })
}

/// All of `statistics` as text.
pub fn render(statistics: Statistics, form: Form) -> String {
    let mut registry = Registry::default();
    registry.register_collector(collector(move || statistics.clone(), form));
    let mut text = String::new();
    // Writing to a `String` cannot fail.
    let _ = encode_registry(&mut text, &registry);
    if form == Form::Plain {
        // prometheus-client writes OpenMetrics bounds. Quotes in values are escaped, so this
        // matches nothing else.
        for bound in ["1", "5", "10"] {
            text = text.replace(&format!("{{le=\"{bound}.0\""), &format!("{{le=\"{bound}\""));
        }
    }
    text
}

#[derive(Debug)]
struct Exposition {
    read: Scrape<Statistics>,
    form: Form,
}

type Labels = Vec<(&'static str, Escaped<String>)>;

/// Upper bounds of the histogram in microseconds: the defaults of Prometheus' client libraries.
const BUCKETS: [u64; 11] = [
    5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000,
];

const HELP: &str = "Same as in envoyproxy/ratelimit";

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let statistics = (self.read.0)();
        let series = by_labels(&statistics);
        for (index, counter) in COUNTERS.iter().enumerate() {
            let values = series.iter().map(|(labels, counts)| (labels, counts[index]));
            self.counter(&mut encoder, &format!("{PREFIX}{counter}"), values)?;
        }
        let mut not_found: BTreeMap<Labels, u64> = BTreeMap::new();
        for (domain, checks) in &statistics.not_found {
            let sum = not_found.entry(vec![("domain", Escaped(sanitized(domain)))]).or_default();
            *sum = sum.wrapping_add(*checks);
        }
        let values = not_found.iter().map(|(labels, checks)| (labels, *checks));
        self.counter(&mut encoder, NOT_FOUND, values)?;
        let method: Labels = vec![("grpc_method", Escaped("ShouldRateLimit".to_owned()))];
        let error: Labels = vec![("err_type", Escaped("service_error".to_owned()))];
        for (name, labels, value) in [
            (ERROR, &error, statistics.service_error),
            (LOAD_SUCCESS, &vec![], statistics.config_load_success),
            (LOAD_ERROR, &vec![], statistics.config_load_error),
            (SHADOW_MODE, &vec![], statistics.global_shadow_mode),
            (CALLS, &method, statistics.calls),
        ] {
            self.counter(&mut encoder, name, [(labels, value)])?;
        }
        histogram(&mut encoder, &method, &statistics.times)
    }
}

impl Exposition {
    /// Writes the series with a count. A negative one, after more refunds than hits, is omitted.
    fn counter<'a>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        series: impl IntoIterator<Item = (&'a Labels, u64)>,
    ) -> fmt::Result {
        let mut series = series.into_iter().filter(|(_, value)| value.cast_signed() > 0).peekable();
        if series.peek().is_none() {
            return Ok(());
        }
        let kind = match self.form {
            Form::Plain => MetricType::Counter,
            Form::OpenMetrics => MetricType::Unknown,
        };
        let mut metric = encoder.encode_descriptor(name, HELP, None, kind)?;
        for (labels, value) in series {
            // `encode_counter` would append `_total` to the name.
            if labels.is_empty() {
                metric.encode_gauge(&value)?;
            } else {
                metric.encode_family(labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}

fn histogram(encoder: &mut DescriptorEncoder<'_>, labels: &Labels, times: &Times) -> fmt::Result {
    let all = times.count();
    if all == 0 {
        return Ok(());
    }
    let (mut buckets, mut below) = (Vec::new(), 0);
    for bound in BUCKETS {
        let within = BOUNDS.iter().zip(times.counts).filter(|(upper, _)| **upper <= bound);
        let count: u64 = within.map(|(_, count)| count).sum();
        buckets.push((seconds(bound * 1_000), count.saturating_sub(below)));
        below = count;
    }
    buckets.push((f64::MAX, all.saturating_sub(below)));
    encoder
        .encode_descriptor(TIMES, HELP, None, MetricType::Histogram)?
        .encode_family(labels)?
        .encode_histogram::<NoLabelSet>(seconds(times.sum.as_nanos()), all, &buckets, None)
}

/// The counters of the tallies, summed by labels.
fn by_labels(statistics: &Statistics) -> BTreeMap<Labels, [u64; COUNTERS.len()]> {
    let mut series: BTreeMap<Labels, [u64; COUNTERS.len()]> = BTreeMap::new();
    for (name, counts) in &statistics.by_name {
        let name = sanitized(name);
        let parts = ["domain", "key1", "key2"].into_iter().zip(name.split('.'));
        let labels = parts.map(|(key, value)| (key, Escaped(value.to_owned()))).collect();
        let sums = series.entry(labels).or_default();
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum = sum.wrapping_add(*count);
        }
    }
    series
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::units::Span;
    use tidegate_rules::tally::{Outcome, Tallies};

    use super::*;
    use crate::observe::latency::Latency;

    const METHOD: &str = "grpc_method=\"ShouldRateLimit\"";

    #[test]
    fn the_first_three_parts_of_a_name_are_labels() {
        let tallies = Tallies::default();
        for (name, hits) in [
            ("domain1.key1_val1", 1),
            ("domain1.key1_val1.key2_val2", 2),
            ("domain1.key3_val3.key4_val4", 1),
            ("domain1.key3_val3.key4_val4.key5_val5", 2),
        ] {
            tallies.of(name).count(0, hits, hits, Outcome::Over, false, 0.8);
        }
        let text = plain(&tallies);
        let over: Vec<&str> =
            text.lines().filter(|line| line.contains("over_limit") && !is_head(line)).collect();
        let name = "ratelimit_service_rate_limit_over_limit";
        assert_eq!(
            over,
            [
                format!(r#"{name}{{domain="domain1",key1="key1_val1"}} 1"#),
                format!(r#"{name}{{domain="domain1",key1="key1_val1",key2="key2_val2"}} 2"#),
                format!(r#"{name}{{domain="domain1",key1="key3_val3",key2="key4_val4"}} 3"#),
            ]
        );
        assert!(text.contains("# TYPE ratelimit_service_rate_limit_over_limit counter\n"));
        assert!(!text.contains("shadow_mode"), "it has no count");
    }

    #[test]
    fn hits_denied_from_memory_count_once() {
        let tallies = Tallies::default();
        tallies.of("d.a.b").count(1, 0, 3, Outcome::OverFromMemory, false, 0.8);
        let text = plain(&tallies);
        let labels = r#"{domain="d",key1="a",key2="b"} 3"#;
        for name in ["over_limit", "over_limit_with_local_cache", "total_hits"] {
            let line = format!("ratelimit_service_rate_limit_{name}{labels}");
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn calls_are_counted_in_the_default_buckets() {
        let latency = Latency::default();
        for millis in [1, 5, 6, 20, 900] {
            latency.record(Span::from_millis(millis));
        }
        let statistics = Statistics::read(&Tallies::default(), 6, latency.read());
        let text = render(statistics.clone(), Form::Plain);
        let name = "ratelimit_service_response_time_seconds";
        for line in [
            r#"ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 6"#.to_owned(),
            format!("# TYPE {name} histogram"),
            format!(r#"{name}_bucket{{le="0.005",{METHOD}}} 2"#),
            format!(r#"{name}_bucket{{le="0.01",{METHOD}}} 3"#),
            format!(r#"{name}_bucket{{le="0.025",{METHOD}}} 4"#),
            format!(r#"{name}_bucket{{le="0.5",{METHOD}}} 4"#),
            format!(r#"{name}_bucket{{le="1",{METHOD}}} 5"#),
            format!(r#"{name}_bucket{{le="+Inf",{METHOD}}} 5"#),
            format!("{name}_sum{{{METHOD}}} 0.932"),
            format!("{name}_count{{{METHOD}}} 5"),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        assert!(render(statistics, Form::OpenMetrics).contains(r#"{le="1.0",grpc"#));
    }

    #[test]
    fn every_bucket_is_a_sum_of_finer_ones() {
        for bound in BUCKETS {
            assert!(BOUNDS.contains(&bound), "{bound}");
        }
    }

    #[test]
    fn a_value_of_a_client_cannot_break_the_text() {
        let tallies = Tallies::default();
        tallies.of("d.k_a\"} 1\nfaked{x=\"\\").count(1, 1, 1, Outcome::Within, false, 0.8);
        tallies.domain_not_found("\n\"faked");
        let text = plain(&tallies);
        assert!(!text.lines().any(|line| line.starts_with("faked")));
        assert!(text.contains(r#"key1="k_a\"} 1_faked{x=\"\\"} 1"#), "{text}");
        assert!(text.contains(r#"domain_not_found{domain="_\"faked"} 1"#), "{text}");
    }

    #[test]
    fn a_negative_counter_is_omitted() {
        let tallies = Tallies::default();
        tallies.of("d.k").count(9, 0, 3_u64.wrapping_neg(), Outcome::Within, false, 0.8);
        assert_eq!(plain(&tallies), "");
    }

    fn plain(tallies: &Tallies) -> String {
        render(Statistics::read(tallies, 0, Times::default()), Form::Plain)
    }

    fn is_head(line: &str) -> bool {
        line.starts_with('#')
    }
}

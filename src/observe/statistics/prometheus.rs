//! Statistics as Prometheus reads them from envoyproxy/ratelimit.
//!
//! There they go through a mapping of statsd names to metrics and labels: of a name's parts the
//! first is `domain`, the second `key1`, the third, if there is one, `key2`; what differs only
//! beyond that is one series.
//!
//! ```text
//! edge.generic_key_api                    {domain="edge",key1="generic_key_api"}
//! edge.path_/a.remote_address.user_bob    {domain="edge",key1="path_/a",key2="remote_address"}
//! ```
//!
//! As there, a counter is told from its first count on, not before. Where the mapping has no row,
//! or one that matches by accident, this tells what was meant:
//!
//! - `..._over_limit_with_local_cache` and `..._domain_not_found` have no row there and become one
//!   metric for each domain and key, named after them. Here they are one metric with labels: names
//!   of metrics are not for clients to choose.
//! - The row of `over_limit` also takes `over_limit_with_local_cache` of names with three parts, so
//!   that those hits count twice. Not here.
//! - Extra tags break the mapping there. Here they are statsd's alone; for Prometheus there are
//!   target labels.
//!
//! Source: envoyproxy/ratelimit, `src/stats/prom/default_mapper.yaml`, and the mapper of
//! `prometheus/statsd_exporter`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tidegate_rules::tally::COUNTERS;

use super::{Statistics, sanitized};
use crate::observe::latency::{BOUNDS, Times};

/// What [`Form::Plain`] is, for an answer's `content-type`.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What every name of a tally's counter begins with.
pub const PREFIX: &str = "ratelimit_service_rate_limit_";
/// Asks for domains that no rule speaks of, by `domain`.
pub const NOT_FOUND: &str = "ratelimit_service_rate_limit_domain_not_found";
/// Requests that were not decided, by `err_type`.
pub const ERROR: &str = "ratelimit_service_should_rate_limit_error";
/// Loads of the rules that made a book.
pub const LOAD_SUCCESS: &str = "ratelimit_service_config_load_success";
/// Loads of the rules that made none.
pub const LOAD_ERROR: &str = "ratelimit_service_config_load_error";
/// Requests that passed only because everything is in shadow mode.
pub const SHADOW_MODE: &str = "ratelimit_service_global_shadow_mode";
/// Calls, by `grpc_method`.
pub const CALLS: &str = "ratelimit_service_total_requests";
/// How long they took, by `grpc_method`.
pub const TIMES: &str = "ratelimit_service_response_time_seconds";

/// Which of Prometheus' two texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Version 0.0.4, as envoyproxy/ratelimit answers; see [`CONTENT_TYPE`].
    Plain,
    /// A part of an `OpenMetrics` text, without its end. A counter's name ends in `_total` there,
    /// so those that do not are of type `unknown`: the names are what dashboards hang on.
    OpenMetrics,
}

/// All of `statistics` as text.
pub fn render(statistics: &Statistics, form: Form) -> String {
    let mut text = Text { out: String::new(), form };
    let series = by_labels(statistics);
    for (index, counter) in COUNTERS.iter().enumerate() {
        let name = format!("{PREFIX}{counter}");
        text.counter(&name, series.iter().map(|(labels, counts)| (labels.as_str(), counts[index])));
    }
    let mut not_found: BTreeMap<String, u64> = BTreeMap::new();
    for (domain, asks) in &statistics.not_found {
        let sum = not_found.entry(label("domain", &sanitized(domain))).or_default();
        *sum = sum.wrapping_add(*asks);
    }
    text.counter(NOT_FOUND, not_found.iter().map(|(labels, asks)| (labels.as_str(), *asks)));
    for (name, labels, value) in [
        (ERROR, "err_type=\"service_error\"", statistics.service_error),
        (LOAD_SUCCESS, "", statistics.config_load_success),
        (LOAD_ERROR, "", statistics.config_load_error),
        (SHADOW_MODE, "", statistics.global_shadow_mode),
        (CALLS, METHOD, statistics.calls),
    ] {
        text.counter(name, [(labels, value)]);
    }
    text.histogram(TIMES, METHOD, &statistics.times);
    text.out
}

const METHOD: &str = "grpc_method=\"ShouldRateLimit\"";

/// The upper bounds of the histogram, those of Prometheus' client libraries: nanoseconds, and the
/// text.
const BUCKETS: [(u64, &str); 11] = [
    (5_000_000, "0.005"),
    (10_000_000, "0.01"),
    (25_000_000, "0.025"),
    (50_000_000, "0.05"),
    (100_000_000, "0.1"),
    (250_000_000, "0.25"),
    (500_000_000, "0.5"),
    (1_000_000_000, "1"),
    (2_500_000_000, "2.5"),
    (5_000_000_000, "5"),
    (10_000_000_000, "10"),
];

/// What the tallies counted, summed up by labels.
fn by_labels(statistics: &Statistics) -> BTreeMap<String, [u64; COUNTERS.len()]> {
    let mut series: BTreeMap<String, [u64; COUNTERS.len()]> = BTreeMap::new();
    for (name, counts) in &statistics.by_name {
        let name = sanitized(name);
        let parts = ["domain", "key1", "key2"].into_iter().zip(name.split('.'));
        let labels = parts.map(|(key, value)| label(key, value)).collect::<Vec<_>>().join(",");
        let sums = series.entry(labels).or_default();
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum = sum.wrapping_add(*count);
        }
    }
    series
}

/// One label; what is in the value cannot end it.
fn label(key: &str, value: &str) -> String {
    let mut out = format!("{key}=\"");
    for char in value.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

struct Text {
    out: String,
    form: Form,
}

impl Text {
    /// The series that counted something. One that was given back more than it counted is none.
    fn counter<'a>(&mut self, name: &str, series: impl IntoIterator<Item = (&'a str, u64)>) {
        let mut is_first = true;
        for (labels, value) in series {
            if value.cast_signed() <= 0 {
                continue;
            }
            if std::mem::take(&mut is_first) {
                let kind = if self.form == Form::Plain { "counter" } else { "unknown" };
                self.head(name, kind);
            }
            let _ = if labels.is_empty() {
                writeln!(self.out, "{name} {value}")
            } else {
                writeln!(self.out, "{name}{{{labels}}} {value}")
            };
        }
    }

    fn histogram(&mut self, name: &str, labels: &str, times: &Times) {
        let all = times.count();
        if all == 0 {
            return;
        }
        self.head(name, "histogram");
        for (bound, le) in BUCKETS {
            let within = BOUNDS.iter().zip(times.counts).filter(|((upper, _), _)| *upper <= bound);
            let count: u64 = within.map(|(_, count)| count).sum();
            // OpenMetrics writes bounds as numbers with a fraction.
            let is_whole = self.form == Form::OpenMetrics && !le.contains('.');
            let fraction = if is_whole { ".0" } else { "" };
            let _ = writeln!(self.out, "{name}_bucket{{{labels},le=\"{le}{fraction}\"}} {count}");
        }
        let nanos = times.sum.as_nanos();
        let (seconds, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        let _ = writeln!(self.out, "{name}_bucket{{{labels},le=\"+Inf\"}} {all}");
        let _ = writeln!(self.out, "{name}_sum{{{labels}}} {seconds}.{nanos:09}");
        let _ = writeln!(self.out, "{name}_count{{{labels}}} {all}");
    }

    fn head(&mut self, name: &str, kind: &str) {
        let _ = writeln!(self.out, "# HELP {name} As envoyproxy/ratelimit tells it.");
        let _ = writeln!(self.out, "# TYPE {name} {kind}");
    }
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::units::Span;
    use tidegate_rules::tally::{Outcome, Tallies};

    use super::*;
    use crate::observe::latency::Latency;

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
        assert!(!text.contains("shadow_mode"), "nothing was counted of it");
    }

    #[test]
    fn what_is_refused_from_memory_counts_once() {
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
    fn calls_and_their_times_are_told_in_the_usual_buckets() {
        let latency = Latency::default();
        for millis in [1, 5, 6, 20, 900] {
            latency.record(Span::from_millis(millis));
        }
        let statistics = Statistics::read(&Tallies::default(), 6, latency.read());
        let text = render(&statistics, Form::Plain);
        let name = "ratelimit_service_response_time_seconds";
        for line in [
            r#"ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 6"#.to_owned(),
            format!("# TYPE {name} histogram"),
            format!(r#"{name}_bucket{{{METHOD},le="0.005"}} 2"#),
            format!(r#"{name}_bucket{{{METHOD},le="0.01"}} 3"#),
            format!(r#"{name}_bucket{{{METHOD},le="0.025"}} 4"#),
            format!(r#"{name}_bucket{{{METHOD},le="0.5"}} 4"#),
            format!(r#"{name}_bucket{{{METHOD},le="1"}} 5"#),
            format!(r#"{name}_bucket{{{METHOD},le="+Inf"}} 5"#),
            format!("{name}_sum{{{METHOD}}} 0.932000000"),
            format!("{name}_count{{{METHOD}}} 5"),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        assert!(render(&statistics, Form::OpenMetrics).contains(r#",le="1.0"} 5"#));
    }

    #[test]
    fn every_bucket_is_a_sum_of_ours() {
        for (bound, _) in BUCKETS {
            assert!(BOUNDS.iter().any(|(ours, _)| *ours == bound), "{bound}");
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
    fn a_counter_below_zero_is_not_told() {
        let tallies = Tallies::default();
        tallies.of("d.k").count(9, 0, 3_u64.wrapping_neg(), Outcome::Within, false, 0.8);
        assert_eq!(plain(&tallies), "");
    }

    fn plain(tallies: &Tallies) -> String {
        render(&Statistics::read(tallies, 0, Times::default()), Form::Plain)
    }

    fn is_head(line: &str) -> bool {
        line.starts_with('#')
    }
}

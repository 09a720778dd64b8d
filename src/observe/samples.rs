//! Collectors of counters that other parts of the node keep, read at each scrape.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelValue, EncodeMetric, LabelValueEncoder, MetricEncoder,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::names::{self, Metric};

/// Most rules with their own series; the others are summed under [`OTHER_RULES`]. A rule has four
/// series, which load the Prometheus server more than the node.
pub const RULE_LABELS_MAX: usize = 5_000;

/// The label of the rules beyond [`RULE_LABELS_MAX`].
pub const OTHER_RULES: &str = "(other)";

/// The hits of one rule; see `tidegate_rules::rule::RuleStats`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSample {
    pub id: Arc<str>,
    pub allowed: u64,
    pub denied: u64,
    /// Admitted by a shadow rule over its limit.
    pub shadowed: u64,
    /// Decided by `on_unavailable`.
    pub unavailable: u64,
}

/// The readings of one scrape. Those of one metric are adjacent.
#[derive(Clone, Debug, Default)]
pub struct Readings(Vec<Reading>);

#[derive(Clone, Copy, Debug)]
struct Reading {
    metric: Metric,
    /// Name and value of the label, if the metric has one.
    label: Option<(&'static str, &'static str)>,
    /// Holds the value of every counter (`u64`) and gauge (`i64`).
    value: i128,
}

impl Readings {
    pub fn add(&mut self, metric: Metric, value: impl Into<i128>) {
        debug_assert!(matches!(metric.kind, MetricType::Counter | MetricType::Gauge));
        self.0.push(Reading { metric, label: None, value: value.into() });
    }

    /// Adds a reading for each value of `label`.
    pub fn add_each<V: Into<i128>>(
        &mut self,
        metric: Metric,
        label: &'static str,
        values: impl IntoIterator<Item = (&'static str, V)>,
    ) {
        self.0.extend(values.into_iter().map(|(name, value)| Reading {
            metric,
            label: Some((label, name)),
            value: value.into(),
        }));
    }
}

/// A collector's source, called at each scrape.
pub(crate) struct Scrape<T>(pub(crate) Box<dyn Fn() -> T + Send + Sync>);

impl<T> fmt::Debug for Scrape<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

// === impl Collector ===

impl Collector for Scrape<Vec<RuleSample>> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut samples = (self.0)();
        sum_up_beyond(RULE_LABELS_MAX, &mut samples);
        let Metric { name, help, kind } = names::RULE_HITS;
        let mut hits = encoder.encode_descriptor(name, help, None, kind)?;
        for sample in &samples {
            for (outcome, value) in [
                ("allowed", sample.allowed),
                ("denied", sample.denied),
                ("shadowed", sample.shadowed),
            ] {
                labelled(&mut hits, &[("rule", &*sample.id), ("outcome", outcome)], value)?;
            }
        }
        let Metric { name, help, kind } = names::RULE_UNAVAILABLE;
        let mut unavailable = encoder.encode_descriptor(name, help, None, kind)?;
        for sample in &samples {
            labelled(&mut unavailable, &[("rule", &*sample.id)], sample.unavailable)?;
        }
        Ok(())
    }
}

impl Collector for Scrape<Readings> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Readings(readings) = (self.0)();
        for family in readings.chunk_by(|a, b| a.metric.name == b.metric.name) {
            let Metric { name, help, kind } = family[0].metric;
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            if let [Reading { label: None, value, .. }] = family {
                write(metric, kind, *value)?;
                continue;
            }
            for Reading { label, value, .. } in family {
                write(metric.encode_family(&label.as_slice())?, kind, *value)?;
            }
        }
        Ok(())
    }
}

fn write(encoder: MetricEncoder<'_>, kind: MetricType, value: i128) -> fmt::Result {
    match kind {
        MetricType::Counter => ConstCounter::new(u64::try_from(value).unwrap_or(0)).encode(encoder),
        _ => ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder),
    }
}

fn labelled<const N: usize>(
    encoder: &mut MetricEncoder<'_>,
    labels: &[(&'static str, &str); N],
    value: u64,
) -> fmt::Result {
    let labels = labels.map(|(name, value)| (name, Escaped(value)));
    ConstCounter::new(value).encode(encoder.encode_family(&labels)?)
}

/// A label value from a file or a client. prometheus-client 0.24 does not escape values, so a quote
/// or a line break would end the value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Escaped<S>(pub(crate) S);

impl<S: AsRef<str>> EncodeLabelValue for Escaped<S> {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        self.0.as_ref().chars().try_for_each(|char| match char {
            '\\' => encoder.write_str("\\\\"),
            '"' => encoder.write_str("\\\""),
            '\n' => encoder.write_str("\\n"),
            other => encoder.write_char(other),
        })
    }
}

/// Keeps the first `max` samples and adds one with the sum of the others.
fn sum_up_beyond(max: usize, samples: &mut Vec<RuleSample>) {
    if samples.len() <= max {
        return;
    }
    let mut other =
        RuleSample { id: OTHER_RULES.into(), allowed: 0, denied: 0, shadowed: 0, unavailable: 0 };
    for sample in samples.drain(max..) {
        other.allowed = other.allowed.saturating_add(sample.allowed);
        other.denied = other.denied.saturating_add(sample.denied);
        other.shadowed = other.shadowed.saturating_add(sample.shadowed);
        other.unavailable = other.unavailable.saturating_add(sample.unavailable);
    }
    samples.push(other);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Metrics;

    #[test]
    fn counters_of_other_parts_are_exported() {
        let mut metrics = Metrics::new("0");
        metrics.watch_rules(|| vec![sample("edge.user", 7)]);
        metrics.watch(|| {
            let mut readings = Readings::default();
            readings.add(names::STORE_KEYS, 3);
            readings.add_each(names::STORE_FULL, "outcome", [("shared", 9), ("refused", 0)]);
            readings
        });
        let text = metrics.encode();
        for line in [
            "tidegate_rule_hits_total{rule=\"edge.user\",outcome=\"allowed\"} 7",
            "tidegate_rule_unavailable_total{rule=\"edge.user\"} 0",
            "tidegate_store_keys 3",
            "# TYPE tidegate_store_full counter",
            "tidegate_store_full_total{outcome=\"shared\"} 9",
            "tidegate_store_full_total{outcome=\"refused\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn rules_beyond_the_bound_are_summed() {
        let mut samples = vec![sample("a", 1), sample("b", 2), sample("c", 3)];
        sum_up_beyond(3, &mut samples);
        assert_eq!(samples.len(), 3);
        sum_up_beyond(1, &mut samples);
        assert_eq!(samples, [sample("a", 1), sample(OTHER_RULES, 5)]);
    }

    #[test]
    fn an_id_from_a_rule_file_cannot_break_the_text() {
        let mut metrics = Metrics::new("0");
        metrics.watch_rules(|| vec![sample("a\"} 1\nfaked{x=\"\\", 1)]);
        let text = metrics.encode();
        assert!(!text.lines().any(|line| line.starts_with("faked")));
        let line = r#"tidegate_rule_unavailable_total{rule="a\"} 1\nfaked{x=\"\\"} 0"#;
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }

    fn sample(id: &str, allowed: u64) -> RuleSample {
        RuleSample { id: id.into(), allowed, denied: 0, shadowed: 0, unavailable: 0 }
    }
}

//! Collectors of counters that other parts of the node keep, read at each scrape.

use std::fmt::{self, Write as _};
use std::iter;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelValue, EncodeMetric, LabelValueEncoder, MetricEncoder,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use smallvec::SmallVec;
use tidegate_rules::stats::RuleCounts;

use super::names::{self, Metric};

/// Most rules with their own series; the others are summed under [`OTHER_RULES`]. A rule has four
/// series, eleven once it was checked, at most eighteen, if it is leased, and one more above a soft
/// limit. They load the Prometheus server more than the node.
pub const RULE_LABELS_MAX: usize = 5_000;

/// The label of the rules beyond [`RULE_LABELS_MAX`].
pub const OTHER_RULES: &str = "(other)";

/// What was counted of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSample {
    pub id: Arc<str>,
    pub counts: RuleCounts,
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
        let by_rule = |encoder: &mut DescriptorEncoder<'_>, family: &RuleFamily| {
            let Metric { name, help, kind } = family.metric;
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            let shown = samples.iter().filter(|sample| (family.is_shown)(&sample.counts));
            for RuleSample { id, counts } in shown {
                for (value, read) in family.values {
                    let number = read(counts);
                    let rule = ("rule", Escaped(&**id));
                    let label = family.label.map(|label| (label, Escaped(*value)));
                    let labels: SmallVec<[_; 2]> = iter::once(rule).chain(label).collect();
                    write(metric.encode_family(&labels.as_slice())?, kind, number.into())?;
                }
            }
            Ok(())
        };
        RULE_FAMILIES.iter().try_for_each(|family| by_rule(&mut encoder, family))
    }
}

/// The value of a label, and the count that has it.
type OfRule = (&'static str, fn(&RuleCounts) -> u64);

/// A metric of every rule.
struct RuleFamily {
    metric: Metric,
    /// The label beside that of the rule.
    label: Option<&'static str>,
    values: &'static [OfRule],
    /// Of which rules: most are not leased, and are never over.
    is_shown: fn(&RuleCounts) -> bool,
}

const ALL: fn(&RuleCounts) -> bool = |_| true;
const CHECKED: fn(&RuleCounts) -> bool = |counts| counts.checks() > 0;
const GRANTED: fn(&RuleCounts) -> bool =
    |counts| counts.grants.received > 0 || counts.refused_early > 0;
const SOFT_LIMITED: fn(&RuleCounts) -> bool = |counts| counts.soft_limited > 0;
const FULL: fn(&RuleCounts) -> bool = |counts| counts.full_hits > 0;

const RULE_FAMILIES: [RuleFamily; 10] = [
    RuleFamily {
        metric: names::RULE_HITS,
        label: Some("outcome"),
        values: &[
            ("allowed", |counts| counts.allowed),
            ("denied", |counts| counts.denied),
            ("shadowed", |counts| counts.shadowed),
        ],
        is_shown: ALL,
    },
    RuleFamily {
        metric: names::RULE_SOFT_LIMITED,
        label: None,
        values: &[("", |counts| counts.soft_limited)],
        is_shown: SOFT_LIMITED,
    },
    RuleFamily {
        metric: names::RULE_UNAVAILABLE,
        label: None,
        values: &[("", |counts| counts.unavailable)],
        is_shown: ALL,
    },
    RuleFamily {
        metric: names::RULE_VERDICTS,
        label: Some("source"),
        values: &[
            ("local", |counts| counts.local),
            ("owner", |counts| counts.by_owner),
            ("grant", |counts| counts.by_grant),
            ("remembered", |counts| counts.remembered),
            ("policy", |counts| counts.unavailable),
            ("alone", |counts| counts.alone),
        ],
        is_shown: CHECKED,
    },
    RuleFamily {
        metric: names::RULE_ADMITTED_BY_OWNER,
        label: None,
        values: &[("", |counts| counts.admitted_by_owner)],
        is_shown: CHECKED,
    },
    RuleFamily {
        metric: names::RULE_REFUSED_EARLY,
        label: None,
        values: &[("", |counts| counts.refused_early)],
        is_shown: GRANTED,
    },
    RuleFamily {
        metric: names::RULE_GRANT_HITS,
        label: Some("fate"),
        values: &[
            ("received", |counts| counts.grants.received),
            ("refunded", |counts| counts.grants.refunded),
            ("spent", |counts| counts.grants.spent),
            ("given_back", |counts| counts.grants.given_back),
            ("recalled", |counts| counts.grants.recalled),
            ("late", |counts| counts.grants.late),
        ],
        is_shown: GRANTED,
    },
    RuleFamily {
        metric: names::RULE_GRANT_HITS_HELD,
        label: None,
        values: &[("", |counts| counts.grants.held())],
        is_shown: GRANTED,
    },
    RuleFamily {
        metric: names::RULE_FULL_HITS,
        label: None,
        values: &[("", |counts| counts.full_hits)],
        is_shown: FULL,
    },
    RuleFamily {
        metric: names::RULE_OVER_HITS,
        label: None,
        values: &[("", |counts| counts.over_hits)],
        is_shown: FULL,
    },
];

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
pub fn sum_up_beyond(max: usize, samples: &mut Vec<RuleSample>) {
    if samples.len() <= max {
        return;
    }
    let mut counts = RuleCounts::default();
    for sample in samples.drain(max..) {
        counts.add(&sample.counts);
    }
    samples.push(RuleSample { id: OTHER_RULES.into(), counts });
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
    fn series_of_a_mode_begin_at_zero_with_the_first_count_of_a_rule() {
        let mut metrics = Metrics::new("0");
        metrics.watch_rules(|| {
            let mut leased = sample("leased", 9);
            (leased.counts.by_grant, leased.counts.grants.received) = (9, 12);
            leased.counts.grants.spent = 9;
            let mut eventual = sample("eventual", 9);
            (eventual.counts.local, eventual.counts.full_hits) = (9, 9);
            vec![sample("idle", 0), leased, eventual]
        });
        let text = metrics.encode();
        let of = |rule: &str| -> Vec<String> {
            let series = text.lines().filter(|line| line.contains(&format!("rule=\"{rule}\"")));
            series
                .map(|line| line.replace(&format!("rule=\"{rule}\""), "").replace("{,", "{"))
                .collect()
        };
        assert_eq!((of("idle").len(), of("leased").len(), of("eventual").len()), (4, 19, 13));
        for line in [
            "tidegate_rule_verdicts_total{source=\"grant\"} 9",
            "tidegate_rule_verdicts_total{source=\"policy\"} 0",
            "tidegate_rule_grant_hits_total{fate=\"spent\"} 9",
            "tidegate_rule_grant_hits_held{} 3",
            "tidegate_rule_refused_early_total{} 0",
        ] {
            assert!(of("leased").iter().any(|it| it == line), "{line} is not in\n{text}");
        }
        assert!(of("eventual").contains(&"tidegate_rule_over_hits_total{} 0".to_owned()), "{text}");
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
        RuleSample { id: id.into(), counts: RuleCounts { allowed, ..RuleCounts::default() } }
    }
}

//! Rates, from two snapshots: hits by `(later - earlier) / time between`.
//!
//! A snapshot sums what nodes counted since their starts, so a node that reports for the first time
//! brings all that it has ever counted. Rates are therefore taken only between snapshots in which
//! the same starts of the same nodes report. Example: 5 hits at 1.0 s and 25 at 3.0 s are 10/s.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tidegate_rules::stats::RuleCounts;

use crate::admin::snapshot::ClusterSnapshot;

/// Snapshots that are closer to each other, because a member has changed, give no rates.
const APART_MIN_MS: u64 = 900;

/// A snapshot, with rates: what `--once --json` prints. Scripts read it: fields are only added.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Picture {
    #[serde(flatten)]
    pub(super) snapshot: ClusterSnapshot,
    /// None before there are two snapshots to compare.
    pub(super) rates: Option<Rates>,
}

/// Of the whole cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Rates {
    #[serde(flatten)]
    pub(super) all: Rate,
    /// By the id of the rule.
    pub(super) rules: BTreeMap<String, Rate>,
}

/// In a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Rate {
    #[serde(rename = "checks_per_second")]
    pub(super) checks: f64,
    /// In hits, as those refused.
    #[serde(rename = "admitted_per_second")]
    pub(super) admitted: f64,
    #[serde(rename = "refused_per_second")]
    pub(super) refused: f64,
}

/// Takes the rates of consecutive snapshots.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// The snapshot that the next rates are measured from.
    base: Option<ClusterSnapshot>,
    rates: Option<Rates>,
}

impl Meter {
    /// The snapshot with the rates up to it.
    pub(super) fn add(&mut self, snapshot: ClusterSnapshot) -> Picture {
        let base = self.base.as_ref().filter(|base| is_comparable(base, &snapshot));
        let passed = base.map(|base| snapshot.unix_ms - base.unix_ms);
        if base.is_none() || passed >= Some(APART_MIN_MS) {
            self.rates = base.map(|base| between(base, &snapshot));
            self.base = Some(snapshot.clone());
        }
        Picture { snapshot, rates: self.rates.clone() }
    }

    /// Forgets what was measured: the next snapshot is not a second later.
    pub(super) fn interrupted(&mut self) {
        *self = Self::default();
    }
}

fn is_comparable(before: &ClusterSnapshot, now: &ClusterSnapshot) -> bool {
    before.node == now.node && before.unix_ms <= now.unix_ms && reporters(before) == reporters(now)
}

/// The starts of nodes whose counts are in the sums.
fn reporters(snapshot: &ClusterSnapshot) -> BTreeSet<(&str, u64)> {
    let reported = snapshot.members.iter().filter_map(|row| row.reported.as_ref());
    reported.map(|it| (&*it.node.id, it.node.generation)).collect()
}

fn between(before: &ClusterSnapshot, now: &ClusterSnapshot) -> Rates {
    let passed_ms = as_float(now.unix_ms - before.unix_ms);
    let earlier: BTreeMap<&str, &RuleCounts> =
        before.rules.iter().map(|rule| (&*rule.rule, &rule.counts)).collect();
    let mut rates = Rates::default();
    for rule in &now.rules {
        // A rule that was not there had no checks, or was one of the others.
        let none = RuleCounts::default();
        let (before, now) = (earlier.get(&*rule.rule).copied().unwrap_or(&none), &rule.counts);
        let rate = |count: fn(&RuleCounts) -> u64| {
            as_float(count(now).saturating_sub(count(before))) * 1_000.0 / passed_ms
        };
        let rate = Rate {
            checks: rate(RuleCounts::checks),
            admitted: rate(admitted),
            refused: rate(|counts| counts.denied),
        };
        rates.all.checks += rate.checks;
        rates.all.admitted += rate.admitted;
        rates.all.refused += rate.refused;
        rates.rules.insert(rule.rule.clone(), rate);
    }
    rates
}

/// Hits admitted; those that a rule in shadow mode would have refused too.
pub(super) fn admitted(counts: &RuleCounts) -> u64 {
    counts.allowed.saturating_add(counts.shadowed)
}

#[expect(clippy::cast_precision_loss, reason = "an estimate, for display")]
fn as_float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::report::{MemberReport, NodeReport, RuleReport};
    use crate::admin::snapshot::{MemberRow, SelfReport};

    fn snapshot(unix_ms: u64, allowed: u64, denied: u64, nodes: &[&str]) -> ClusterSnapshot {
        let counts = RuleCounts { allowed, denied, local: allowed, ..RuleCounts::default() };
        let rule = RuleReport { rule: "r".to_owned(), counts, ..RuleReport::default() };
        let row = |id: &&str| {
            let node = NodeReport { id: (*id).to_owned(), ..NodeReport::default() };
            MemberRow {
                member: MemberReport { id: (*id).to_owned(), ..MemberReport::default() },
                reported: Some(SelfReport { node, ..SelfReport::default() }),
                age_ms: Some(0),
            }
        };
        let members = nodes.iter().map(row).collect();
        ClusterSnapshot { unix_ms, members, rules: vec![rule], ..ClusterSnapshot::default() }
    }

    fn rule_rates(picture: &Picture) -> Option<(f64, f64, f64)> {
        let rate = picture.rates.as_ref()?.rules["r"];
        Some((rate.checks, rate.admitted, rate.refused))
    }

    #[test]
    fn rates_are_differences_by_the_time_between() {
        let mut meter = Meter::default();
        assert_eq!(meter.add(snapshot(1_000, 10, 5, &["a"])).rates, None);
        assert_eq!(rule_rates(&meter.add(snapshot(1_300, 30, 5, &["a"]))), None);
        let picture = meter.add(snapshot(3_000, 30, 6, &["a"]));
        assert_eq!(rule_rates(&picture), Some((10.0, 10.0, 0.5)));
        let all = picture.rates.as_ref().unwrap().all;
        assert_eq!(all, picture.rates.as_ref().unwrap().rules["r"]);
        // An early snapshot, of a change, keeps them.
        let picture = meter.add(snapshot(3_100, 99, 6, &["a"]));
        assert_eq!(rule_rates(&picture), Some((10.0, 10.0, 0.5)));
        // Counts that are lower, or a clock that was set back, are no rate below zero.
        let picture = meter.add(snapshot(5_000, 2, 6, &["a"]));
        assert_eq!(rule_rates(&picture), Some((0.0, 0.0, 0.0)));
        assert_eq!(rule_rates(&meter.add(snapshot(4_000, 10, 6, &["a"]))), None);
    }

    #[test]
    fn what_a_node_counted_before_it_reported_is_no_rate() {
        let mut meter = Meter::default();
        meter.add(snapshot(1_000, 10, 0, &["a"]));
        assert_eq!(rule_rates(&meter.add(snapshot(2_000, 1_000_010, 0, &["a", "b"]))), None);
        let picture = meter.add(snapshot(3_000, 1_000_020, 0, &["a", "b"]));
        assert_eq!(rule_rates(&picture), Some((10.0, 10.0, 0.0)));
    }
}

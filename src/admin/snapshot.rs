//! The whole cluster in one snapshot, as the dashboard shows it.
//!
//! Each node reports what only it knows ([`NodeSnapshot`]); the node that serves the snapshot adds
//! how it sees the others, and sums up by rule and by key. Counts are sums since the start of each
//! node: rates are differences of two snapshots. Scripts read them: fields are only added.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_rules::stats::RuleCounts;

use super::report::{
    ClockReport, MemberReport, NodeReport, OwnerReport, OwnershipReport, RuleBookReport,
    RuleReport, StoreReport,
};

/// Most rules of a [`NodeSnapshot`], and of a [`ClusterSnapshot`]: those checked most.
pub const RULES_MAX: usize = 50;
/// Most keys of a [`NodeSnapshot`], and of a [`ClusterSnapshot`]: those refused most.
pub const KEYS_MAX: usize = 50;
/// Most regions of a [`ClusterSnapshot`] whose rings are in it.
pub const RINGS_MAX: usize = 16;
/// Equally spaced places of a ring whose owners are listed.
pub const RING_PLACES: usize = 360;

/// The report of a node to its peers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeSnapshot {
    pub reported: SelfReport,
    /// At most [`RULES_MAX`], and then one with the sum of the others.
    pub rules: Vec<RuleReport>,
    /// At most [`KEYS_MAX`].
    pub refused_keys: Vec<KeyRefusals>,
}

/// The part of a [`NodeSnapshot`] that is shown for each node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SelfReport {
    pub node: NodeReport,
    /// Why it is not ready; none if it is.
    pub not_ready: Option<String>,
    pub rule_book: RuleBookReport,
    pub store: StoreReport,
    /// None for a standalone node.
    pub ownership: Option<OwnershipReport>,
    /// Members to which it is transferring ranges.
    pub transferring_to: Vec<String>,
    pub clock: ClockReport,
}

/// A key that is refused often.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyRefusals {
    /// Id of the rule.
    pub rule: String,
    /// Its position on the ring, 16 hexadecimal digits, the same on all nodes.
    pub token: String,
    /// Its entries, `key=value` with `|` between; none without `admin.show_keys`.
    pub key: Option<String>,
    /// Refused hits a second, about the mean of the last 16 seconds.
    pub per_second: f64,
    /// By how much that may be too high.
    pub error: f64,
}

/// The cluster as one node shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterSnapshot {
    /// Id of the node that made it.
    pub node: String,
    pub cluster: String,
    pub cluster_id: Option<String>,
    /// Fingerprint of the ring.
    pub epoch: String,
    /// Its system clock, milliseconds since 1970.
    pub unix_ms: u64,
    /// By region and id; evicted ones too, until they are forgotten.
    pub members: Vec<MemberRow>,
    /// At most [`RINGS_MAX`].
    pub rings: Vec<RingPicture>,
    /// Summed over the nodes, those checked most first; at most [`RULES_MAX`], and one with the sum
    /// of others.
    pub rules: Vec<RuleReport>,
    /// Summed over the nodes, those refused most first; at most [`KEYS_MAX`].
    pub refused_keys: Vec<KeyRefusals>,
}

/// A member, as the node that built the snapshot sees it, and its own report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberRow {
    #[serde(flatten)]
    pub member: MemberReport,
    /// None before the first answer, and for a node of an earlier release.
    pub reported: Option<SelfReport>,
    /// Age of the report.
    pub age_ms: Option<u64>,
}

/// The ring of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RingPicture {
    pub region: String,
    pub nodes: Vec<String>,
    /// The owner at each of [`RING_PLACES`] places from token 0 on, as an index of `nodes`.
    pub owners: Vec<u16>,
}

/// What is known of one key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyReport {
    #[serde(flatten)]
    pub owner: OwnerReport,
    /// The nodes after its owner in the region of the responding node, which hold copies.
    pub replicas: Vec<String>,
    /// In shadow mode nothing is refused.
    pub shadow: bool,
    /// `local`, `owner`, `grant`, `negative_cache`, `blocked` by hand, or `fallback` if no owner
    /// answered; none without limits.
    pub source: Option<String>,
    /// One for each limit of the rule.
    pub limits: Vec<LimitReport>,
    /// Of an eventual rule: the node whose view the counts are. It sums what all nodes counted, as
    /// far as they have sent it.
    pub known_by: Option<String>,
    /// How long ago it was begun anew by hand.
    pub begun_anew_ago_ms: Option<u64>,
    /// How much longer it is blocked by hand; 0 until it is unblocked.
    pub blocked_for_ms: Option<u64>,
}

/// A limit of one key, now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitReport {
    /// In hits per window.
    pub limit: u32,
    pub window_ms: u64,
    pub algorithm: String,
    /// Hits that would pass now.
    pub remaining: u32,
    /// Time until the whole limit is available again.
    pub reset_ms: u64,
}

/// The report of a node, as it was received.
#[derive(Clone, Debug, Default)]
pub struct Received {
    pub snapshot: NodeSnapshot,
    pub age_ms: u64,
}

impl ClusterSnapshot {
    /// Adds the reports, each to the member of its name, and sums them up. A node that is no member
    /// is left out of the rows, not of the sums: what it counted was counted.
    #[must_use]
    pub fn with(mut self, received: &BTreeMap<String, Received>) -> Self {
        for row in &mut self.members {
            let Some(received) = received.get(&row.member.id) else { continue };
            row.reported = Some(received.snapshot.reported.clone());
            row.age_ms = Some(received.age_ms);
        }
        let snapshots = || received.values().map(|received| &received.snapshot);
        self.rules = sum_rules(snapshots().flat_map(|snapshot| &snapshot.rules));
        self.refused_keys = sum_keys(snapshots().flat_map(|snapshot| &snapshot.refused_keys));
        self
    }
}

/// The sum by rule, those checked most first.
fn sum_rules<'a>(reports: impl Iterator<Item = &'a RuleReport>) -> Vec<RuleReport> {
    let mut sums = BTreeMap::<&str, RuleReport>::new();
    let mut others: Option<RuleCounts> = None;
    for report in reports {
        // Of a rule that is summed up with others on one node only the rest is known.
        let Some(mode) = &report.mode else {
            others.get_or_insert_default().add(&report.counts);
            continue;
        };
        let sum = sums.entry(&report.rule).or_insert_with(|| RuleReport {
            rule: report.rule.clone(),
            mode: Some(mode.clone()),
            ..RuleReport::default()
        });
        sum.counts.add(&report.counts);
        sum.held = sum.held.saturating_add(report.held);
        sum.error = sum.counts.error();
    }
    let mut sums: Vec<RuleReport> = sums.into_values().collect();
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.counts.checks()));
    for sum in sums.drain(RULES_MAX.min(sums.len())..) {
        others.get_or_insert_default().add(&sum.counts);
    }
    sums.extend(others.map(|counts| RuleReport {
        rule: "(other)".to_owned(),
        held: counts.grants.held(),
        error: counts.error(),
        counts,
        mode: None,
    }));
    sums
}

/// The sum by rule and token, those refused most first.
fn sum_keys<'a>(keys: impl Iterator<Item = &'a KeyRefusals>) -> Vec<KeyRefusals> {
    let mut sums = BTreeMap::<(&str, &str), KeyRefusals>::new();
    for key in keys {
        let sum = sums.entry((&key.rule, &key.token)).or_insert_with(|| KeyRefusals {
            rule: key.rule.clone(),
            token: key.token.clone(),
            ..KeyRefusals::default()
        });
        sum.key = sum.key.take().or_else(|| key.key.clone());
        sum.per_second += key.per_second;
        sum.error += key.error;
    }
    let mut sums: Vec<KeyRefusals> = sums.into_values().collect();
    sums.sort_by(|a, b| b.per_second.total_cmp(&a.per_second));
    sums.truncate(KEYS_MAX);
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, mode: &str, counts: RuleCounts) -> RuleReport {
        let (rule, mode) = (name.to_owned(), Some(mode.to_owned()));
        RuleReport { rule, mode, counts, held: counts.grants.held(), error: counts.error() }
    }

    fn key(rule: &str, token: &str, key: Option<&str>, per_second: f64) -> KeyRefusals {
        let (rule, token, key) = (rule.to_owned(), token.to_owned(), key.map(str::to_owned));
        KeyRefusals { rule, token, key, per_second, error: 0.5 }
    }

    fn received(
        id: &str,
        rules: Vec<RuleReport>,
        refused_keys: Vec<KeyRefusals>,
    ) -> (String, Received) {
        let node = NodeReport { id: id.to_owned(), ..NodeReport::default() };
        let reported = SelfReport { node, ..SelfReport::default() };
        let snapshot = NodeSnapshot { reported, rules, refused_keys };
        (id.to_owned(), Received { snapshot, age_ms: 70 })
    }

    #[test]
    fn reports_stand_beside_what_is_seen_of_their_nodes() {
        let member = |id: &str| MemberRow {
            member: MemberReport { id: id.to_owned(), ..MemberReport::default() },
            ..MemberRow::default()
        };
        let members = vec![member("a"), member("b")];
        let seen = ClusterSnapshot { members, ..ClusterSnapshot::default() };
        let snapshot = seen.with(&BTreeMap::from([received("b", vec![], vec![])]));
        let [a, b] = &snapshot.members[..] else { panic!("{snapshot:?}") };
        assert_eq!((&a.reported, a.age_ms), (&None, None));
        assert_eq!((b.reported.as_ref().map(|it| &*it.node.id), b.age_ms), (Some("b"), Some(70)));
    }

    #[test]
    fn rules_are_summed_over_nodes_and_ordered_by_their_checks() {
        let few = RuleCounts { allowed: 5, local: 5, ..RuleCounts::default() };
        let over = RuleCounts {
            allowed: 105,
            local: 60,
            full_hits: 100,
            over_hits: 10,
            ..RuleCounts::default()
        };
        let full = RuleCounts { over_hits: 0, ..over };
        let nodes = BTreeMap::from([
            received("a", vec![rule("few", "strict", few), rule("r", "eventual", over)], vec![]),
            received("b", vec![rule("r", "eventual", full)], vec![]),
        ]);
        let rules = ClusterSnapshot::default().with(&nodes).rules;
        let found: Vec<_> =
            rules.iter().map(|it| (&*it.rule, it.counts.allowed, it.error)).collect();
        assert_eq!(found, [("r", 210, Some(0.05)), ("few", 5, None)]);
    }

    #[test]
    fn rules_beyond_the_bound_are_in_the_last_row() {
        let counts = |checks| RuleCounts { allowed: 1, local: checks, ..RuleCounts::default() };
        let rules = (0..RULES_MAX as u64 + 3)
            .map(|n| rule(&format!("r{n}"), "strict", counts(1 + n)))
            .chain([RuleReport { mode: None, ..rule("(other)", "", counts(9)) }]);
        let nodes = BTreeMap::from([received("a", rules.collect(), vec![])]);
        let rules = ClusterSnapshot::default().with(&nodes).rules;
        assert_eq!(rules.len(), RULES_MAX + 1);
        let last = rules.last().unwrap();
        assert_eq!((&*last.rule, &last.mode, last.counts.allowed), ("(other)", &None, 4));
    }

    #[test]
    fn keys_are_summed_by_rule_and_token_and_one_node_that_shows_the_value_is_enough() {
        let nodes = BTreeMap::from([
            received("a", vec![], vec![key("r", "01", None, 3.0), key("r", "02", None, 4.0)]),
            received("b", vec![], vec![key("r", "01", Some("user=ann"), 2.0)]),
        ]);
        let keys = ClusterSnapshot::default().with(&nodes).refused_keys;
        let expected = KeyRefusals { error: 1.0, ..key("r", "01", Some("user=ann"), 5.0) };
        assert_eq!(keys, [expected, key("r", "02", None, 4.0)]);
    }

    #[test]
    fn a_report_of_another_release_is_read_as_far_as_it_is_known() {
        let text = r#"{"reported":{"node":{"id":"a","region":"eu","zone":"z","generation":1,
            "version":"9.9.9","uptime_s":3,"mood":"good"}},"weather":7}"#;
        let snapshot: NodeSnapshot = serde_json::from_str(text).unwrap();
        assert_eq!((&*snapshot.reported.node.id, snapshot.rules.len()), ("a", 0));
    }
}

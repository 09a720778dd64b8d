//! Alerts and dashboards name metrics that exist, and every alert has an entry in the runbook and
//! tests. `scripts/check-monitoring` runs them.

use std::collections::BTreeSet;
use std::fs;

use crate::docs::{exported_metrics, read};
use crate::source::{self, words};

const ALERTS: &str = "deploy/prometheus/alerts.yaml";

/// What the exposition appends to a name.
const SUFFIXES: [&str; 5] = ["_total", "_bucket", "_sum", "_count", "_info"];

#[test]
fn alerts_and_dashboards_name_metrics_that_exist() {
    let metrics = exported_metrics();
    let boards = fs::read_dir(source::root().join("deploy/grafana")).unwrap();
    let boards = boards.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    let texts: Vec<String> = boards.chain([read(ALERTS)]).collect();
    assert_eq!(texts.len(), 3);
    let mut unknown = BTreeSet::new();
    for word in texts.iter().flat_map(|text| text.lines()).flat_map(words) {
        let Some(name) = word.strip_prefix("tidegate_") else { continue };
        let bases = SUFFIXES.iter().filter_map(|suffix| name.strip_suffix(suffix));
        if !bases.chain([name]).any(|base| metrics.contains(base)) {
            unknown.insert(word);
        }
    }
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn every_alert_has_an_entry_in_the_runbook_a_case_that_fires_and_one_that_does_not() {
    let (alerts, tests) = (read(ALERTS), read("deploy/prometheus/alerts.test.yaml"));
    let runbook = read("docs/operations.md");
    let names: BTreeSet<&str> =
        alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let entries: BTreeSet<&str> =
        runbook.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let entries = entries.into_iter().filter(|heading| heading.starts_with("Tidegate"));
    assert_eq!(entries.collect::<BTreeSet<_>>(), names);
    for name in names {
        let url = format!("runbook_url: docs/operations.md#{}\n", name.to_lowercase());
        assert!(alerts.contains(&url), "{name} does not link its entry");
        let (_, test) = tests.split_once(&format!("- name: {name}\n")).expect(name);
        let test = test.split("  - name: ").next().unwrap();
        let silent = format!("alertname: {name}}}\n");
        assert!(test.contains(&silent), "{name} has no case in which it stays silent");
        assert!(test.contains(&url), "{name} has no case in which it fires");
    }
}

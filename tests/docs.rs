//! The documents say what the code does: every key, every metric, examples that load, links that lead
//! somewhere.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tidegate::compat::envoy_ratelimit::statistics::prometheus;
use tidegate::config;
use tidegate::observe::names;
use tidegate_rules::load;
use tidegate_rules::tally;

#[test]
fn every_key_is_documented_with_its_variable() {
    let rows = rows_of(&read("docs/configuration.md"));
    let documented: BTreeSet<(String, String)> = rows
        .into_iter()
        .filter(|cells| cells.len() == 4 && code(&cells[0]).is_some_and(|key| key.contains('.')))
        .map(|cells| (code(&cells[0]).unwrap(), code(&cells[3]).unwrap_or_default()))
        .collect();
    let keys: BTreeSet<(String, String)> = config::keys()
        .into_iter()
        .map(|key| {
            let variable = format!("TIDEGATE_{}", key.to_uppercase().replace('.', "__"));
            (key, variable)
        })
        .collect();
    assert_eq!(documented, keys);
}

#[test]
fn every_metric_is_documented() {
    let documented: BTreeSet<String> = rows_of(&read("docs/operations.md"))
        .into_iter()
        .filter_map(|cells| code(cells.first()?))
        .filter_map(|name| name.strip_prefix("tidegate_").map(str::to_owned))
        .collect();
    // The constants of the file that holds nothing but the names.
    let names: BTreeSet<String> = read("src/observe/names.rs")
        .lines()
        .filter_map(|line| Some(line.split_once("&str = \"")?.1.trim_end_matches("\";").to_owned()))
        .filter(|name| name != names::PREFIX)
        .collect();
    assert_eq!(documented, names);
}

#[test]
fn every_statistic_of_envoyproxy_ratelimit_is_documented() {
    let documented: BTreeSet<String> = rows_of(&read("docs/operations.md"))
        .into_iter()
        .filter_map(|cells| code(cells.get(1)?))
        .filter_map(|name| match name.strip_prefix("..._") {
            Some(counter) => Some(format!("{}{counter}", prometheus::PREFIX)),
            None => name.starts_with("ratelimit_").then_some(name),
        })
        .collect();
    let counters = tally::COUNTERS.iter().map(|counter| format!("{}{counter}", prometheus::PREFIX));
    let others = [
        prometheus::NOT_FOUND,
        prometheus::ERROR,
        prometheus::LOAD_SUCCESS,
        prometheus::LOAD_ERROR,
        prometheus::SHADOW_MODE,
        prometheus::CALLS,
        prometheus::TIMES,
    ];
    let told: BTreeSet<String> = counters.chain(others.map(str::to_owned)).collect();
    assert_eq!(documented, told);
}

#[test]
fn the_examples_are_ones_that_a_node_takes() {
    let folder = root().join("docs/examples");
    let sets = [
        "cluster.listen=127.0.0.1:7601",
        "tls.cert=pki/node-1.pem",
        "tls.key=pki/node-1.key",
        "http.listen=127.0.0.1:8081",
        "rules.path=docs/examples/edge.yaml",
    ];
    let sets = sets.map(str::to_owned);
    let config = config::load(Some(&folder.join("cluster.toml")), &sets).unwrap();
    let bytes = fs::read(folder.join("edge.yaml")).unwrap();
    let source = load::Source { name: "edge.yaml".into(), bytes };
    let book = load::parse(&[source], &load::Options::default()).unwrap();
    assert_eq!(book.rules().count(), 2);
    assert_eq!(config.auth.domain.as_deref(), Some("edge"));
}

#[test]
fn the_rules_in_the_readme_are_the_examples() {
    let example = read("docs/examples/edge.yaml");
    let (_, rules) = example.split_once("domain:").unwrap();
    assert!(read("README.md").contains(rules.trim()), "docs/examples/edge.yaml differs");
}

#[test]
fn links_lead_somewhere() {
    for name in [
        "README.md",
        "docs/algorithms.md",
        "docs/configuration.md",
        "docs/forward-auth.md",
        "docs/migrate-from-envoyproxy-ratelimit.md",
        "docs/operations.md",
        "docs/redis.md",
    ] {
        let folder = root().join(name).parent().unwrap().to_owned();
        for target in links(&read(name)) {
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() { root().join(name) } else { folder.join(file) };
            assert!(path.exists(), "{name} links to {target}");
            if !anchor.is_empty() {
                let text = fs::read_to_string(&path).unwrap();
                let found = text.lines().any(|line| line.starts_with('#') && slug(line) == anchor);
                assert!(found, "{name} links to {target}, which is no heading there");
            }
        }
    }
}

// === reading Markdown ===

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// The cells of all table rows.
fn rows_of(text: &str) -> Vec<Vec<String>> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.map(|row| row.split(" | ").map(str::to_owned).collect()).collect()
}

/// What a cell that is nothing but code says.
fn code(cell: &str) -> Option<String> {
    cell.strip_prefix('`')?.strip_suffix('`').filter(|text| !text.contains('`')).map(str::to_owned)
}

/// The targets of links inside the repository.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.starts_with("http")).map(str::to_owned).collect()
}

/// As GitHub names a heading's anchor.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    text.chars().filter(|char| char.is_alphanumeric() || matches!(char, '-' | '_')).collect()
}

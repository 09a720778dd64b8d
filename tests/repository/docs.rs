//! The documents match the code: every key, every metric, examples that load, links without a dead
//! end.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tidegate::admin::{Role, routes};
use tidegate::compat::envoy_ratelimit::statistics::prometheus;
use tidegate::config;
use tidegate::config::load::{Inputs, assemble};
use tidegate_rules::{load, tally};

use crate::source;

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

/// The table of routes and their roles is that of the router.
#[test]
fn every_route_of_the_admin_listener_is_documented_with_its_role() {
    let text = read("docs/operations.md");
    let (_, table) = text.split_once("What each route needs:\n").unwrap();
    let rows = rows_of(table.split("\n## ").next().unwrap());
    let documented: Vec<(String, String)> =
        rows.iter().filter_map(|cells| Some((code(cells.first()?)?, cells[1].clone()))).collect();
    let role = |role| match role {
        None => "none",
        Some(Role::Read) => "read",
        Some(Role::Write) => "write",
    };
    let served = routes().into_iter().map(|route| (route.usage(), role(route.role).to_owned()));
    assert_eq!(documented, served.collect::<Vec<_>>());
}

#[test]
fn every_metric_is_documented() {
    let documented: BTreeSet<String> = rows_of(&read("docs/operations.md"))
        .into_iter()
        .filter_map(|cells| code(cells.first()?))
        .filter_map(|name| name.strip_prefix("tidegate_").map(str::to_owned))
        .collect();
    assert_eq!(documented, exported_metrics());
}

/// Names without `tidegate_` and suffix: the first literal of each constant of the file that defines
/// the metrics.
pub(crate) fn exported_metrics() -> BTreeSet<String> {
    let names = read("src/observe/names.rs");
    let constants = names.split(": Metric =").skip(1);
    constants.filter_map(|constant| constant.split('"').nth(1).map(str::to_owned)).collect()
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
    let exported: BTreeSet<String> = counters.chain(others.map(str::to_owned)).collect();
    assert_eq!(documented, exported);
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
fn the_nodes_of_the_page_on_edges_start() {
    let text = read("docs/edge.md");
    let blocks = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let roles = blocks.map(|block| {
        let file = Some((Path::new("node.toml"), block));
        let inputs = Inputs { file, ..Inputs::default() };
        assemble(&inputs).unwrap().0.node.role.name()
    });
    assert_eq!(roles.collect::<Vec<_>>(), ["core", "edge"]);
}

/// Whole files, and sections to add to one.
#[test]
fn configuration_in_the_documents_is_accepted() {
    let mut accepted = 0;
    for (name, block) in blocks("toml") {
        if block.starts_with("[dependencies]") {
            continue;
        }
        let file = Some((Path::new("cluster.toml"), &*block));
        // A node without a listener for clients is refused.
        let sets = ["http.listen=127.0.0.1:8080".to_owned()];
        let inputs = Inputs { file, sets: &sets, ..Inputs::default() };
        if let Err(error) = assemble(&inputs) {
            panic!("{name}: {error}\n{block}");
        }
        accepted += 1;
    }
    assert!(accepted > 5, "{accepted} blocks");
}

/// Whole files, and descriptors to add to one.
#[test]
fn rules_in_the_documents_load() {
    let mut loaded = 0;
    for (name, block) in blocks("yaml") {
        let is_rule_file = block.lines().any(|line| line.starts_with("domain:"));
        let are_descriptors = block.starts_with("- key:") || block.starts_with("- {key:");
        if is_rule_file || are_descriptors {
            let head = if are_descriptors { "domain: d\ndescriptors:\n" } else { "" };
            let bytes = format!("{head}{block}").into_bytes();
            let source = load::Source { name: name.clone(), bytes };
            let book = load::parse(&[source], &load::Options::default());
            assert!(book.is_ok(), "{name}: {}\n{block}", book.unwrap_err());
            loaded += 1;
        }
    }
    assert!(loaded > 0, "no document has a rule file");
}

/// What is promised is tested: the cells of the columns *test* and *leased* each name a test, or a
/// fault of `scripts/chaos`, or say why there is none.
#[test]
fn every_guarantee_names_a_test_that_exists() {
    assert!(tested_cells("docs/guarantees.md") > 80);
    assert!(tested_cells("docs/stolen-node.md") > 15);
}

/// How many cells of the document do so: all of them.
fn tested_cells(document: &str) -> usize {
    let folders = ["src", "crates", "tests"].into_iter();
    let sources: String = folders.flat_map(source::below).map(|file| file.text).collect();
    // The head of the table that a line is in.
    let mut head: Vec<String> = Vec::new();
    let mut checked = 0;
    for line in read(document).lines() {
        let Some(row) = line.strip_prefix('|') else {
            head.clear();
            continue;
        };
        let cells: Vec<&str> = row.trim_end_matches('|').split('|').map(str::trim).collect();
        if head.is_empty() {
            head = cells.into_iter().map(str::to_owned).collect();
            continue;
        }
        assert_eq!(cells.len(), head.len(), "{line}\nanother number of cells than its head");
        let tested = |(column, _): &(&String, &str)| ["test", "leased"].contains(&column.as_str());
        for (_, cell) in head.iter().zip(cells).filter(tested) {
            if cell.starts_with("---") {
                continue;
            }
            checked += 1;
            let names = cell.split('`').skip(1).step_by(2);
            let missing: Vec<&str> = names.filter(|name| !is_a_test(name, &sources)).collect();
            assert!(missing.is_empty(), "{line}\nno such test: {missing:?}");
            let has_one =
                cell.contains('`') || ["the same", "none: "].iter().any(|it| cell.starts_with(it));
            assert!(has_one, "{line}\nno test: {cell}");
        }
    }
    checked
}

/// Whether `name` is a test function, a file, or a fault of `scripts/chaos`.
fn is_a_test(name: &str, sources: &str) -> bool {
    if let Some(fault) = name.strip_prefix("scripts/chaos ") {
        let words = fault.split('_').map(|word| {
            let (first, rest) = word.split_at(1);
            first.to_uppercase() + rest
        });
        return sources.contains(&format!("\n    {},\n", words.collect::<String>()));
    }
    root().join(name).is_file() || sources.contains(&format!("fn {name}("))
}

#[test]
fn links_lead_somewhere() {
    let mut dead = Vec::new();
    for name in documents() {
        let folder = root().join(&name).parent().unwrap().to_owned();
        for target in links(&read(&name)) {
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() { root().join(&name) } else { folder.join(file) };
            let text = fs::read_to_string(&path).unwrap_or_default();
            let has_anchor =
                || text.lines().any(|line| line.starts_with('#') && slug(line) == anchor);
            if !path.exists() || !anchor.is_empty() && !has_anchor() {
                dead.push(format!("{name} links to {target}"));
            }
        }
    }
    assert!(dead.is_empty(), "\n{}", dead.join("\n"));
}

/// `scripts/site` builds the site from the summary.
#[test]
fn every_page_is_in_the_summary() {
    let summary = links(&read("docs/SUMMARY.md"));
    let pages =
        documents().into_iter().filter_map(|name| Some(name.strip_prefix("docs/")?.to_owned()));
    let missing: Vec<_> =
        pages.filter(|page| page != "SUMMARY.md" && !summary.contains(page)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

// === reading Markdown ===

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

pub(crate) fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// The pages of the repository, without the change log of released versions.
pub(crate) fn documents() -> Vec<String> {
    let mut names = Vec::new();
    for folder in ["", "docs/", "docs/adr/", "docs/reference/", "tests/"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if Path::new(&name).extension().is_some_and(|end| end == "md") && name != "CHANGELOG.md"
            {
                names.push(format!("{folder}{name}"));
            }
        }
    }
    names.sort();
    names
}

/// The blocks of code in `language`, each with its page.
pub(crate) fn blocks(language: &str) -> Vec<(String, String)> {
    let fence = format!("\n```{language}\n");
    let mut found = Vec::new();
    for name in documents() {
        let text = read(&name);
        let of_page = text.split(&*fence).skip(1).filter_map(|rest| rest.split("```").next());
        found.extend(of_page.map(|block| (name.clone(), block.to_owned())));
    }
    found
}

/// The cells of all table rows.
fn rows_of(text: &str) -> Vec<Vec<String>> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.map(|row| row.split(" | ").map(str::to_owned).collect()).collect()
}

/// The text of a cell that is all code.
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

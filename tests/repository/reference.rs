//! The pages and schemas in `docs/reference`, which are generated from the code. After a change of
//! the code,
//!
//! ```text
//! INSTA_UPDATE=always cargo test --locked --test repository reference
//! ```
//!
//! writes them, as it does the snapshots of other tests.

use std::fmt::Write as _;
use std::fs;

use tidegate::{cli, config};
use tidegate_rules::schema::schema;

use crate::docs::{blocks, read};
use crate::source;

#[test]
fn the_schema_of_rules_is_that_of_the_reader() {
    assert_generated("rules.schema.json", &format!("{:#}\n", schema()));
}

#[test]
fn the_schema_of_the_configuration_is_that_of_its_types() {
    assert_generated("cluster.schema.json", &format!("{:#}\n", config::schema()));
}

#[test]
fn the_commands_are_those_of_the_program() {
    let mut page =
        "# Commands\n\n<!-- Generated from the code: tests/repository/reference.rs. -->\n\n\
        What `--help` prints. `tidegate man` writes the same as manual pages, and `tidegate \
        completions` the completions of a shell.\n"
            .to_owned();
    let root = cli::command_line().term_width(100).disable_help_subcommand(true);
    for words in commands("", &root) {
        let asked = words.split(' ').chain(["--help"]);
        let help = root.clone().try_get_matches_from(asked).unwrap_err().render().to_string();
        let help: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
        write!(page, "\n## {words}\n\n```text\n{}\n```\n", help.join("\n")).unwrap();
    }
    assert_generated("commands.md", &page);
}

/// A command and those below it, as they are typed.
fn commands(parent: &str, command: &clap::Command) -> Vec<String> {
    let name = format!("{parent}{}", command.get_name());
    let below = command.get_subcommands().flat_map(|inner| commands(&format!("{name} "), inner));
    std::iter::once(name.clone()).chain(below).collect()
}

#[test]
fn the_metrics_are_those_that_a_node_exports() {
    let mut page =
        "# Metrics\n\n<!-- Generated from the code: tests/repository/reference.rs. -->\n\n\
        What `/metrics` of the admin listener exports, under the names that queries use, with the \
        help texts of the exposition. A histogram has the series `_bucket`, `_sum` and `_count`. \
        [Operations](../operations.md#metrics) has their labels and what to do about them.\n\n\
        | metric | type | help |\n|---|---|---|\n"
            .to_owned();
    let names = read("src/observe/names.rs");
    for constant in names.split(": Metric =").skip(1) {
        let (kind, suffix) = match constant {
            _ if constant.trim_start().starts_with("counter(") => ("counter", "_total"),
            _ if constant.trim_start().starts_with("gauge(") => ("gauge", ""),
            _ if constant.contains("MetricType::Histogram") => ("histogram", ""),
            _ => ("info", "_info"),
        };
        let mut literals = constant.split('"').skip(1).step_by(2);
        let (name, help) = (literals.next().unwrap(), literals.next().unwrap());
        // A literal that goes on after `\` in the next line.
        let help: Vec<&str> = help.split('\\').map(str::trim_start).collect();
        writeln!(page, "| `tidegate_{name}{suffix}` | {kind} | {} |", help.concat()).unwrap();
    }
    assert_generated("metrics.md", &page);
}

/// What a node takes is valid; what it refuses for its keys and types is not.
#[test]
fn configuration_files_of_the_repository_are_valid() {
    let schema = jsonschema::validator_for(&config::schema()).unwrap();
    let json =
        |text: &str| serde_json::to_value(toml::from_str::<toml::Value>(text).unwrap()).unwrap();
    let files = ["cluster.toml", "docs/examples/cluster.toml", "clients/node/cluster.toml"];
    let files = files.map(|name| (name.to_owned(), read(name)));
    let blocks = blocks("toml").into_iter().filter(|(_, text)| !text.starts_with("[dependencies]"));
    for (name, text) in files.into_iter().chain(blocks) {
        if let Some(error) = schema.iter_errors(&json(&text)).next() {
            panic!("{name}: {error} at {}\n{text}", error.instance_path());
        }
    }
    for refused in [
        "[htp]",
        "[http]\nlisen = '127.0.0.1:1'",
        "[http]\nlisten = 1",
        "[http]\ndenied_status = '429'",
        "[cluster]\nseeds = 'a:1'",
        "[cluster]\nquorum = 'all'",
        "[rules]\nmerge_domains = 'yes'",
        "http = 1",
    ] {
        assert!(!schema.is_valid(&json(refused)), "{refused}");
    }
}

/// Holds a file to the code, or writes it.
fn assert_generated(name: &str, text: &str) {
    let path = source::root().join("docs/reference").join(name);
    if std::env::var_os("INSTA_UPDATE").is_some_and(|update| update == "always") {
        fs::write(&path, text).unwrap();
    }
    let is_current = fs::read_to_string(&path).is_ok_and(|kept| kept == text);
    assert!(
        is_current,
        "docs/reference/{name} is not what the code says; write it with\n  \
         INSTA_UPDATE=always cargo test --locked --test repository reference"
    );
}

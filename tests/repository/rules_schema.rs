//! The JSON schema of rule files and their reader agree: what loads is valid, and what the reader
//! refuses because of a key or the type of a value is not.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use jsonschema::Validator;
use serde_json::{Map, Value, json};
use tidegate_rules::keys::{self, Section};
use tidegate_rules::load::{self, Options, Source};
use tidegate_rules::schema::schema;
use tidegate_rules::yaml::{Bounds, Kind, Meaning, Node, parse};
use tidegate_rules::{Error, Reason};

use crate::docs::{blocks, read};
use crate::source;

#[test]
fn rule_files_of_the_repository_are_valid() {
    let schema = validator();
    let mut files = Vec::new();
    for folder in ["rules", "docs/examples", "deploy", "clients", "crates/demo"] {
        collect(&source::root().join(folder), &mut files);
    }
    files.extend(blocks("yaml"));
    files.retain(|(_, text)| text.lines().any(|line| line.starts_with("domain:")));
    assert!(files.len() > 10, "{} files", files.len());
    for (name, text) in files {
        assert_valid(&schema, &name, &text);
    }
}

#[test]
fn what_envoyproxy_ratelimit_loads_is_valid() {
    let schema = validator();
    let cases: Vec<Value> = serde_json::from_str(&read("tests/golden/config_cases.json")).unwrap();
    let mut valid = 0;
    for case in cases.iter().filter(|case| case["error"].is_null()) {
        for yaml in ["yaml", "yaml2"].iter().filter_map(|key| case[key].as_str()) {
            assert_valid(&schema, &case["name"].to_string(), yaml);
            valid += 1;
        }
    }
    assert!(valid > 40, "{valid} files");
}

/// Each key with values of every type, in each mapping.
#[test]
fn the_schema_refuses_the_keys_and_types_that_the_reader_refuses() {
    const VALUES: [&str; 18] = [
        "word",
        "''",
        "1",
        "0",
        "-1",
        "61",
        "4294967296",
        "1.5",
        "true",
        "90s",
        "80%",
        "100%",
        "[]",
        "[x]",
        "{}",
        "{a: b}",
        "[{name: x}]",
        "[{key: x}]",
    ];
    let schema = validator();
    let mut differences = Vec::new();
    let (mut accepted, mut refused) = (0, 0);
    let unknown = ("unknown", &[][..]);
    for (key, sections) in keys::ALL.iter().map(|key| (key.name, key.sections)).chain([unknown]) {
        for section in [Section::File, Section::Descriptor, Section::RateLimit, Section::Replaces] {
            for value in VALUES {
                // What a key without effect contains is read and not used.
                if !sections.contains(&section) && value != "word" {
                    continue;
                }
                let text = file_with(section, key, value);
                let valid = schema.is_valid(&json_of(&text));
                let expected = match load_one(&text) {
                    Ok(()) => true,
                    Err(error) if is_of_one_value(&error.reason) => false,
                    Err(_) => continue,
                };
                *(if expected { &mut accepted } else { &mut refused }) += 1;
                if valid != expected {
                    differences.push(format!("{text}: valid {valid}, loads {expected}"));
                }
            }
        }
    }
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
    assert!(accepted > 80 && refused > 150, "{accepted} accepted, {refused} refused");
}

/// Whether a schema, which sees one key at a time, refuses it as well.
fn is_of_one_value(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::UnknownKey { .. }
            | Reason::Misplaced { .. }
            | Reason::Type { .. }
            | Reason::Range { .. }
            | Reason::Choice { .. }
            | Reason::ListOf(_)
            | Reason::Fraction(_)
            | Reason::EmptyDomain
            | Reason::EmptyKey
            | Reason::EmptyReplaces
            | Reason::Unit(_)
            | Reason::Duration(_)
            | Reason::LimitCount(_)
    )
}

/// A rule file that loads, with `key: value` in one of its mappings.
fn file_with(section: Section, key: &str, value: &str) -> String {
    let mapping = |at: Section, pairs: &[(&str, &str)]| {
        let mut pairs: BTreeMap<&str, &str> = pairs.iter().copied().collect();
        if at == section {
            pairs.insert(key, value);
            // One of them says how long a limit counts.
            if ["window", "unlimited"].contains(&key) {
                pairs.remove("unit");
            }
        }
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| format!("{key}: {value}")).collect();
        format!("{{{}}}", pairs.join(", "))
    };
    let replaces = format!("[{}]", mapping(Section::Replaces, &[("name", "other")]));
    let limit = mapping(
        Section::RateLimit,
        &[("unit", "minute"), ("requests_per_unit", "100"), ("replaces", &replaces)],
    );
    let descriptor =
        mapping(Section::Descriptor, &[("key", "k"), ("value", "'v*'"), ("rate_limit", &limit)]);
    let descriptors = format!("[{descriptor}]");
    mapping(Section::File, &[("domain", "d"), ("descriptors", &descriptors)])
}

fn validator() -> Validator {
    jsonschema::validator_for(&schema()).unwrap()
}

fn assert_valid(schema: &Validator, name: &str, text: &str) {
    if let Some(error) = schema.iter_errors(&json_of(text)).next() {
        panic!("{name}: {error} at {}\n{text}", error.instance_path());
    }
}

fn load_one(text: &str) -> Result<(), Error> {
    let source = Source { name: "rules.yaml".into(), bytes: text.into() };
    load::parse(&[source], &Options::default()).map(|_| ())
}

/// YAML 1.1 as the reader reads it.
fn json_of(text: &str) -> Value {
    parse(text.as_bytes(), Bounds::RULE_FILE).unwrap().map_or(Value::Null, |node| value(&node))
}

fn value(node: &Node) -> Value {
    match &node.kind {
        Kind::List(elements) => elements.iter().map(value).collect(),
        Kind::Map(pairs) => {
            let name = |key: &Node| key.as_scalar().map(|key| key.text.to_string()).unwrap();
            let pairs: Map<String, Value> =
                pairs.iter().map(|(key, element)| (name(key), value(element))).collect();
            pairs.into()
        }
        Kind::Scalar(scalar) => match scalar.meaning() {
            Meaning::Null => Value::Null,
            Meaning::Bool(truth) => json!(truth),
            Meaning::Int(number) => json!(number),
            Meaning::OtherNumber => json!(scalar.number()),
            Meaning::Text => json!(*scalar.text),
        },
    }
}

/// The YAML files in and below `folder`.
fn collect(folder: &Path, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("node_modules") {
            collect(&path, files);
        } else if path.extension().is_some_and(|end| end == "yaml") {
            files.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
}

//! What `tidegate rules validate` and `tidegate rules test` print.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tidegate::cli::rules::{Dialect, Format, test, validate};
use tidegate_limiter::descriptor::Entry;
use tidegate_rules::load::Options;

#[test]
fn validate_reports_every_file_and_a_summary() {
    let folder = folder(&[
        (
            "a.yaml",
            "{domain: a, descriptors: [{key: k, unit: day, rate_limit: {unit: day, requests_per_unit: 1}}]}",
        ),
        ("b.yaml", "domain: b"),
    ]);
    let (ok, text) = validated(&[folder.path().into()], Format::Text);
    assert!(ok);
    let (rest, fingerprint) = text.trim_end().rsplit_once(' ').unwrap();
    assert_eq!(fingerprint.len(), 16);
    assert_eq!(
        rest.replace(&format!("{}/", folder.path().display()), ""),
        "a.yaml: ok, 1 rule\n\
         a.yaml:1:36: unit: has no effect in a descriptor; it belongs in rate_limit (warning)\n\
         b.yaml: ok, 0 rules\n\
         2 files, 1 rule, fingerprint"
    );
}

#[test]
fn validate_refuses_what_a_node_would_refuse() {
    let folder = folder(&[("a.yaml", "domain: a"), ("b.yaml", "domain: a"), ("c.yml", "domain:")]);
    let (ok, text) = validated(&[folder.path().join("c.yml")], Format::Text);
    assert!(!ok && text.contains("config file cannot have empty domain"), "{text}");
    assert!(text.ends_with("1 file, 1 invalid\n"), "{text}");

    let both = [folder.path().join("a.yaml"), folder.path().join("b.yaml")];
    let (ok, text) = validated(&both, Format::Text);
    assert!(!ok && text.contains("duplicate domain 'a'"), "{text}");
    assert!(text.ends_with("2 files, invalid together\n"), "{text}");

    let (ok, text) = validated(&[folder.path().join("none")], Format::Text);
    assert!(!ok && text.contains("none: cannot be read: "), "{text}");
}

#[test]
fn validate_for_both_refuses_keys_only_tidegate_has() {
    let ours = "domain: a\ndescriptors:\n- key: k\n  mode: eventual\n  \
                rate_limit: {unit: day, requests_per_unit: 1}\n";
    let folder = folder(&[("a.yaml", ours), ("b.yaml", "domain: b")]);
    let paths = [folder.path().into()];
    assert!(validated(&paths, Format::Text).0);
    let (ok, text) = validated_as(&paths, Dialect::Compatible, Format::Text);
    let text = text.replace(&format!("{}/", folder.path().display()), "");
    assert!(!ok);
    assert_eq!(
        text,
        "a.yaml:4:3: mode: envoyproxy/ratelimit has no such key; remove it, or validate without \
         --strict-compat\nb.yaml: ok, 0 rules\n2 files, 1 invalid\n"
    );
}

#[test]
fn validate_as_json_has_the_position_of_the_error() {
    let folder = folder(&[("a.yaml", "domain: a\nburst: 1")]);
    let (ok, text) = validated(&[folder.path().into()], Format::Json);
    let value: Value = serde_json::from_str(&text).unwrap();
    let error = &value["files"][0]["error"];
    assert!(!ok && value["ok"] == false);
    assert_eq!((error["line"].as_u64(), error["key"].as_str()), (Some(2), Some("burst")));
}

#[test]
fn rules_test_prints_which_rule_matches_and_why() {
    let (found, text) =
        tested("api", &[("path", "/login"), ("client", "203.0.113.7")], Format::Text);
    assert!(found);
    assert_eq!(
        text,
        "path=/login matches path=/login (by value)\n\
         client=203.0.113.7 matches client (by key)\n\
         rule api.path_/login.client\n  \
         limit 10 per 1h, fixed_window\n  \
         mode strict, scope region, on_unavailable local\n"
    );
    let (_, text) = tested("modes", &[("search", "x")], Format::Text);
    assert!(text.ends_with("  shadow_mode: everything is admitted\n"), "{text}");
    let (_, text) = tested("api", &[("user", "health-checker")], Format::Text);
    assert!(text.contains("  unlimited\n"), "{text}");
}

/// The command knows no cluster, so it says from which size on a node's part is less than one hit.
#[test]
fn rules_test_says_where_a_leased_rule_is_decided_as_strict() {
    let rule = |key: &str, policy: &str, limit: &str| {
        format!("- {{key: {key}, mode: leased, {policy}rate_limit: {{{limit}}}}}\n")
    };
    let rules = [
        rule("small", "", "unit: day, requests_per_unit: 10"),
        rule("one", "scope: global, ", "unit: day, requests_per_unit: 1"),
        rule("regions", "scope: global, ", "unit: day, requests_per_unit: 2000"),
        rule(
            "far-log",
            "scope: global, ",
            "unit: day, requests_per_unit: 9, algorithm: sliding_window_log",
        ),
        // A bucket is full: the hit of a term cannot be granted.
        rule("tokens", "", "unit: day, requests_per_unit: 99, burst: 10, algorithm: token_bucket"),
        rule("large", "", "unit: day, requests_per_unit: 1024"),
        rule("log", "", "unit: day, requests_per_unit: 100, algorithm: sliding_window_log"),
        rule("queue", "", "unit: day, requests_per_unit: 9, algorithm: leaky_bucket, queue: 5"),
        rule("brief", "", "unit: second, requests_per_unit: 100, burst: 9, algorithm: gcra"),
    ];
    let text = format!("domain: d\ndescriptors:\n{}", rules.concat());
    let folder = folder(&[("a.yaml", &text)]);
    for (key, expected, nodes) in [
        (
            "small",
            "  decided as strict in regions of more than 5 nodes: the limit is too small\n",
            5,
        ),
        (
            "one",
            "  decided as strict in clusters of more than 1 node: the limit is too small\n  \
             divided among at most 1 region, which the others ask at each check\n",
            0,
        ),
        (
            "regions",
            "on_unavailable local\n  divided among the regions: a check for more hits than the \
             share of one is refused\n",
            1_000,
        ),
        (
            "far-log",
            "  decided as strict: a log, which has the time of each hit, grants none in advance\n",
            0,
        ),
        (
            "tokens",
            "  decided as strict in regions of more than 4 nodes: the limit is too small\n",
            4,
        ),
        ("large", "on_unavailable local\n", 512),
        (
            "log",
            "  decided as strict: a log, which has the time of each hit, grants none in advance\n",
            0,
        ),
        (
            "queue",
            "  decided as strict: a queue, which gives each hit its time, grants none in advance\n",
            0,
        ),
        ("brief", "  decided as strict: a grant would end within 4 ms\n", 0),
    ] {
        let (_, text) = tested_in(folder.path(), "d", &[(key, "x")], Format::Text);
        assert!(text.ends_with(expected), "{text}");
        let (_, json) = tested_in(folder.path(), "d", &[(key, "x")], Format::Json);
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["granting_nodes_max"], nodes, "{key}");
    }
    let (_, json) = tested("api", &[("path", "/login"), ("client", "x")], Format::Json);
    assert!(serde_json::from_str::<Value>(&json).unwrap()["granting_nodes_max"].is_null());

    let (ok, text) = validated(&[folder.path().into()], Format::Text);
    let warning =
        "mode: is strict in effect: a log or a queue grants no hits to other nodes (warning)";
    assert!(ok && text.matches(warning).count() == 3, "{text}");
}

#[test]
fn rules_test_without_a_match_prints_that() {
    let (found, text) = tested("api", &[("path", "/")], Format::Text);
    assert_eq!((found, &*text), (false, "no rule matches: the request is not limited\n"));
    let (_, text) = tested("apo", &[("path", "/")], Format::Text);
    assert!(
        text.contains("no rules for domain 'apo'; domains with rules: algorithms, api, "),
        "{text}"
    );
}

#[test]
fn a_test_as_json_carries_the_limits() {
    let (_, text) = tested("several", &[("api_key", "x")], Format::Json);
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["rule"], "several.api_key");
    assert_eq!(value["limits"][0]["burst"], 20);
    assert_eq!(value["limits"][2]["window"], "30d");
    let (_, text) = tested("several", &[("none", "x")], Format::Json);
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["matched"], false);
}

fn validated(paths: &[PathBuf], format: Format) -> (bool, String) {
    validated_as(paths, Dialect::Ours, format)
}

fn validated_as(paths: &[PathBuf], dialect: Dialect, format: Format) -> (bool, String) {
    let mut out = Vec::new();
    let ok = validate(paths, &Options::default(), dialect, format, &mut out).unwrap();
    (ok, String::from_utf8(out).unwrap())
}

fn tested(domain: &str, entries: &[(&str, &str)], format: Format) -> (bool, String) {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("rules");
    tested_in(&rules, domain, entries, format)
}

fn tested_in(
    rules: &Path,
    domain: &str,
    entries: &[(&str, &str)],
    format: Format,
) -> (bool, String) {
    let entries: Vec<_> = entries.iter().map(|&(key, value)| Entry { key, value }).collect();
    let mut out = Vec::new();
    let found = test(rules, &Options::default(), (domain, &entries), format, &mut out).unwrap();
    (found, String::from_utf8(out).unwrap())
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

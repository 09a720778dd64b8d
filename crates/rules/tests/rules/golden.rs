//! The rule files of envoyproxy/ratelimit have the same meaning here.
//!
//! `tests/golden/config_cases.json` holds rule files, requests, and what the reference did with
//! them (commit f2fb157). A file is either refused with the text of the reference, or loaded and
//! then matches every request as there. Set `GOLDEN_DIR` to run another collection.

use std::path::PathBuf;

use serde_json::Value;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::quota::Quota;
use tidegate_rules::load::{Options, Source, parse};
use tidegate_rules::{Error, Match, Reason};

/// Cases that differ, each with its reason.
const DIFFERENT: &[(&str, &str)] = &[];

#[test]
fn rule_files_of_envoy_ratelimit_mean_the_same() {
    let (cases, is_ours) = cases();
    let least = if is_ours { 94 } else { 1 };
    assert!(cases.len() >= least, "only {} cases were found", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let name = case["name"].as_str().expect("a name");
        let known = DIFFERENT.iter().any(|(different, _)| *different == name);
        match (check(case), known) {
            (Ok(()), false) | (Err(_), true) => {}
            (Ok(()), true) => wrong.push(format!("{name}: no longer differs, unlist it")),
            (Err(difference), false) => wrong.push(format!("{name}: {difference}")),
        }
    }
    println!("{} of {} config cases pass", cases.len() - wrong.len(), cases.len());
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// The cases, and whether they are those that come with the project.
fn cases() -> (Vec<Value>, bool) {
    #[expect(clippy::disallowed_methods, reason = "a test reads its environment itself")]
    let named = std::env::var("GOLDEN_DIR").ok().map(PathBuf::from);
    let is_ours = named.is_none();
    let ours = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let file = named.unwrap_or_else(ours).join("config_cases.json");
    let text = std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    (serde_json::from_str(&text).expect("a list of cases"), is_ours)
}

fn check(case: &Value) -> Result<(), String> {
    let file = |name: &str, key: &str| {
        let bytes = case[key].as_str()?.as_bytes().to_vec();
        Some(Source { name: name.into(), bytes })
    };
    let sources: Vec<_> =
        file("f.yaml", "yaml").into_iter().chain(file("g.yaml", "yaml2")).collect();
    let options = Options {
        merge_domains: case["merge_domain_config"].as_bool().unwrap_or(false),
        ..Options::default()
    };
    let book = match (parse(&sources, &options), case["error"].as_str()) {
        (Err(error), Some(expected)) => return same_text(&error, expected),
        (Err(error), None) => return Err(format!("refused: {error}")),
        (Ok(_), Some(expected)) => return Err(format!("accepted, not refused with {expected}")),
        (Ok(book), None) => book,
    };
    let domain = case["lookup_domain"].as_str().ok_or("no domain")?;
    for lookup in case["lookups"].as_array().into_iter().flatten() {
        let pairs: Vec<(&str, &str)> = lookup["descriptor"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|pair| Some((pair[0].as_str()?, pair[1].as_str()?)))
            .collect();
        let entries: Vec<_> = pairs.iter().map(|&(key, value)| Entry { key, value }).collect();
        let found = book.find(domain, &entries);
        let explained = book.explain(domain, &entries);
        if found.map(|found| &found.rule.id) != explained.as_ref().map(|found| &found.rule.id) {
            return Err(format!("{pairs:?}: find and explain disagree"));
        }
        same_match(explained.as_ref(), lookup).map_err(|what| format!("{pairs:?}: {what}"))?;
    }
    Ok(())
}

/// The text of the reference, up to the part of its YAML library.
fn same_text(error: &Error, expected: &str) -> Result<(), String> {
    let ours = format!("{}: {}", error.file, error.reason);
    let same = match expected.split_once("yaml: ") {
        Some((before, _)) => ours.starts_with(before),
        None => ours == expected,
    };
    let is_placed = error.at.is_some() || matches!(error.reason, Reason::EmptyDomain);
    if same && is_placed {
        return Ok(());
    }
    Err(format!("refused with {error}, not with {expected}"))
}

fn same_match(found: Option<&Match<'_>>, lookup: &Value) -> Result<(), String> {
    let is_expected = lookup["match"].as_bool().unwrap_or(false);
    let matched = found.is_some();
    let Some(found) = found.filter(|_| is_expected) else {
        return if matched == is_expected { Ok(()) } else { Err(format!("matched: {matched}")) };
    };
    let quota = found.rule.limits.first();
    let patterns: Vec<_> = found.steps.iter().filter_map(|step| step.shared.as_deref()).collect();
    let ours = serde_json::json!({
        "requests_per_unit": quota.map_or(0, Quota::limit),
        "unit": quota.map_or("UNKNOWN", |quota| unit(quota.window().as_secs_ceil())),
        "stats_key": found.stats_key,
        "unlimited": quota.is_none(),
        "limit_name": found.rule.name.as_deref().unwrap_or(""),
        "share_pattern": patterns,
    });
    let defaults = serde_json::json!({ "unlimited": false, "limit_name": "", "share_pattern": [] });
    for (key, ours) in ours.as_object().into_iter().flatten() {
        let theirs = lookup.get(key).unwrap_or_else(|| &defaults[key]);
        if theirs != ours {
            return Err(format!("{key} is {ours}, not {theirs}"));
        }
    }
    Ok(())
}

fn unit(secs: u64) -> &'static str {
    match secs {
        1 => "SECOND",
        60 => "MINUTE",
        3_600 => "HOUR",
        86_400 => "DAY",
        604_800 => "WEEK",
        2_592_000 => "MONTH",
        31_536_000 => "YEAR",
        _ => "UNKNOWN",
    }
}

//! Errors in a rule file: file, line, column, key, fact, advice.

use tidegate_limiter::policy::{Mode, Scope};
use tidegate_rules::Defaults;
use tidegate_rules::load::{Options, Source, parse};

/// Errors in one `rate_limit`, and their messages.
#[rustfmt::skip]
const LIMITS: &[(&str, &str)] = &[
    (
        "{unit: fortnight, requests_per_unit: 1}",
        "f.yaml:4:22: unit: invalid rate limit unit 'fortnight'; use second, minute, hour, day, week, month or year, or `window: 90s` instead",
    ),
    (
        "{requests_per_unit: 1}",
        "f.yaml:4:15: unit: invalid rate limit unit ''; use second, minute, hour, day, week, month or year, or `window: 90s` instead",
    ),
    (
        "{window: 90, requests_per_unit: 1}",
        "f.yaml:4:24: window: '90' is no duration; write a number with ms, s, m, h, d or w, for example 90s",
    ),
    (
        "{window: 500ms, requests_per_unit: 1}",
        "f.yaml:4:24: window 500ms is outside 1s to 400d",
    ),
    (
        "{window: 0ms, requests_per_unit: 1, algorithm: first_hit_window}",
        "f.yaml:4:24: window 0s is outside 1ms to 400d",
    ),
    (
        "{window: 401d, requests_per_unit: 1}",
        "f.yaml:4:24: window 401d is outside 1s to 400d",
    ),
    (
        "{unit: minute, window: 90s, requests_per_unit: 1}",
        "f.yaml:4:38: window: unit and window exclude each other; keep one of them",
    ),
    (
        "{unit: minute, unit_multiplier: 0, requests_per_unit: 1}",
        "f.yaml:4:47: unit_multiplier: 0 is outside 1 to 4294967295",
    ),
    (
        "{unit: year, unit_multiplier: 2, requests_per_unit: 1}",
        "f.yaml:4:45: unit_multiplier: window 730d is outside 1s to 400d",
    ),
    (
        "{unit: year, unit_multiplier: 4294967295, requests_per_unit: 1}",
        "f.yaml:4:45: unit_multiplier: window 18446744073709551615ns is outside 1s to 400d",
    ),
    (
        "{window: 90s, unit_multiplier: 5, requests_per_unit: 1}",
        "f.yaml:4:46: unit_multiplier: multiplies a unit, and there is a window; keep one of them",
    ),
    (
        "{unit_multiplier: 5, requests_per_unit: 1}",
        "f.yaml:4:15: unit: invalid rate limit unit ''; use second, minute, hour, day, week, month or year, or `window: 90s` instead",
    ),
    (
        "{unit_multiplier: 5, unlimited: true}",
        "f.yaml:4:33: unit_multiplier: should not specify rate limit unit when unlimited; remove unit and window, or unlimited",
    ),
    (
        "{unit: minute, requests_per_unit: 10, soft_limit: 100%}",
        "f.yaml:4:65: soft_limit: '100%' is neither a part of the limit, 0% to 99%, nor a number below 10; write `soft_limit: 80%`, for example",
    ),
    (
        "{unit: minute, requests_per_unit: 10, soft_limit: 10}",
        "f.yaml:4:65: soft_limit: '10' is neither a part of the limit, 0% to 99%, nor a number below 10; write `soft_limit: 80%`, for example",
    ),
    (
        "{unit: minute, requests_per_unit: 10, soft_limit: most}",
        "f.yaml:4:65: soft_limit: 'most' is neither a part of the limit, 0% to 99%, nor a number below 10; write `soft_limit: 80%`, for example",
    ),
    (
        "{unit: minute, requests_per_unit: '1'}",
        "f.yaml:4:49: requests_per_unit: error loading config file: expected an integer, found the text '1'; write an integer here",
    ),
    (
        "{unit: minute, requests_per_unit: -1}",
        "f.yaml:4:49: requests_per_unit: -1 is outside 0 to 4294967295",
    ),
    (
        "{unit: minute, requests_per_unit: 4294967296}",
        "f.yaml:4:49: requests_per_unit: 4294967296 is outside 0 to 4294967295",
    ),
    (
        "{unit: minute, requests_per_unit: 1.5}",
        "f.yaml:4:49: requests_per_unit: error checking config; 1.5 is no integer; put it in quotes if it is meant as text",
    ),
    (
        "{unit: minute, reqests_per_unit: 1}",
        "f.yaml:4:30: config error, unknown key 'reqests_per_unit'; did you mean 'requests_per_unit'?",
    ),
    (
        "{unit: minute, requests_per_unit: 1, algorithm: tokenbucket}",
        "f.yaml:4:63: algorithm: 'tokenbucket' is not one of fixed_window, sliding_window_log, sliding_window_counter, token_bucket, leaky_bucket, gcra, first_hit_window",
    ),
    (
        "{unit: minute, requests_per_unit: 1, burst: 2}",
        "f.yaml:4:59: burst is for token_bucket, leaky_bucket and gcra, not for fixed_window",
    ),
    (
        "{unit: minute, requests_per_unit: 1, algorithm: gcra, burst: 0}",
        "f.yaml:4:76: burst 0 would deny every hit; omit it or set at least 1",
    ),
    (
        "{unit: minute, requests_per_unit: 1, sub_windows: 6}",
        "f.yaml:4:65: sub_windows is for sliding_window_counter, not for fixed_window",
    ),
    (
        "{unit: minute, requests_per_unit: 1, algorithm: sliding_window_counter, sub_windows: 61}",
        "f.yaml:4:100: sub_windows: 61 is outside 1 to 60",
    ),
    (
        "{unit: minute, requests_per_unit: 1, queue: 5}",
        "f.yaml:4:59: queue is for leaky_bucket, not for fixed_window",
    ),
    (
        "{unit: minute, requests_per_unit: 9, algorithm: leaky_bucket, queue: 5, burst: 2}",
        "f.yaml:4:94: burst: queue and burst are mutually exclusive: a queue releases hits one by one",
    ),
    (
        "{unit: minute, requests_per_unit: 10001, algorithm: sliding_window_log}",
        "f.yaml:4:49: requests_per_unit: sliding_window_log stores every hit: limit 10001 is larger than 10000",
    ),
    (
        "{unit: minute, unlimited: true}",
        "f.yaml:4:22: unit: should not specify rate limit unit when unlimited; remove unit and window, or unlimited",
    ),
    (
        "{window: 90s, unlimited: true}",
        "f.yaml:4:24: window: should not specify rate limit unit when unlimited; remove unit and window, or unlimited",
    ),
    (
        "{unlimited: 'true'}",
        "f.yaml:4:27: unlimited: error loading config file: expected true or false, found the text 'true'; write true or false here",
    ),
    (
        "{unit: minute, requests_per_unit: 1, mode: sloppy}",
        "f.yaml:4:58: mode: 'sloppy' is not one of strict, leased, eventual",
    ),
    (
        "{unit: minute, requests_per_unit: 1, mode: eventual, algorithm: gcra}",
        "f.yaml:4:79: algorithm: gcra cannot be counted in mode eventual; use fixed_window or sliding_window_counter, or set mode: strict",
    ),
    (
        "{unit: minute, requests_per_unit: 1, mode: eventual, algorithm: first_hit_window}",
        "f.yaml:4:79: algorithm: first_hit_window cannot be counted in mode eventual; use fixed_window or sliding_window_counter, or set mode: strict",
    ),
    (
        "{unit: minute, requests_per_unit: 1, mode: eventual, scope: global}",
        "f.yaml:4:75: scope global is for strict and leased rules; all regions share an eventual one; remove scope, or set mode: strict or leased",
    ),
    (
        "{unit: minute, requests_per_unit: 1, on_unavailable: maybe}",
        "f.yaml:4:68: on_unavailable: 'maybe' is not one of allow, deny, local",
    ),
    (
        "{unit: minute, requests_per_unit: 1, replaces: [{name: ''}]}",
        "f.yaml:4:70: name: should not have an empty replaces entry; give it the name of a rule, `- name: OTHER`",
    ),
    (
        "{unit: minute, requests_per_unit: 1, name: n, replaces: [{name: n}]}",
        "f.yaml:4:79: name: replaces should not contain name of same descriptor; a rule replaces other rules; remove its own name",
    ),
    (
        "{unit: minute, requests_per_unit: 1, key: x, burst_size: 1}",
        "f.yaml:4:60: config error, unknown key 'burst_size'; known here: unit, requests_per_unit, unlimited, name, replaces, algorithm, window, unit_multiplier, soft_limit, burst, sub_windows, queue, mode, scope, on_unavailable, durability",
    ),
    (
        "[]",
        "f.yaml:4:15: rate_limit: a list of limits holds 1 to 8, not 0; give 1 to 8 limits, or leave rate_limit out",
    ),
    (
        "[{unit: minute, requests_per_unit: 1}, {unlimited: true}]",
        "f.yaml:4:66: unlimited stands in a list of limits; remove it, or the other limits",
    ),
    (
        "[{unit: minute, requests_per_unit: 1}, {window: 60s, requests_per_unit: 2}]",
        "f.yaml:4:63: window: two limits of one rule have the same algorithm and the same window; keep the smaller one: the other never refuses first",
    ),
    (
        "[{unit: minute, requests_per_unit: 1, mode: strict}, {unit: hour, mode: eventual}]",
        "f.yaml:4:87: mode: is given twice for one rule, and differently; keep one of them",
    ),
    (
        "[1]",
        "f.yaml:4:16: config error, yaml file contains list of type other than map: 1; only descriptors, rate_limit and replaces take lists, and those are of mappings",
    ),
    (
        "5",
        "f.yaml:4:15: rate_limit: error loading config file: expected a mapping, found the number 5; write a mapping here",
    ),
];

/// Mistakes elsewhere.
#[rustfmt::skip]
const FILES: &[(&str, &str)] = &[
    (
        "",
        "f.yaml: domain: config file cannot have empty domain; begin the file with `domain: NAME`",
    ),
    (
        "descriptors: []",
        "f.yaml:1:1: domain: config file cannot have empty domain; begin the file with `domain: NAME`",
    ),
    (
        "[]",
        "f.yaml:1:1: error loading config file: expected a mapping, found a list; write a mapping here",
    ),
    (
        "hello",
        "f.yaml:1:1: error loading config file: expected a mapping, found the text 'hello'; write a mapping here",
    ),
    (
        "domain: ''",
        "f.yaml:1:9: domain: config file cannot have empty domain; begin the file with `domain: NAME`",
    ),
    (
        "domain: [d]",
        "f.yaml:1:10: config error, yaml file contains list of type other than map: d; only descriptors, rate_limit and replaces take lists, and those are of mappings",
    ),
    (
        "domain: {key: d}",
        "f.yaml:1:9: domain: error loading config file: expected a text, found a mapping; write a text here",
    ),
    (
        "domain: d\ndescriptors: {key: a}",
        "f.yaml:2:14: descriptors: error loading config file: expected a list of descriptors, found a mapping; write a list of descriptors here",
    ),
    (
        "domain: d\ndescriptors:\n- value: a",
        "f.yaml:3:3: key: descriptor has empty key; give it `key: NAME`",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n- key: a",
        "f.yaml:4:8: key: duplicate descriptor composite key 'd.a'; merge the two, or remove one",
    ),
    (
        "domain: d\ndescriptors:\n- key: p\n  descriptors:\n  - {key: a, value: b}\n  - {key: a, value: b}",
        "f.yaml:6:11: key: duplicate descriptor composite key 'd.p.a_b'; merge the two, or remove one",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  vlaue: b",
        "f.yaml:4:3: config error, unknown key 'vlaue'; did you mean 'value'?",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  burst: 5",
        "f.yaml:4:3: burst: does not belong in a descriptor; move it to rate_limit",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  shadow_mode: 1",
        "f.yaml:4:16: shadow_mode: error loading config file: expected true or false, found the number 1; write true or false here",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  share_threshold: true",
        "f.yaml:4:20: share_threshold can only be used with wildcard values (containing '*'), but found key 'a'; remove share_threshold, or end the value in *",
    ),
    (
        "domain: d\nmode: strict",
        "f.yaml:2:1: mode: does not belong in the top of the file; move it to a descriptor or rate_limit",
    ),
    (
        "domain: d\nratelimit: 5",
        "f.yaml:2:1: config error, unknown key 'ratelimit'; did you mean 'rate_limit' (which belongs in a descriptor)?",
    ),
    (
        "domain: d\n1: x",
        "f.yaml:2:1: config error, key is not of type string: 1; keys are words, such as domain, descriptors and key",
    ),
    (
        "domain: d\n- x",
        "f.yaml:2:3: error loading config file: while parsing a block mapping, did not find expected key; correct the YAML",
    ),
    (
        "domain: d\n\tx: 1",
        "f.yaml:1:9: error loading config file: while scanning a plain scalar, found a tab; correct the YAML",
    ),
    (
        "domain: *nobody",
        "f.yaml:1:9: error loading config file: while parsing node, found unknown anchor; correct the YAML",
    ),
    (
        "domain: &a [*a]",
        "f.yaml:1:13: error loading config file: an alias is inside the node that it refers to; use fewer or simpler anchors and aliases",
    ),
    (
        "domain: \"\\q\"",
        "f.yaml:1:9: error loading config file: while parsing a quoted scalar, found unknown escape character; correct the YAML",
    ),
];

#[test]
fn every_error_in_a_limit_has_its_position_and_advice() {
    for (text, expected) in LIMITS {
        let file = format!("domain: d\ndescriptors:\n- key: a\n  rate_limit: {text}\n");
        assert_eq!(refusal(&[("f.yaml", &file)], &Options::default()), *expected, "{text}");
    }
}

#[test]
fn every_error_in_a_file_has_its_position_and_advice() {
    for (text, expected) in FILES {
        assert_eq!(refusal(&[("f.yaml", text)], &Options::default()), *expected, "{text}");
    }
}

#[test]
fn a_domain_in_two_files_is_refused_unless_domains_may_be_merged() {
    let files = [("a.yaml", "domain: d"), ("b.yaml", "domain: d")];
    assert_eq!(
        refusal(&files, &Options::default()),
        "b.yaml:1:9: domain: duplicate domain 'd' in config file; \
         keep the rules of a domain in one file, or allow domains to be merged"
    );
    let merge = Options { merge_domains: true, ..Options::default() };
    assert!(parse(&sources(&files), &merge).is_ok());
}

#[test]
fn the_default_mode_binds_rules_that_name_none() {
    let defaults = Defaults { mode: Mode::Eventual, ..Defaults::default() };
    let options = Options { defaults, ..Options::default() };
    let text = "{domain: d, descriptors: [{key: a, rate_limit: {unit: day, algorithm: gcra}}]}";
    assert_eq!(
        refusal(&[("f.yaml", text)], &options),
        "f.yaml:1:71: algorithm: gcra cannot be counted in mode eventual; \
         use fixed_window or sliding_window_counter, or set mode: strict"
    );
}

#[test]
fn names_longer_than_a_request_may_carry_are_refused() {
    let text = format!("domain: d\ndescriptors:\n- key: {}", "k".repeat(1025));
    assert_eq!(
        refusal(&[("f.yaml", &text)], &Options::default()),
        "f.yaml:3:8: key: is longer than 1024 bytes; no request carries that much; shorten it"
    );
}

#[test]
fn a_small_file_cannot_make_a_book_of_endless_names() {
    let mut text = String::from("domain: d\nmetadata: &r {unit: day, requests_per_unit: 1}\n");
    let key = "k".repeat(1_000);
    for depth in 0..30 {
        let indent = "  ".repeat(depth);
        text.extend([&indent, "descriptors:\n", &indent, "- key: ", &key, "\n"]);
    }
    let indent = "  ".repeat(30);
    text.extend([&indent, "descriptors:\n"]);
    for leaf in 0..10_000 {
        text.extend([&indent, "- {key: l", &leaf.to_string(), ", rate_limit: *r}\n"]);
    }
    let shown = refusal(&[("f.yaml", &text)], &Options::default());
    assert!(
        shown.ends_with("the rules hold names of more than 64 MiB; use fewer or shorter rules")
    );
}

#[test]
fn what_has_no_effect_is_accepted_with_a_warning() {
    let text = "
domain: d
descriptors:
  - key: a
    value: x*
    value: y*
    unit: minute
    quota_mode: true
    share_threshold: true
    metadata: {any: [thing, 1.5]}
    rate_limit: {unit: minute, shadow_mode: true, replaces: [{name: other}]}
  - {key: b, rate_limit: {unlimited: true, soft_limit: 1}}
";
    let book = parse(&sources(&[("f.yaml", text)]), &Options::default()).unwrap();
    let shown: Vec<_> = book.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "f.yaml:6:5: value: is written twice; the last one counts",
            "f.yaml:7:5: unit: has no effect in a descriptor; it belongs in rate_limit",
            "f.yaml:11:32: shadow_mode: has no effect in rate_limit; it belongs in a descriptor",
            "f.yaml:11:17: requests_per_unit: is missing, which means 0: every hit is refused",
            "f.yaml:12:56: soft_limit: has no effect: nothing is limited here",
        ]
    );
}

#[test]
fn nothing_is_inherited_and_the_error_mentions_it() {
    let text = "
domain: d
descriptors:
  - key: a
    mode: eventual
    shadow_mode: true
    rate_limit:
    descriptors:
      - {key: b, rate_limit: {unit: day, requests_per_unit: 1}}
";
    let book = parse(&sources(&[("f.yaml", text)]), &Options::default()).expect("a book");
    let shown: Vec<_> = book.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "f.yaml:5:11: mode: has no effect: this descriptor has no rate_limit of its own",
            "f.yaml:6:18: shadow_mode: has no effect: this descriptor has no rate_limit of its own",
            "f.yaml:7:15: rate_limit: is empty: nothing is limited here",
        ]
    );
    assert!(book.rules().all(|rule| rule.mode == Mode::Strict && !rule.shadow));
}

#[test]
fn a_policy_of_one_limit_that_applies_to_the_others_as_well_is_accepted_with_a_warning() {
    let text = "
domain: d
descriptors:
  - key: a
    rate_limit:
      - {unit: second, requests_per_unit: 1, on_unavailable: deny}
      - {unit: day, requests_per_unit: 9, on_unavailable: deny, scope: global}
  - key: b
    scope: global
    rate_limit: [{unit: second, requests_per_unit: 1}, {unit: day, requests_per_unit: 9}]
";
    let book = parse(&sources(&[("f.yaml", text)]), &Options::default()).expect("a book");
    let shown: Vec<_> = book.warnings().iter().map(ToString::to_string).collect();
    let warning = "scope: applies to all limits of this descriptor; write it there";
    assert_eq!(shown, [format!("f.yaml:7:72: {warning}")]);
    assert!(book.rules().all(|rule| rule.scope == Scope::Global));
}

fn refusal(files: &[(&str, &str)], options: &Options) -> String {
    match parse(&sources(files), options) {
        Ok(_) => panic!("accepted: {files:?}"),
        Err(error) => error.to_string(),
    }
}

fn sources(files: &[(&str, &str)]) -> Vec<Source> {
    files
        .iter()
        .map(|(name, text)| Source { name: (*name).into(), bytes: text.as_bytes().into() })
        .collect()
}

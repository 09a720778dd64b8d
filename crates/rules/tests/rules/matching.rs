//! Which rule matches a request, and what the rule contains.

use proptest::prelude::*;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::soft_limit::SoftLimit;
use tidegate_limiter::units::Span;
use tidegate_rules::book::{Book, Rule};
use tidegate_rules::load::{Options, Source, parse};
use tidegate_rules::rule::{InFlightLimits, Mode, OnUnavailable, Scope};

#[test]
fn a_key_and_its_value_are_never_joined() {
    let book = book(
        "
domain: d
descriptors:
  - {key: a, value: b_c, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: a_b, value: c, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: x_y, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: p, value: 'q_*', rate_limit: {unit: day, requests_per_unit: 4}}
",
    );
    for (key, value, limit) in [
        ("a", "b_c", Some(1)),
        ("a_b", "c", Some(2)),
        ("x", "y", None),
        ("x_y", "", Some(3)),
        ("p", "q_1", Some(4)),
        ("p_q", "1", None),
    ] {
        assert_eq!(limit_of(&book, &[(key, value)]), limit, "{key}={value}");
    }
    let ids: Vec<_> = book.rules().map(|rule| &*rule.id).collect();
    assert_eq!(ids, ["d.a_b_c", "d.a_b_c#2", "d.p_q_*", "d.x_y"]);
}

#[test]
fn requests_in_flight_are_limited_beside_a_rate_or_alone() {
    let with = |keys: &str| book(&format!("domain: d\ndescriptors: [{{key: a, {keys}}}]"));
    let rate = "rate_limit: {unit: day, requests_per_unit: 1}";
    let found = |book: &Book| {
        let found = book.find("d", &[Entry { key: "a", value: "x" }]).expect("a rule");
        (found.rule.in_flight, found.rule.limits.len())
    };
    let alone = with("concurrency: 20, on_unavailable: deny");
    assert_eq!(found(&alone), (InFlightLimits { everywhere: Some(20), at_node: None }, 0));
    assert!(alone.limits_in_flight() && alone.warnings().is_empty());
    let beside = with(&format!("{rate}, concurrency: 20, node_concurrency: 5"));
    assert_eq!(found(&beside), (InFlightLimits { everywhere: Some(20), at_node: Some(5) }, 1));
    let without = with(rate);
    assert!(!without.limits_in_flight());
    assert_ne!(beside.fingerprint(), without.fingerprint());
    let text = "domain: d\ndescriptors: [{key: a, concurrency: 0}]";
    let source = Source { name: "f.yaml".into(), bytes: text.into() };
    let error = parse(&[source], &Options::default()).expect_err("nothing could ever pass");
    assert!(error.to_string().contains("0 is outside 1 to"), "{error}");
}

#[test]
fn ids_are_unique_even_where_a_number_is_taken() {
    let book = book(
        "
domain: d
descriptors:
  - {key: a, value: b_c, rate_limit: {unit: day}}
  - {key: a, value: 'b_c#2', rate_limit: {unit: day}}
  - {key: a_b, value: c, rate_limit: {unit: day}}
",
    );
    let ids: Vec<_> = book.rules().map(|rule| &*rule.id).collect();
    assert_eq!(ids, ["d.a_b_c", "d.a_b_c#2", "d.a_b_c#3"]);
}

#[test]
fn every_key_of_ours_reaches_the_rule() {
    let text = "
domain: d
descriptors:
  - key: plain
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: counter
    rate_limit: {window: 90s, requests_per_unit: 10, algorithm: sliding_window_counter, sub_windows: 6}
  - key: queue
    rate_limit: {unit: second, requests_per_unit: 10, algorithm: leaky_bucket, queue: 0}
  - key: bucket
    mode: strict
    scope: global
    on_unavailable: deny
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 10, algorithm: token_bucket, burst: 3, name: n}
  - key: edge
    rate_limit: {unit: minute, requests_per_unit: 10, mode: eventual, on_unavailable: allow}
  - key: several
    rate_limit:
      - {unit: second, requests_per_unit: 1}
      - {unit: minute, requests_per_unit: 10, algorithm: gcra}
  - key: first-hit
    mode: leased
    rate_limit:
      - {window: 500ms, requests_per_unit: 10, algorithm: first_hit_window}
      - {window: 1m, requests_per_unit: 100, algorithm: first_hit_window}
  - key: free
    rate_limit: {unlimited: true}
  - key: soft
    rate_limit:
      - {unit: minute, unit_multiplier: 5, requests_per_unit: 9, soft_limit: 80%}
      - {unit: hour, requests_per_unit: 10}
      - {unit: day, requests_per_unit: 10, algorithm: gcra, burst: 50, soft_limit: 49}
";
    let book = book(text);
    let rule = |key| book.find("d", &[Entry { key, value: "v" }]).unwrap().rule;
    let policy = |rule: &Rule| (rule.mode, rule.scope, rule.on_unavailable, rule.shadow);

    let plain = rule("plain");
    assert_eq!(policy(plain), (Mode::Strict, Scope::Region, OnUnavailable::Local, false));
    assert_eq!(plain.limits[0].algorithm(), Algorithm::FixedWindow);
    assert_eq!((plain.limits[0].window(), plain.limits[0].burst()), (Span::from_secs(60), 10));

    let counter = rule("counter").limits[0];
    assert_eq!((counter.window(), counter.sub_windows()), (Span::from_secs(90), 6));
    assert_eq!(rule("queue").limits[0].queue(), Some(0));

    let bucket = rule("bucket");
    assert_eq!(policy(bucket), (Mode::Strict, Scope::Global, OnUnavailable::Deny, true));
    assert_eq!((bucket.limits[0].burst(), bucket.name.as_deref()), (3, Some("n")));

    let edge = rule("edge");
    assert_eq!(policy(edge), (Mode::Eventual, Scope::Region, OnUnavailable::Allow, false));
    assert_eq!(edge.limits[0].algorithm(), Algorithm::SlidingWindowCounter);

    let several: Vec<_> = rule("several").limits.iter().map(Quota::limit).collect();
    assert_eq!(several, [1, 10]);
    let first_hit = rule("first-hit");
    assert!(first_hit.limits.iter().all(|it| it.algorithm() == Algorithm::FirstHitWindow));
    assert_eq!(first_hit.limits[0].window(), Span::from_millis(500));
    assert!(rule("free").limits.is_empty());

    let soft = rule("soft");
    assert_eq!(soft.limits[0].window(), Span::from_secs(300));
    let soft: Vec<_> = soft.soft_limits.iter().map(|soft| soft.map(SoftLimit::get)).collect();
    assert_eq!(soft, [Some(7), None, Some(49)]);
    assert!(plain.soft_limits.is_empty());
}

#[test]
fn the_fingerprint_is_of_the_meaning_of_the_rules() {
    let one = "domain: d\ndescriptors:\n- {key: a, value: 'x*', rate_limit: {unit: minute, requests_per_unit: 1}}\n- {key: a, value: '*y', rate_limit: {unit: hour, requests_per_unit: 2}}\n";
    let other = "domain: e\n";
    let base = books(&[("1", one), ("2", other)]).fingerprint();
    // A number that changes here is a number on which nodes of two versions disagree.
    assert_eq!(base, 951_820_702_403_359_413, "the canonical form changed: raise its version");

    let spelled = one
        .replace("minute", "MINUTE # comment\n ")
        .replace("unit: hour", "unit: minute, unit_multiplier: 60");
    assert_eq!(books(&[("z", other), ("y", &spelled)]).fingerprint(), base);
    let spelled = spelled.replace("unit: minute, unit_multiplier: 60", "window: 60m");
    assert_eq!(books(&[("z", other), ("y", &spelled)]).fingerprint(), base);

    let turned = "domain: d\ndescriptors:\n- {key: a, value: '*y', rate_limit: {unit: hour, requests_per_unit: 2}}\n- {key: a, value: 'x*', rate_limit: {unit: minute, requests_per_unit: 1}}\n";
    let others = [
        turned.to_owned(),
        one.replace("requests_per_unit: 2", "requests_per_unit: 3"),
        one.replace("unit: hour", "unit: day"),
        one.replace("unit: hour", "unit: hour, algorithm: gcra"),
        one.replace("unit: hour", "unit: hour, mode: eventual"),
        one.replace("unit: hour", "unit: hour, on_unavailable: deny"),
        one.replace("unit: hour", "unit: hour, name: n"),
        one.replace("unit: hour", "unit: hour, soft_limit: 1"),
        one.replace("unit: hour", "unit: hour, soft_limit: 0"),
        one.replace("unit: hour", "unit: hour, unit_multiplier: 2"),
        one.replace("key: a, value: '*y'", "key: a, shadow_mode: true, value: '*y'"),
        one.replace("domain: d", "domain: f"),
    ];
    for text in others {
        assert_ne!(books(&[("1", &text), ("2", other)]).fingerprint(), base, "{text}");
    }
    assert_ne!(books(&[("1", one)]).fingerprint(), base);
}

#[test]
fn an_unmatched_request_is_not_limited() {
    let book = book("{domain: d, descriptors: [{key: a, rate_limit: {unit: day}}]}");
    assert!(book.find("x", &[Entry { key: "a", value: "" }]).is_none());
    assert!(book.find("d", &[]).is_none());
    assert!(book.find("d", &[Entry { key: "", value: "a" }]).is_none());
    assert!(Book::default().find("", &[]).is_none());
    assert!(book.has_domain("d") && !book.has_domain("x"));
}

// === the walk, against a slow model of it ===

/// A descriptor: key, value, whether it has a rule, what is below it.
#[derive(Clone, Debug)]
struct Node(&'static str, &'static str, bool, Vec<Node>);

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 500, ..Default::default() })]

    /// The model joins keys and values as envoyproxy/ratelimit does; no key here holds a `_`, so
    /// joined and apart mean the same.
    #[test]
    fn find_matches_as_envoy_ratelimit_does(
        tree in level(),
        entries in prop::collection::vec((key(), request_value()), 0..4),
    ) {
        let mut text = String::from("domain: d\n");
        write_level(&mut text, &tree, 0);
        let book = book(&text);
        let pairs: Vec<_> = entries.iter().map(|&(key, value)| Entry { key, value }).collect();
        let found = book.find("d", &pairs).map(|found| found.rule.id.to_string());
        prop_assert_eq!(found, walk(&tree, &entries), "{}", text);
    }
}

fn walk(tree: &[Node], entries: &[(&str, &str)]) -> Option<String> {
    let mut id = String::from("d");
    let mut level = tree;
    for (at, (key, value)) in entries.iter().enumerate() {
        let wanted = format!("{key}_{value}");
        let joined = |node: &&Node| match node.1 {
            "" => node.0.to_owned(),
            value => format!("{}_{value}", node.0),
        };
        let fits = |pattern: String| {
            let parts: Vec<_> = pattern.splitn(2, '*').map(str::to_owned).collect();
            parts.len() == 2
                && wanted.len() >= pattern.len() - 1
                && wanted.starts_with(&parts[0])
                && wanted.ends_with(&parts[1])
        };
        let node = level
            .iter()
            .find(|node| joined(node) == wanted)
            .or_else(|| level.iter().find(|node| fits(joined(node))))
            .or_else(|| level.iter().find(|node| joined(node) == *key))?;
        id = format!("{id}.{}", joined(&node));
        if at + 1 == entries.len() {
            return node.2.then_some(id);
        }
        level = &node.3;
    }
    None
}

fn level() -> impl Strategy<Value = Vec<Node>> {
    let leaf = (key(), rule_value(), any::<bool>()).prop_map(|(k, v, r)| Node(k, v, r, Vec::new()));
    let node = leaf.prop_recursive(3, 24, 4, |inner| {
        (key(), rule_value(), any::<bool>(), prop::collection::vec(inner, 0..4))
            .prop_map(|(k, v, r, below)| Node(k, v, r, distinct(below)))
    });
    prop::collection::vec(node, 0..5).prop_map(distinct)
}

/// Drops the descriptors that are there already: a file with them is refused.
fn distinct(nodes: Vec<Node>) -> Vec<Node> {
    let mut kept: Vec<Node> = Vec::new();
    for node in nodes {
        if kept.iter().all(|other| (other.0, other.1) != (node.0, node.1)) {
            kept.push(node);
        }
    }
    kept
}

fn key() -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(vec!["a", "b", "ab"])
}

fn rule_value() -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(vec!["", "x", "xy", "*", "x*", "*y", "x*y"])
}

fn request_value() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "x", "y", "xy", "xzy", "*", "x*", "_x"])
}

fn write_level(text: &mut String, nodes: &[Node], depth: usize) {
    let indent = "    ".repeat(depth);
    *text += &indent;
    text.push_str("descriptors:");
    text.push_str(if nodes.is_empty() { " []\n" } else { "\n" });
    for Node(key, value, has_rule, below) in nodes {
        for part in [&indent, "  - key: ", key, "\n", &indent, "    value: '", value, "'\n"] {
            text.push_str(part);
        }
        if *has_rule {
            *text += &indent;
            text.push_str("    rate_limit: {unit: day, requests_per_unit: 1}\n");
        }
        write_level(text, below, depth + 1);
    }
}

fn limit_of(book: &Book, entries: &[(&str, &str)]) -> Option<u32> {
    let entries: Vec<_> = entries.iter().map(|&(key, value)| Entry { key, value }).collect();
    book.find("d", &entries)?.rule.limits.first().map(Quota::limit)
}

fn book(text: &str) -> Book {
    books(&[("f.yaml", text)])
}

fn books(files: &[(&str, &str)]) -> Book {
    let source = |(name, text): &(&str, &str)| Source {
        name: (*name).into(),
        bytes: text.as_bytes().into(),
    };
    let sources: Vec<_> = files.iter().map(source).collect();
    parse(&sources, &Options::default()).unwrap_or_else(|error| panic!("{error}"))
}

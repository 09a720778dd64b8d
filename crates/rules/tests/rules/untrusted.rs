//! Whatever stands in a rule file, loading it ends in a book or an error.

use proptest::prelude::*;
use tidegate_rules::load::{Options, Source, parse};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..Default::default() })]

    #[test]
    fn any_bytes_end_in_a_book_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        load(&bytes);
    }

    /// Lines of real rule files in any order and depth reach the parts behind the YAML reader.
    #[test]
    fn any_mixture_of_rule_file_lines_ends_in_a_book_or_an_error(
        lines in prop::collection::vec((0_usize..5, line()), 0..20),
    ) {
        let mut text = String::from("domain: d\ndescriptors:\n");
        for (depth, line) in lines {
            text.push_str(&"  ".repeat(depth));
            text.push_str(line);
            text.push('\n');
        }
        load(text.as_bytes());
    }

    #[test]
    fn any_value_anywhere_ends_in_a_book_or_an_error(key in word(), value in value()) {
        for text in [
            format!("{{domain: d, {key}: {value}}}"),
            format!("{{domain: d, descriptors: [{{key: k, {key}: {value}}}]}}"),
            format!("{{domain: d, descriptors: [{{key: k, rate_limit: {{unit: day, {key}: {value}}}}}]}}"),
            format!("{{domain: d, descriptors: [{{key: k, rate_limit: {{window: 1h, algorithm: leaky_bucket, {key}: {value}}}}}]}}"),
        ] {
            load(text.as_bytes());
        }
    }
}

#[test]
fn large_hostile_files_end_soon() {
    let mut alias_list = String::from("domain: d\nmetadata: &a [");
    alias_list += &"x,".repeat(1_000);
    alias_list += "]\ndescriptors: [";
    alias_list += &"*a,".repeat(100_000);
    let deep_keys = "? ".repeat(200_000);
    let long_line = "a: ".repeat(200_000);
    let long_scalar = format!("domain: {}", "x".repeat(4 << 20));
    let many_anchors: String =
        (0..100_000).flat_map(|n| ["- &a".into(), n.to_string(), " x\n".into()]).collect();
    let unclosed_quote = format!("domain: \"{}", "\\n".repeat(500_000));
    let flat = format!("domain: d\ndescriptors:\n{}", "- {key: a}\n".repeat(100_000));
    let merges =
        format!("metadata: &m {{a: 1}}\ndescriptors: [{{{}}}]", "<<: *m, ".repeat(100_000));
    for text in
        [alias_list, deep_keys, long_line, long_scalar, many_anchors, unclosed_quote, flat, merges]
    {
        let bytes = text.into_bytes();
        assert!(parse(&[Source { name: "f".into(), bytes }], &Options::default()).is_err());
    }
}

fn line() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "- key: a",
        "- {key: b, value: 'x*', rate_limit: *r}",
        "  value: b",
        "  rate_limit: &r {unit: minute, requests_per_unit: 5}",
        "  rate_limit:",
        "    <<: *r",
        "    unit: hour",
        "    - {window: 90s, requests_per_unit: 1}",
        "  descriptors:",
        "  shadow_mode: yes",
        "  mode: eventual",
        "---",
        "# comment",
    ])
}

fn word() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "domain",
        "key",
        "value",
        "descriptors",
        "rate_limit",
        "unit",
        "requests_per_unit",
        "window",
        "burst",
        "sub_windows",
        "queue",
        "algorithm",
        "mode",
        "scope",
        "on_unavailable",
        "unlimited",
        "name",
        "replaces",
        "shadow_mode",
        "share_threshold",
        "metadata",
        "<<",
        "nonsense",
    ])
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<u64>()
            .prop_map(|number| format!("{number}{}", ["s", "d", "h"][(number % 3) as usize])),
        "[a-z0-9_.*~'\"-]{0,12}",
        Just("[]".to_owned()),
        Just("{}".to_owned()),
        Just("[{}, {name: x}]".to_owned()),
    ]
}

fn load(bytes: &[u8]) {
    let source = Source { name: "f.yaml".into(), bytes: bytes.into() };
    match parse(&[source], &Options::default()) {
        Ok(book) => assert!(book.rules().all(|rule| !rule.id.is_empty())),
        Err(error) => assert!(error.to_string().starts_with("f.yaml:")),
    }
}

//! Rendered verdicts: golden headers and golden JSON.

use std::sync::Arc;

use http::HeaderMap;
use tidegate::decide::{CheckResponse, VerdictSource};
use tidegate::front::http::json;
use tidegate::front::{render, rls};
use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::soft_limit::SoftLimit;
use tidegate_limiter::units::Span;
use tidegate_rules::rule::{OnUnavailable, Rule};

use super::support::{admitted, answer, limited, open, refused, rule, status, unmatched};

/// The headers, one a line, in order of their names.
fn headers(answer: &CheckResponse) -> String {
    let mut headers = HeaderMap::new();
    render::headers(answer, &mut headers);
    let mut lines: Vec<_> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().expect("ASCII")))
        .collect();
    lines.sort();
    lines.join("\n")
}

fn body(answer: &CheckResponse) -> String {
    json::response(&rls::response(answer))
}

#[test]
fn an_admitted_request_has_the_remaining_hits() {
    assert_eq!(
        headers(&open()),
        "ratelimit-policy: \"login\";q=10;w=60\n\
         ratelimit: \"login\";r=7;t=12\n\
         x-ratelimit-limit: 10\n\
         x-ratelimit-remaining: 7\n\
         x-ratelimit-reset: 12"
    );
    assert_eq!(
        body(&open()),
        r#"{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"name":"login","requestsPerUnit":10,"unit":"MINUTE"},"limitRemaining":7,"durationUntilReset":"12s"}]}"#
    );
}

#[test]
fn a_refusal_has_a_retry_after_that_is_never_too_early() {
    assert_eq!(
        headers(&limited()),
        "ratelimit-policy: \"login\";q=10;w=60\n\
         ratelimit: \"login\";r=0;t=12\n\
         retry-after: 12\n\
         x-ratelimit-limit: 10\n\
         x-ratelimit-remaining: 0\n\
         x-ratelimit-reset: 12\n\
         x-ratelimit-retry-after: 12"
    );
    assert_eq!(
        body(&limited()),
        r#"{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":{"name":"login","requestsPerUnit":10,"unit":"MINUTE"},"durationUntilReset":"12s"}]}"#
    );
    for (nanos, secs) in [(0, "1"), (1, "1"), (1_000_000_000, "1"), (1_000_000_001, "2")] {
        let verdict = refused(1, Span::ZERO, Retry::After(Span::from_nanos(nanos)));
        let answer = answer(vec![status(rule(None, &[(1, 1)]), &[verdict], 0)]);
        let mut map = HeaderMap::new();
        render::headers(&answer, &mut map);
        assert_eq!(map["retry-after"], secs);
        assert_eq!(map["x-ratelimit-retry-after"], secs);
    }
}

#[test]
fn what_never_passes_has_no_retry_after() {
    let verdict = refused(10, Span::ZERO, Retry::Never);
    let never = answer(vec![status(rule(None, &[(10, 60)]), &[verdict], 0)]);
    assert_eq!(
        headers(&never),
        "ratelimit-policy: \"shop.user\";q=10;w=60\n\
         ratelimit: \"shop.user\";r=0;t=0\n\
         x-ratelimit-limit: 10\n\
         x-ratelimit-remaining: 0\n\
         x-ratelimit-reset: 0\n\
         x-ratelimit-retry-after: never"
    );
}

#[test]
fn the_headers_are_of_the_most_restrictive_descriptor() {
    let secs = Span::from_secs;
    let with = |verdict: Verdict| status(rule(None, &[(verdict.limit, 60)]), &[verdict], 0);
    let leads = |verdicts: &[Verdict]| {
        let answer = answer(verdicts.iter().copied().map(with).collect());
        render::most_restrictive(&answer).expect("a verdict").limit
    };
    let after = |limit, wait| refused(limit, secs(60), Retry::After(secs(wait)));
    // The least that is left; at equality the one that takes longer to come back.
    assert_eq!(leads(&[admitted(1, 5, secs(1)), admitted(2, 4, secs(1))]), 2);
    assert_eq!(leads(&[admitted(1, 5, secs(1)), admitted(2, 5, secs(2))]), 2);
    // A refusal before an empty limit, and the longest refusal before the others.
    assert_eq!(leads(&[admitted(1, 0, secs(99)), after(2, 1)]), 2);
    assert_eq!(leads(&[after(1, 1), after(2, 9), after(3, 5)]), 2);
    assert_eq!(leads(&[after(1, 9), refused(2, secs(1), Retry::Never)]), 2);
}

/// Clients know a policy by its name.
#[test]
fn of_the_limits_of_one_name_the_most_restrictive_is_an_item() {
    let secs = Span::from_secs;
    let user = |verdict| status(rule(Some("user"), &[(5, 60)]), &[verdict], 0);
    let refused = refused(5, secs(12), Retry::After(secs(12)));
    for verdicts in [[admitted(5, 4, secs(12)), refused], [refused, admitted(5, 4, secs(12))]] {
        let answer = answer(verdicts.map(user).into());
        let headers = headers(&answer);
        assert!(headers.contains("ratelimit-policy: \"user\";q=5;w=60\n"), "{headers}");
        assert!(headers.contains("ratelimit: \"user\";r=0;t=12\n"), "{headers}");
        assert_eq!(render::violated(&answer), ["user"]);
    }
}

#[test]
fn each_limit_of_a_rule_is_an_item() {
    let verdicts = [
        admitted(100, 57, Span::from_secs(31)),
        refused(10, Span::from_millis(900), Retry::After(Span::from_millis(300))),
    ];
    let two =
        answer(vec![unmatched(), status(rule(Some("login"), &[(100, 60), (10, 1)]), &verdicts, 1)]);
    assert_eq!(
        headers(&two),
        "ratelimit-policy: \"login-1m\";q=100;w=60, \"login-1s\";q=10;w=1\n\
         ratelimit: \"login-1m\";r=57;t=31, \"login-1s\";r=0;t=1\n\
         retry-after: 1\n\
         x-ratelimit-limit: 10\n\
         x-ratelimit-remaining: 0\n\
         x-ratelimit-reset: 1\n\
         x-ratelimit-retry-after: 1"
    );
    assert_eq!(
        body(&two),
        r#"{"overallCode":"OVER_LIMIT","statuses":[{"code":"OK"},{"code":"OVER_LIMIT","currentLimit":{"name":"login","requestsPerUnit":10,"unit":"SECOND"},"durationUntilReset":"1s"}]}"#
    );
}

#[test]
fn windows_without_a_unit_have_no_unit() {
    let verdict = admitted(10, 0, Span::from_millis(90_001));
    let odd = answer(vec![status(rule(None, &[(10, 90)]), &[verdict], 0)]);
    assert_eq!(
        body(&odd),
        r#"{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":10},"durationUntilReset":"91s"}]}"#
    );
}

#[test]
fn no_rule_and_unlimited_differ() {
    let free = answer(vec![unmatched(), status(rule(None, &[]), &[], 0)]);
    assert_eq!(headers(&free), "");
    assert_eq!(
        body(&free),
        r#"{"overallCode":"OK","statuses":[{"code":"OK"},{"code":"OK","limitRemaining":4294967295}]}"#
    );
}

#[test]
fn a_soft_limit_is_signalled_where_it_matters() {
    let verdict = admitted(10, 1, Span::ZERO);
    let soft = |shadow, verdict: &[Verdict]| {
        let mut rule = Rule { shadow, ..rule(Some("login"), &[(10, 60)]) };
        rule.soft_limits = [SoftLimit::percent(80, &rule.limits[0])].into();
        status(rule, verdict, 0)
    };
    let fallback = |on_unavailable| {
        let mut status = soft(false, &[verdict]);
        let rule = Arc::new(Rule { on_unavailable, ..(**status.rule.as_ref().unwrap()).clone() });
        (status.rule, status.source) = (Some(rule), VerdictSource::Fallback);
        status
    };
    let refusal = refused(10, Span::ZERO, Retry::After(Span::from_secs(9)));
    for (statuses, soft_limited) in [
        (vec![unmatched(), soft(false, &[verdict])], vec![1]),
        (vec![soft(false, &[admitted(10, 2, Span::ZERO)])], vec![]),
        (vec![soft(true, &[verdict])], vec![]),
        (vec![soft(false, &[verdict]), soft(false, &[refusal])], vec![]),
        (vec![soft(false, &[refusal])], vec![]),
        // Its share of the limit is used, or nothing is known.
        (vec![fallback(OnUnavailable::Local)], vec![0]),
        (vec![fallback(OnUnavailable::Allow)], vec![]),
    ] {
        let answer = answer(statuses);
        let mut map = HeaderMap::new();
        render::headers(&answer, &mut map);
        let is_signalled = map.get("x-ratelimit-soft-breach").is_some_and(|value| value == "1");
        assert_eq!(is_signalled, !soft_limited.is_empty(), "{answer:?}");
        assert_eq!(answer.soft_limited().collect::<Vec<_>>(), soft_limited, "{answer:?}");
        let metadata = rls::response(&answer).dynamic_metadata;
        assert_eq!(metadata.is_some(), is_signalled, "{answer:?}");
    }
}

#[test]
fn a_shadow_rule_adds_no_delay() {
    let mut trial = rule(Some("trial"), &[(1, 60)]);
    trial.shadow = true;
    let mut verdict = refused(1, Span::from_secs(9), Retry::After(Span::from_secs(9)));
    verdict.delay = Span::from_secs(3);
    let shadow = answer(vec![status(trial, &[verdict], 0)]);
    assert_eq!(headers(&shadow), "");
    let code = &rls::response(&shadow).statuses[0].code;
    assert_eq!(*code, i32::from(rls::message::Code::Ok));
}

#[test]
fn a_queue_names_the_longest_delay_in_milliseconds() {
    let delayed = |millis| Verdict {
        delay: Span::from_millis(millis),
        ..admitted(10, 5, Span::from_secs(1))
    };
    let queue = || rule(None, &[(10, 1)]);
    let mut verdict = delayed(1_250);
    verdict.delay = verdict.delay.min(Span::from_nanos(1_249_000_001));
    let answer = answer(vec![
        status(queue(), &[delayed(40)], 0),
        status(queue(), &[verdict], 0),
        status(queue(), &[delayed(0)], 0),
    ]);
    let mut map = HeaderMap::new();
    render::headers(&answer, &mut map);
    assert_eq!(map["x-ratelimit-delay"], "1.250");
}

#[test]
fn names_are_valid_structured_strings_of_bounded_length() {
    let policy = |name: &str| {
        let named = status(rule(Some(name), &[(10, 60)]), &[admitted(10, 5, Span::ZERO)], 0);
        let mut map = HeaderMap::new();
        render::headers(&answer(vec![named]), &mut map);
        map["ratelimit-policy"].to_str().expect("ASCII").to_owned()
    };
    assert_eq!(policy(r#"a"b\c"#), r#""a\"b\\c";q=10;w=60"#);
    assert_eq!(policy("é\r\n"), r#""%C3%A9%0D%0A";q=10;w=60"#);
    assert_eq!(policy(&"x".repeat(9_999)).len(), render::NAME_BYTES_MAX + r#""";q=10;w=60"#.len());

    let one = |n: u32| {
        let named = rule(Some(&format!("rule {n}")), &[(10, 60)]);
        status(named, &[admitted(10, 5, Span::ZERO)], 0)
    };
    let many = answer((0..100).map(one).collect());
    let mut map = HeaderMap::new();
    render::headers(&many, &mut map);
    let items = map["ratelimit"].to_str().expect("ASCII").split(", ").count();
    assert_eq!(items, render::ITEMS_MAX);
}

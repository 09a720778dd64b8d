//! Envoy's rate limit service beyond the golden cases: settings and rules that only tidegate has,
//! and requests that crash envoyproxy/ratelimit.

use serde_json::{Value, json};
use tidegate::config::Envoy;
use tidegate::decide::{CheckRequest, Decide};
use tidegate::front::rls::message::{
    Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
};
use tidegate_limiter::descriptor::{self, Descriptor};
use tidegate_limiter::units::Hits;

use crate::golden_support::node::Node;
use crate::golden_support::render;

const NOW: u64 = 1_000_000;
const RULES: &str = "
domain: d
descriptors:
  - {key: hour, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: minute, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: odd, rate_limit: {window: 90s, requests_per_unit: 1}}
  - {key: bucket, rate_limit: {unit: hour, requests_per_unit: 60, burst: 1, algorithm: token_bucket}}
  - key: two
    rate_limit:
      - {unit: minute, requests_per_unit: 100}
      - {unit: day, requests_per_unit: 5}
  - {key: log, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: sliding_window_log}}
  - {key: leased, rate_limit: {unit: hour, requests_per_unit: 20, mode: leased}}
  - {key: eventual, rate_limit: {unit: hour, requests_per_unit: 20, mode: eventual}}
  - {key: zero, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: calm, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: tried, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - key: path
    value: 'files/*'
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 2}
";

#[tokio::test]
async fn a_limit_without_a_unit_is_answered_by_the_rule() {
    let node = node(Envoy::default()).await;
    for unit in [0, 8, -1] {
        let brought = RateLimitOverride { requests_per_unit: 1, unit };
        let requested = RateLimitDescriptor { limit: Some(brought), ..hits("hour", 0) };
        let status = statuses(&node, &[requested]).await.remove(0);
        assert_eq!((&status["requests_per_unit"], &status["unit"]), (&json!(10), &json!("HOUR")));
    }
}

#[tokio::test]
async fn limits_that_requests_bring_along_can_be_switched_off() {
    let node = node(Envoy { overrides: false, ..Envoy::default() }).await;
    let brought = RateLimitOverride { requests_per_unit: 1, unit: 2 };
    let requested = RateLimitDescriptor { limit: Some(brought), ..hits("hour", 4) };
    let status = statuses(&node, &[requested]).await.remove(0);
    assert_eq!((&status["requests_per_unit"], &status["limit_remaining"]), (&json!(10), &json!(6)));
}

#[tokio::test]
async fn the_settings_of_the_service_do_not_apply_to_other_listeners() {
    let envoy = Envoy {
        shadow_mode: true,
        quota_mode: true,
        local_cache: true,
        all_or_nothing: true,
        ..Envoy::default()
    };
    let node = node(envoy).await;
    for (for_envoy, allowed) in [(true, true), (false, false), (true, true)] {
        let descriptors = [plain("zero"), plain("hour")];
        let check =
            CheckRequest { domain: "d", descriptors: &descriptors, hits: Hits::ONE, for_envoy };
        assert_eq!(
            node.core.decider.decide(check).await.allowed,
            allowed,
            "for Envoy: {for_envoy}"
        );
    }
}

#[tokio::test]
async fn a_request_is_over_its_quotas_only_when_all_of_them_refuse() {
    let node = node(Envoy::default()).await;
    for (key, other, allowed) in [
        ("quota", "nobody", false),
        ("quota", "hour", false),
        ("hour", "nobody", true),
        ("zero", "nobody", false),
    ] {
        let descriptors = [plain(key), plain(other)];
        let check = CheckRequest {
            domain: "d",
            descriptors: &descriptors,
            hits: Hits::ONE,
            for_envoy: false,
        };
        assert_eq!(node.core.decider.decide(check).await.allowed, allowed, "{key} and {other}");
    }
}

#[tokio::test]
async fn a_refusal_by_a_rule_only_tidegate_has_carries_retry_after() {
    let node = node(Envoy { response_headers: true, ..Envoy::default() }).await;
    for (key, retry_after) in [("minute", None), ("odd", Some("80")), ("bucket", Some("60"))] {
        let requested = [hits(key, 1)];
        while node.send(NOW, request(&requested)).await.expect("an answer").overall_code == 1 {}
        let answer = node.send(NOW, request(&requested)).await.expect("an answer");
        let mut headers = answer.response_headers_to_add.into_iter();
        let found = headers.find(|header| header.key == "Retry-After").map(|header| header.value);
        assert_eq!(found.as_deref(), retry_after, "{key}");
    }
}

#[tokio::test]
async fn requests_before_the_first_rules_get_an_error() {
    let mut node = Node::unloaded(Envoy::default(), NOW).await;
    let requested = [hits("hour", 1)];
    let refused = node.send(NOW, request(&requested)).await.expect_err("no rules yet");
    assert_eq!(refused.code(), tonic::Code::Unknown);
    assert_eq!(refused.message(), "no rate limit configuration loaded");
    node.load(&["'''"]);
    node.send(NOW, request(&requested)).await.expect_err("still none");
    node.load(&["domain: d"]);
    node.send(NOW, request(&requested)).await.expect("empty rules are rules");
    assert_eq!(node.statistics()["call.service_error"], 2);
}

#[tokio::test]
async fn all_values_of_a_shared_wildcard_are_one_counter() {
    let node = node(Envoy::default()).await;
    for (value, code) in [("files/a", "OK"), ("files/b", "OK"), ("files/c", "OVER_LIMIT")] {
        let requested = RateLimitDescriptor { entries: vec![entry("path", value)], ..hits("", 1) };
        assert_eq!(statuses(&node, &[requested]).await[0]["code"], code, "{value}");
    }
}

#[tokio::test]
async fn hits_that_are_given_back_end_a_remembered_refusal() {
    let node = node(Envoy { local_cache: true, ..Envoy::default() }).await;
    for (hits, code) in [(3, "OK"), (1, "OVER_LIMIT"), (1, "OVER_LIMIT")] {
        assert_eq!(statuses(&node, &[self::hits("minute", hits)]).await[0]["code"], code);
    }
    assert_eq!(node.statistics()["d.minute.over_limit_with_local_cache"], 1);
    let back = RateLimitDescriptor { is_negative_hits: true, ..hits("minute", 3) };
    assert_eq!(statuses(&node, &[back]).await[0]["code"], "OK");
    let status = statuses(&node, &[hits("minute", 1)]).await.remove(0);
    assert_eq!((&status["code"], &status["limit_remaining"]), (&json!("OK"), &json!(1)));
}

#[tokio::test]
async fn hits_are_refunded_whatever_the_other_descriptors_decide() {
    let node = node(Envoy { all_or_nothing: true, ..Envoy::default() }).await;
    statuses(&node, &[hits("hour", 6)]).await;
    let back = RateLimitDescriptor { is_negative_hits: true, ..hits("hour", 2) };
    let both = statuses(&node, &[back, hits("zero", 1)]).await;
    assert_eq!((&both[0]["limit_remaining"], &both[1]["code"]), (&json!(6), &json!("OVER_LIMIT")));
    assert_eq!(statuses(&node, &[hits("hour", 0)]).await[0]["limit_remaining"], 6);
}

#[tokio::test]
async fn hits_given_back_to_a_used_up_window_make_no_other_limit_free() {
    let node = node(Envoy { all_or_nothing: true, ..Envoy::default() }).await;
    statuses(&node, &[hits("hour", 11)]).await;
    let back = RateLimitDescriptor { is_negative_hits: true, ..hits("hour", 1) };
    statuses(&node, &[back, hits("minute", 1)]).await;
    assert_eq!(statuses(&node, &[hits("minute", 0)]).await[0]["limit_remaining"], 2);
}

#[tokio::test]
async fn a_rule_of_several_limits_is_remembered_only_when_one_is_used_up() {
    let node = node(Envoy { local_cache: true, ..Envoy::default() }).await;
    for (hits, code) in [(3, "OK"), (4, "OVER_LIMIT"), (2, "OK"), (1, "OVER_LIMIT")] {
        assert_eq!(statuses(&node, &[self::hits("two", hits)]).await[0]["code"], code, "{hits}");
    }
}

#[tokio::test]
async fn all_or_nothing_charges_no_other_algorithm_either() {
    let node = node(Envoy { all_or_nothing: true, ..Envoy::default() }).await;
    let both = [hits("bucket", 1), hits("minute", 1)];
    for codes in [["OK", "OK"], ["OVER_LIMIT", "OK"]] {
        let answered = statuses(&node, &both).await;
        assert_eq!([&answered[0]["code"], &answered[1]["code"]], codes);
    }
    let left = statuses(&node, &[hits("minute", 0)]).await.remove(0);
    assert_eq!(left["limit_remaining"], 2, "the bucket's refusal cost the minute nothing");
}

/// A rule in shadow mode, and one of two quotas.
#[tokio::test]
async fn what_is_over_its_limit_and_refuses_no_request_keeps_no_other_from_being_charged() {
    for local_cache in [false, true] {
        let node = node(Envoy { all_or_nothing: true, local_cache, ..Envoy::default() }).await;
        for (over, charged) in [("tried", "hour"), ("quota", "calm")] {
            for left in [9, 8, 7] {
                statuses(&node, &[hits(over, 1), hits(charged, 1)]).await;
                let found = statuses(&node, &[hits(charged, 0)]).await;
                assert_eq!(found[0]["limit_remaining"], left, "{charged} beside {over}");
            }
            statuses(&node, &[hits(over, 1), hits(charged, 1), hits("zero", 1)]).await;
            let found = statuses(&node, &[hits(charged, 0)]).await;
            assert_eq!(found[0]["limit_remaining"], 7, "{charged}, refused by another");
        }
    }
}

/// A descriptor without a rule is a quota that is not used up, if all are.
#[tokio::test]
async fn a_used_up_quota_beside_a_descriptor_without_a_rule_refuses_no_request() {
    let envoy = Envoy { all_or_nothing: true, quota_mode: true, ..Envoy::default() };
    let node = node(envoy).await;
    statuses(&node, &[hits("hour", 10), hits("minute", 1)]).await;
    statuses(&node, &[hits("hour", 1), hits("zero", 1), hits("unmatched", 1)]).await;
    statuses(&node, &[hits("minute", 1), hits("zero", 1), hits("unmatched", 1)]).await;
    assert_eq!(statuses(&node, &[hits("minute", 0)]).await[0]["limit_remaining"], 1);
}

#[tokio::test]
async fn equal_descriptors_that_refuse_each_other_are_charged_nothing() {
    let node = node(Envoy { all_or_nothing: true, ..Envoy::default() }).await;
    statuses(&node, &[hits("log", 9)]).await;
    let answered = statuses(&node, &[hits("log", 1), hits("minute", 2), hits("log", 1)]).await;
    assert_eq!(answered[2]["code"], "OVER_LIMIT");
    for (key, left) in [("log", 1), ("minute", 3)] {
        assert_eq!(statuses(&node, &[hits(key, 0)]).await[0]["limit_remaining"], left, "{key}");
    }
}

/// The peek of the second one is outdated by the first, that of the third is not.
#[tokio::test]
async fn hits_that_pass_because_others_are_given_back_are_given_back_if_a_limit_refuses() {
    let node = node(Envoy { all_or_nothing: true, ..Envoy::default() }).await;
    statuses(&node, &[hits("log", 8)]).await;
    let back = RateLimitDescriptor { is_negative_hits: true, ..hits("log", 5) };
    let answered = statuses(&node, &[back, hits("log", 6), hits("zero", 1)]).await;
    assert_eq!(answered[2]["code"], "OVER_LIMIT");
    assert_eq!(statuses(&node, &[hits("log", 0)]).await[0]["limit_remaining"], 7);
}

/// On a node without a cluster as in one.
#[tokio::test]
async fn windows_of_leased_and_eventual_rules_count_no_refused_hits() {
    let node = node(Envoy::default()).await;
    for key in ["leased", "eventual"] {
        for (count, code) in [(25, "OVER_LIMIT"), (19, "OK"), (2, "OVER_LIMIT"), (1, "OK")] {
            let status = statuses(&node, &[hits(key, count)]).await.remove(0);
            assert_eq!(status["code"], code, "{key}: {count}");
        }
        let back = RateLimitDescriptor { is_negative_hits: true, ..hits(key, 5) };
        assert_eq!(statuses(&node, &[back]).await[0]["limit_remaining"], 5, "{key}");
    }
}

async fn node(envoy: Envoy) -> Node {
    let mut node = Node::unloaded(envoy, NOW).await;
    node.load(&[RULES]);
    node
}

async fn statuses(node: &Node, descriptors: &[RateLimitDescriptor]) -> Vec<Value> {
    let answer = render::answer(node.send(NOW, request(descriptors)).await);
    answer["statuses"].as_array().cloned().unwrap_or_else(|| panic!("{answer}"))
}

fn request(descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest { domain: "d".into(), descriptors: descriptors.to_vec(), hits_addend: 0 }
}

fn hits(key: &str, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        entries: vec![entry(key, "v")],
        limit: None,
        hits_addend: Some(hits),
        is_negative_hits: false,
    }
}

fn entry(key: &str, value: &str) -> Entry {
    Entry { key: key.into(), value: value.into() }
}

fn plain(key: &str) -> Descriptor<'_> {
    let entries = vec![descriptor::Entry { key, value: "v" }];
    Descriptor { entries, hits: None, limit: None }
}

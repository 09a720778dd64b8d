//! Rules have the meaning that they have on a node.

use std::time::Duration;

use tidegate_tower::{Check, Descriptor, InProcess, Timestamp, Verdict};

const START: Timestamp = Timestamp::from_secs(1_767_225_600);

fn limiter(rules: &str) -> InProcess {
    InProcess::from_yaml(rules).expect("valid rules")
}

fn check(limiter: &InProcess, descriptors: &[Descriptor], second: u64) -> Verdict {
    let check = Check { domain: "http", descriptors, hits: 1 };
    limiter.check_at(&check, Timestamp::from_secs(START.as_secs() + second))
}

fn field(verdict: &Verdict, name: &str) -> String {
    let value = verdict.fields.iter().find(|(found, _)| found.as_str() == name);
    value.map_or(String::new(), |(_, value)| value.to_str().expect("ASCII").to_owned())
}

#[test]
fn a_refusal_by_one_limit_charges_no_other() {
    let limiter = limiter(
        "domain: http
descriptors:
  - key: user
    rate_limit:
      - {name: few, unit: second, requests_per_unit: 2}
      - {name: few, unit: minute, requests_per_unit: 3}
",
    );
    let user = [Descriptor::new("user", "ann")];
    assert!((0..2).all(|_| check(&limiter, &user, 0).allowed));
    let refused = check(&limiter, &user, 0);
    assert_eq!(refused.violated, ["few-1s"]);
    assert_eq!(field(&refused, "ratelimit-policy"), "\"few-1s\";q=2;w=1, \"few-1m\";q=3;w=60");
    assert_eq!(field(&refused, "ratelimit"), "\"few-1s\";r=0;t=1, \"few-1m\";r=1;t=60");
    assert!(check(&limiter, &user, 1).allowed);
    let refused = check(&limiter, &user, 2);
    assert_eq!(refused.violated, ["few-1m"]);
    assert_eq!(field(&refused, "retry-after"), "58");
    assert_eq!((refused.limit, refused.remaining, refused.reset), (Some(3), Some(0), Some(58)));
}

/// Clients know a policy by its name.
#[test]
fn limits_have_names_of_their_own_or_are_shown_as_one() {
    let limiter = limiter(
        "domain: http
descriptors:
  - key: user
    rate_limit:
      - {name: few, unit: minute, requests_per_unit: 3, algorithm: gcra}
      - {name: few, unit: minute, requests_per_unit: 2}
  - {key: path, rate_limit: {name: path, unit: minute, requests_per_unit: 2}}
",
    );
    let user = [Descriptor::new("user", "ann")];
    assert!((0..2).all(|_| check(&limiter, &user, 0).allowed));
    let refused = check(&limiter, &user, 0);
    assert_eq!(refused.violated, ["few-1m-fixed_window"]);
    let policies = "\"few-1m-gcra\";q=3;w=60, \"few-1m-fixed_window\";q=2;w=60";
    assert_eq!(field(&refused, "ratelimit-policy"), policies);

    let path = |value| Descriptor::new("path", value);
    assert!(check(&limiter, &[path("/a")], 0).allowed);
    let both = check(&limiter, &[path("/b"), path("/a")], 0);
    assert_eq!(field(&both, "ratelimit-policy"), "\"path\";q=2;w=60");
    assert_eq!(field(&both, "ratelimit"), "\"path\";r=0;t=60");
    let refused = check(&limiter, &[path("/b"), path("/a"), path("/a")], 0);
    assert_eq!(refused.violated, ["path"]);
}

/// The fields have room for sixteen limits, whichever of them refuse.
#[test]
fn a_limit_without_room_in_the_fields_is_named_when_it_refuses() {
    let rules = (0..20).map(|number| {
        let limit = if number < 19 { 5 } else { 0 };
        format!("  - {{key: k{number}, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}\n")
    });
    let limiter = limiter(&format!("domain: http\ndescriptors:\n{}", rules.collect::<String>()));
    let all: Vec<_> = (0..20).map(|number| Descriptor::new(format!("k{number}"), "v")).collect();
    let refused = check(&limiter, &all, 0);
    assert_eq!(refused.violated, ["http.k19"]);
    assert_eq!(field(&refused, "ratelimit").split(", ").count(), 16);
}

#[test]
fn the_most_restrictive_descriptor_leads() {
    let limiter = limiter(
        "domain: http
descriptors:
  - {key: user, rate_limit: {name: user, unit: minute, requests_per_unit: 100}}
  - {key: path, value: /report, rate_limit: {name: report, unit: hour, requests_per_unit: 5}}
",
    );
    let descriptors = [Descriptor::new("user", "ann"), Descriptor::new("path", "/report")];
    let verdict = check(&limiter, &descriptors, 0);
    assert_eq!((verdict.limit, verdict.remaining), (Some(5), Some(4)));
    assert_eq!(field(&verdict, "ratelimit"), "\"user\";r=99;t=60, \"report\";r=4;t=3600");
    let other = [Descriptor::new("user", "ann"), Descriptor::new("path", "/")];
    assert_eq!(field(&check(&limiter, &other, 0), "ratelimit"), "\"user\";r=98;t=60");
}

#[test]
fn what_passes_above_a_soft_limit_is_signalled() {
    let limiter = limiter(
        "domain: http
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 5, soft_limit: 80%}}
  - key: tried
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 5, soft_limit: 0}
",
    );
    let soft = [Descriptor::new("user", "ann"), Descriptor::new("tried", "ann")];
    let signals = [(); 6].map(|()| field(&check(&limiter, &soft, 0), "x-ratelimit-soft-breach"));
    assert_eq!(signals, ["", "", "", "", "1", ""]);
    let counts: Vec<_> = limiter.rules().rules().map(|rule| rule.stats.read()).collect();
    assert_eq!(counts.iter().map(|it| it.soft_limited).collect::<Vec<_>>(), [5, 1]);
}

#[test]
fn shadow_rules_refuse_nothing_and_are_not_shown() {
    let limiter = limiter(
        "domain: http
descriptors:
  - {key: user, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
",
    );
    let user = [Descriptor::new("user", "ann")];
    let verdicts = [0, 0].map(|second| check(&limiter, &user, second));
    assert!(verdicts.iter().all(|verdict| verdict.allowed && verdict.fields.is_empty()));
    let counts = limiter.rules().rules().next().expect("a rule").stats.read();
    assert_eq!((counts.allowed, counts.shadowed, counts.denied), (1, 1, 0));
}

#[test]
fn quota_rules_refuse_only_together() {
    let limiter = limiter(
        "domain: http
descriptors:
  - {key: a, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: b, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
",
    );
    let both = [Descriptor::new("a", "1"), Descriptor::new("b", "1")];
    assert!(check(&limiter, &both, 0).allowed);
    assert!(!check(&limiter, &both, 0).allowed);
}

#[test]
fn a_rule_that_is_replaced_does_not_apply() {
    let limiter = limiter(
        "domain: http
descriptors:
  - {key: user, rate_limit: {name: all, unit: hour, requests_per_unit: 1}}
  - key: plan
    value: paid
    rate_limit: {name: paid, unit: hour, requests_per_unit: 3, replaces: [{name: all}]}
",
    );
    let paid = [Descriptor::new("user", "ann"), Descriptor::new("plan", "paid")];
    let allowed = [0; 4].map(|second| check(&limiter, &paid, second).allowed);
    assert_eq!(allowed, [true, true, true, false]);
    assert_eq!(check(&limiter, &paid, 0).violated, ["paid"]);
}

#[test]
fn values_of_a_shared_threshold_are_one_counter() {
    let limiter = limiter(
        "domain: http
descriptors:
  - {key: path, value: files/*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 2}}
",
    );
    let allowed = ["files/a", "files/b", "files/c"]
        .map(|path| check(&limiter, &[Descriptor::new("path", path)], 0).allowed);
    assert_eq!(allowed, [true, true, false]);
}

#[test]
fn nested_keys_match_in_their_order() {
    let limiter = limiter(
        "domain: http
descriptors:
  - key: method
    value: POST
    descriptors:
      - {key: user, rate_limit: {unit: hour, requests_per_unit: 1}}
",
    );
    let post = [Descriptor::new("method", "POST").with("user", "ann")];
    assert_eq!([0; 2].map(|second| check(&limiter, &post, second).allowed), [true, false]);
    let swapped = [Descriptor::new("user", "ann").with("method", "POST")];
    assert_eq!(check(&limiter, &swapped, 0), Verdict::unlimited());
}

#[test]
fn new_rules_keep_the_counts() {
    let rules = |limit: u32| {
        format!(
            "domain: http
descriptors:
  - {{key: user, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}
"
        )
    };
    let limiter = limiter(&rules(2));
    let user = [Descriptor::new("user", "ann")];
    let allowed = [0; 3].map(|second| check(&limiter, &user, second).allowed);
    assert_eq!(allowed, [true, true, false]);
    limiter.replace_rules(
        InProcess::from_yaml(&rules(5)).expect("valid rules").rules().as_ref().clone(),
    );
    // A fixed window counts what it refused.
    let verdict = check(&limiter, &user, 0);
    assert!(verdict.allowed);
    assert_eq!(verdict.remaining, Some(1));
    assert_eq!(limiter.rules().rules().next().expect("a rule").stats.read().allowed, 3);
}

#[test]
fn clients_do_not_share_counters_and_processes_not_their_hash() {
    let rules = "domain: http
descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]
";
    let limiter = limiter(rules);
    let allowed = (0..1_000)
        .filter(|user| check(&limiter, &[Descriptor::new("user", user.to_string())], 0).allowed);
    assert_eq!(allowed.count(), 1_000);
    assert_eq!(limiter.stats().keys, 1_000);
}

#[test]
fn invalid_rules_name_the_line() {
    let error = InProcess::from_yaml("domain: http\ndescriptors: [{ke: user}]\n");
    let text = error.expect_err("a typo").to_string();
    assert!(text.starts_with("rules:2:") && text.contains("did you mean 'key'"), "{text}");
}

/// Of a request that does not wait for its turn the hits go back, and nothing else.
#[test]
fn a_turn_says_which_descriptors_were_counted() {
    let limiter = limiter(
        "domain: http
descriptors:
  - {key: plan, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: base, rate_limit: {name: base, unit: day, requests_per_unit: 9}}
  - key: user
    quota_mode: true
    rate_limit:
      {unit: second, requests_per_unit: 1, algorithm: leaky_bucket, queue: 9, replaces: [{name: base}]}
  - {key: route, rate_limit: {unit: day, requests_per_unit: 9}}
",
    );
    let descriptors =
        ["plan", "base", "user", "other", "route"].map(|key| Descriptor::new(key, "a"));
    let first = check(&limiter, &descriptors, 0);
    assert_eq!((first.allowed, first.delay, first.counted), (true, Duration::ZERO, None));
    let queued = check(&limiter, &descriptors, 0);
    assert!(queued.allowed && queued.delay > Duration::ZERO, "{queued:?}");
    assert_eq!(queued.counted, Some(vec![2, 4]), "the plan is used up, and base is replaced");
}

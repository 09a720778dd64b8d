//! The test vectors that the clients of all languages share, in `clients/vectors`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sfv::{BareItem, Item, Parser};
use tidegate_client::Permit;
use tidegate_client::fields::{Fields, Limit};
use tidegate_client::schedule::{Schedule, backoff};

type Pairs = Vec<(String, String)>;

#[derive(Deserialize)]
struct FieldsCase {
    name: String,
    #[serde(default)]
    wall: u64,
    headers: Pairs,
    policies: Option<Vec<PolicyCase>>,
    /// In place of the policies.
    names: Option<Vec<String>>,
    retry_after: Option<f64>,
}

#[derive(Deserialize)]
struct PolicyCase {
    name: String,
    partition: String,
    limit: Option<u32>,
    window: Option<f64>,
    remaining: u32,
    reset: Option<f64>,
}

#[test]
fn fields_mean_what_they_mean_to_the_other_clients() {
    for case in cases::<FieldsCase>("fields") {
        let found = Fields::read(&headers(&case.headers), Duration::from_secs(case.wall));
        assert_eq!(found.retry_after, case.retry_after.map(span), "{}", case.name);
        if let Some(names) = case.names {
            let found: Vec<String> = found.limits.into_iter().map(|limit| limit.name).collect();
            assert_eq!(found, names, "{}", case.name);
            continue;
        }
        let wanted = case.policies.unwrap().into_iter().map(|policy| Limit {
            name: policy.name,
            partition: bytes(&policy.partition),
            quota: policy.limit,
            window: policy.window.map(span),
            remaining: policy.remaining,
            reset: policy.reset.map(span),
        });
        assert_eq!(found.limits, wanted.collect::<Vec<_>>(), "{}", case.name);
    }
}

#[derive(Deserialize)]
struct BackoffCase {
    refusals: u32,
    least: f64,
    random: f64,
    wait: f64,
}

#[test]
fn the_wait_after_refusals_is_that_of_the_other_clients() {
    for case in cases::<BackoffCase>("backoff") {
        let wait = backoff(case.refusals, span(case.least), case.random);
        assert_close(wait, case.wait, &format!("{} refusals", case.refusals));
    }
}

#[derive(Deserialize)]
struct PacingCase {
    name: String,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    at: f64,
    poll: Option<Poll>,
    observe: Option<Observe>,
}

#[derive(Deserialize)]
struct Poll {
    #[serde(default = "default_origin")]
    origin: String,
    #[serde(default)]
    route: String,
    wait: f64,
}

#[derive(Deserialize)]
struct Observe {
    permit: usize,
    status: u16,
    headers: Pairs,
    #[serde(default)]
    random: f64,
    #[serde(default)]
    pause: f64,
}

fn default_origin() -> String {
    "https://a.example".into()
}

#[test]
fn requests_leave_when_those_of_the_other_clients_do() {
    for case in cases::<PacingCase>("pacing") {
        let mut schedule = Schedule::default();
        let mut permits: Vec<Option<Permit>> = Vec::new();
        for (number, step) in case.steps.into_iter().enumerate() {
            let (now, place) = (span(step.at), format!("{}, step {number}", case.name));
            if let Some(poll) = step.poll {
                let wait = match schedule.poll(&poll.origin, &poll.route, now) {
                    Ok(permit) => {
                        permits.push(Some(permit));
                        Duration::ZERO
                    }
                    Err(wait) => wait,
                };
                assert_close(wait, poll.wait, &place);
            }
            if let Some(of) = step.observe {
                let permit = permits[of.permit - 1].take().unwrap();
                let fields = Fields::read(&headers(&of.headers), Duration::ZERO);
                let pause = schedule.observe(permit, of.status, &fields, now, of.random);
                assert_close(pause.unwrap_or_default(), of.pause, &place);
            }
        }
    }
}

// === reading the table ===

fn cases<T: DeserializeOwned>(name: &str) -> Vec<T> {
    #[derive(Deserialize)]
    struct File<T> {
        cases: Vec<T>,
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/vectors");
    let text = fs::read_to_string(folder.join(name).with_extension("json")).unwrap();
    let file: File<T> = serde_json::from_str(&text).unwrap();
    assert!(!file.cases.is_empty(), "{name} has no cases");
    file.cases
}

fn headers(pairs: &Pairs) -> HeaderMap {
    let field = |(name, value): &(String, String)| {
        (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
    };
    // Fields of one name are kept apart.
    let mut headers = HeaderMap::new();
    for (name, value) in pairs.iter().map(field) {
        headers.append(name, value);
    }
    headers
}

/// Those of base64, as a structured field has them.
fn bytes(base64: &str) -> Vec<u8> {
    let item: Item = Parser::new(&format!(":{base64}:")).parse().unwrap();
    match item.bare_item {
        BareItem::ByteSequence(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

fn span(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn assert_close(found: Duration, seconds: f64, place: &str) {
    let is_close = found.abs_diff(span(seconds)) < Duration::from_micros(1);
    assert!(is_close, "{place}: {found:?}, not {seconds} s");
}

//! The behaviour that the clients of all languages share: `clients/vectors`.

use std::fs;
use std::net::IpAddr;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value};
use tidegate_tower::{
    Answer, Check, CheckError, Descriptor, HttpNode, Limiter, Verdict, client_address, group,
};
use tokio::net::TcpListener;

fn cases<T: for<'de> Deserialize<'de>>(name: &str) -> Vec<T> {
    #[derive(Deserialize)]
    struct Table<T> {
        cases: Vec<T>,
    }
    let path = format!("{}/../../clients/vectors/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(&path).expect("the vectors of the repository");
    let table: Table<T> = serde_json::from_str(&text).expect("the form of the vectors");
    assert!(table.cases.len() > 5, "{path} has few cases");
    table.cases
}

#[derive(Deserialize)]
struct Address {
    peer: IpAddr,
    trusted_hops: u8,
    forwarded_for: Vec<String>,
    client: String,
}

#[test]
fn the_client_behind_proxies() {
    for case in cases::<Address>("client_address") {
        let lists = case.forwarded_for.iter().map(String::as_bytes);
        let client = client_address(Some(case.peer), lists, case.trusted_hops);
        let client = client.map(group);
        assert_eq!(client, Some(case.client), "{} {:?}", case.trusted_hops, case.forwarded_for);
    }
}

#[derive(Clone, Deserialize)]
struct Case {
    name: String,
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
    #[serde(default)]
    verdict: Option<Map<String, Value>>,
    problem: Option<Value>,
    #[serde(default)]
    is_invalid: bool,
    hits: Option<i64>,
}

/// Over a socket, from a server that answers as the case says.
#[tokio::test]
async fn answers_of_a_node() {
    for case in cases::<Case>("verdict") {
        let hits = case.hits.unwrap_or(1);
        let node = HttpNode::new(&serve(case.clone()).await).expect("a URL");
        let descriptors = [Descriptor::new("user", "ann")];
        let check = Check { domain: "http", descriptors: &descriptors, hits };
        let Answer::Later(answer) = node.check(&check) else { panic!("a node is waited for") };
        match (answer.await, &case.verdict) {
            (Ok(verdict), Some(expected)) => compare(&case, &verdict, expected),
            (Err(CheckError::Invalid(_)), None) => assert!(case.is_invalid, "{}", case.name),
            (Err(CheckError::Undecided(_)), None) => assert!(!case.is_invalid, "{}", case.name),
            (result, _) => panic!("{}: {result:?}", case.name),
        }
    }
}

fn compare(case: &Case, verdict: &Verdict, expected: &Map<String, Value>) {
    let name = &case.name;
    assert_eq!(Value::from(verdict.allowed), expected["allowed"], "{name}");
    assert_eq!(Value::from(verdict.is_decided), expected["is_decided"], "{name}");
    assert_eq!(Value::from(verdict.limit), expected["limit"], "{name}");
    assert_eq!(Value::from(verdict.remaining), expected["remaining"], "{name}");
    assert_eq!(Value::from(verdict.reset), expected["reset"], "{name}");
    assert_eq!(Value::from(verdict.retry_after_secs()), expected["retry_after"], "{name}");
    let delay = expected["delay"].as_f64().expect("seconds");
    assert!((verdict.delay.as_secs_f64() - delay).abs() < 1e-6, "{name}");
    assert_eq!(Value::from(verdict.violated.clone()), expected["violated"], "{name}");
    let fields: Map<String, Value> = verdict
        .fields
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().expect("ASCII").into()))
        .collect();
    assert_eq!(Value::from(fields), expected["headers"], "{name}");
    if let Some(problem) = &case.problem {
        assert_eq!(verdict.problem(), *problem, "{name}");
    }
}

async fn serve(case: Case) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let app = Router::new().route("/v1/check", post(answer)).with_state(case);
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

async fn answer(State(case): State<Case>, body: Bytes) -> (StatusCode, HeaderMap, String) {
    let message: Value = serde_json::from_slice(&body).expect("a check in JSON");
    let mut descriptor = serde_json::json!({"entries": [{"key": "user", "value": "ann"}]});
    if let Some(hits) = case.hits {
        // 64-bit integers are strings in the JSON of protobuf.
        descriptor["hitsAddend"] = hits.to_string().into();
    }
    let expected = serde_json::json!({"domain": "http", "descriptors": [descriptor]});
    assert_eq!(message, expected, "{}", case.name);
    let headers = case.headers.iter().map(|(name, value)| {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        (name, HeaderValue::from_str(value).expect("a value"))
    });
    let status = StatusCode::from_u16(case.status).expect("a status");
    (status, headers.collect(), case.body)
}

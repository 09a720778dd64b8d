//! Soft limits: hits above them are admitted and signalled by every listener, and of every mode.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use serde_json::json;
use tidegate::front::rls::RlsClient;
use tidegate::front::rls::message::{
    Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use tidegate_testkit::http_client::{Http, Reply, check_body};
use tidegate_testkit::ports;
use tidegate_testkit::process::{Cluster, ClusterOptions, THREE};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Endpoint;

use crate::TIDEGATE;

/// Windows that do not end during a test, and a soft limit of 4 of 5.
const EVERY_LISTENER: &str = "
domain: soft
descriptors:
  - {key: user, rate_limit: {unit: day, unit_multiplier: 300, requests_per_unit: 5, soft_limit: 80%}}
  - key: tried
    shadow_mode: true
    rate_limit: {window: 365d, requests_per_unit: 5, soft_limit: 4}
";

const HEADER: &str = "x-ratelimit-soft-breach";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_listener_signals_what_it_admits_above_a_soft_limit() {
    let (app, _running) = echoing_app().await;
    let proxy = ports::free();
    let config = format!(
        "[auth]\ndomain = \"soft\"\n[[auth.descriptors]]\n\
         entries = [{{ key = \"user\", header = \"x-user\" }}]\n\
         [proxy]\nlisten = \"{proxy}\"\nupstream = [\"http://{app}\"]\n"
    );
    let options =
        ClusterOptions { nodes: &["n1"], rules: EVERY_LISTENER, config: &config, ..<_>::default() };
    let cluster = Cluster::start(TIDEGATE, options).await;
    let node = &cluster.nodes[0];

    for number in 1..=6 {
        let (is_admitted, is_signalled) = (number <= 5, number == 5);
        let header = is_signalled.then_some("1");

        let reply = check(&cluster.http, node.http, "user", "http").await;
        assert_eq!((reply.status == 200, reply.header(HEADER)), (is_admitted, header), "{number}");
        let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        let metadata = is_signalled.then(|| json!({ "softLimitBreaches": [0] }));
        assert_eq!(body.get("dynamicMetadata"), metadata.as_ref(), "{number}: {body}");

        let answer = rate_limit(node.grpc, "user", "grpc").await;
        assert_eq!(added(&answer), [is_signalled; 2], "{number}: {answer:?}");
        assert_eq!(answer.dynamic_metadata.is_some(), is_signalled, "{number}: {answer:?}");

        let reply = resp(node.resp, "TG.CHECK soft user resp");
        let soft_limited = format!(":{}|", u8::from(is_signalled));
        assert!(reply.starts_with("*6|") && reply.ends_with(&soft_limited), "{number}: {reply}");

        let headers = [("x-user", "auth")];
        let reply = get(&cluster.http, node.http, "/auth", &headers).await;
        assert_eq!((reply.status == 200, reply.header(HEADER)), (is_admitted, header), "{number}");

        // What a client says about itself is not passed on.
        let headers = [("x-user", "proxy"), (HEADER, "7"), ("connection", HEADER)];
        let reply = get(&cluster.http, proxy, "/", &headers).await;
        assert_eq!((reply.status == 200, reply.header(HEADER)), (is_admitted, header), "{number}");
        if is_admitted {
            let passed = reply.body.lines().find_map(|line| line.strip_prefix(HEADER));
            assert_eq!(passed, is_signalled.then_some(": 1"), "{number}: {}", reply.body);
        }

        // Clients are not to slow down for a limit that is only being tried.
        let reply = check(&cluster.http, node.http, "tried", "http").await;
        assert_eq!((reply.status, reply.header(HEADER)), (200, None), "{number}");
    }

    let metrics = get(&cluster.http, node.admin, "/metrics", &[]).await.body;
    for (rule, hits) in [("soft.user", 5), ("soft.tried", 1)] {
        let line = format!("tidegate_rule_soft_limited_total{{rule=\"{rule}\"}} {hits}");
        assert!(metrics.lines().any(|it| it == line), "{line} is not in\n{metrics}");
    }
    let url = format!("http://{}", node.admin);
    let status = tidegate(&["status", "--json", "--url", &url]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let rules = status["rules"].as_array().unwrap();
    let rule = rules.iter().find(|rule| rule["rule"] == "soft.user").unwrap();
    assert_eq!((&rule["allowed"], &rule["soft_limited"]), (&json!(25), &json!(5)), "{rule}");
    let rules = node.rules.to_str().unwrap();
    let tested = tidegate(&["rules", "test", "soft", "user=ann", "--rules", rules]);
    assert!(tested.contains("limit 5 per 300d, fixed_window, soft limit 4"), "{tested}");
}

/// One rule for each mode, one for each algorithm, with a soft limit of half, and limits that are
/// granted in advance.
const EVERY_MODE: &str = "
domain: soft
descriptors:
  - {key: leased, mode: leased,
     rate_limit: {window: 365d, requests_per_unit: 400, soft_limit: 50%}}
  - {key: eventual, mode: eventual,
     rate_limit: {window: 365d, requests_per_unit: 40, soft_limit: 50%}}
  - {key: fixed_window, rate_limit: {window: 365d, requests_per_unit: 10, soft_limit: 5}}
  - {key: sliding_window_log,
     rate_limit: {window: 365d, requests_per_unit: 10, algorithm: sliding_window_log, soft_limit: 5}}
  - {key: sliding_window_counter, rate_limit: {window: 365d, requests_per_unit: 10,
     algorithm: sliding_window_counter, soft_limit: 5}}
  - {key: token_bucket, rate_limit: {window: 365d, requests_per_unit: 4, burst: 10,
     algorithm: token_bucket, soft_limit: 50%}}
  - {key: leaky_bucket, rate_limit: {window: 365d, requests_per_unit: 10, algorithm: leaky_bucket,
     soft_limit: 50%}}
  - {key: gcra, rate_limit: {window: 365d, requests_per_unit: 20, burst: 10, algorithm: gcra,
     soft_limit: 50%}}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_that_answers_signals_wherever_it_was_decided() {
    let options = ClusterOptions {
        nodes: THREE,
        rules: EVERY_MODE,
        sets: &["cluster.deadline=1s"],
        ..<_>::default()
    };
    let cluster = Cluster::start(TIDEGATE, options).await;
    for (key, limit, is_exact) in [
        ("leased", 400, false),
        ("eventual", 40, false),
        ("fixed_window", 10, true),
        ("sliding_window_log", 10, true),
        ("sliding_window_counter", 10, true),
        ("token_bucket", 10, true),
        ("leaky_bucket", 10, true),
        ("gcra", 10, true),
    ] {
        let mut signalled = 0;
        for number in 1..=limit {
            let node = &cluster.nodes[number % THREE.len()];
            let reply = check(&cluster.http, node.http, key, "one").await;
            let is_signalled = reply.header(HEADER).is_some();
            signalled += usize::from(is_signalled);
            if reply.status == 200 {
                let remaining: usize =
                    reply.header("x-ratelimit-remaining").unwrap().parse().unwrap();
                assert_eq!(is_signalled, remaining < limit / 2, "{key}, {number}: {reply:?}");
            }
            if is_exact {
                assert_eq!(
                    (reply.status, is_signalled),
                    (200, number > limit / 2),
                    "{key}, {number}"
                );
            }
        }
        assert!((1..limit).contains(&signalled), "{key}: {signalled} of {limit}");
    }
    assert!(cluster.verdicts("owner").await > 0 && cluster.verdicts("grant").await > 0);
}

async fn check(http: &Http, listener: SocketAddr, key: &str, value: &str) -> Reply {
    http.check(listener, &check_body("soft", key, value)).await.unwrap()
}

async fn get(http: &Http, listener: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Reply {
    http.send(http::Method::GET, listener, path, headers, "").await.unwrap()
}

async fn rate_limit(listener: SocketAddr, key: &str, value: &str) -> RateLimitResponse {
    let entries = vec![Entry { key: key.into(), value: value.into() }];
    let descriptors = vec![RateLimitDescriptor { entries, ..Default::default() }];
    let request = RateLimitRequest { domain: "soft".into(), descriptors, hits_addend: 0 };
    let endpoint = Endpoint::from_shared(format!("http://{listener}")).unwrap();
    RlsClient::new(&endpoint).should_rate_limit(request).await.unwrap()
}

/// Whether the header is added to the response, and to the request.
fn added(answer: &RateLimitResponse) -> [bool; 2] {
    [&answer.response_headers_to_add, &answer.request_headers_to_add]
        .map(|headers| headers.iter().any(|header| (&*header.key, &*header.value) == (HEADER, "1")))
}

/// The reply to an inline command of six integers.
fn resp(listener: SocketAddr, command: &str) -> String {
    let mut stream = TcpStream::connect(listener).unwrap();
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let (mut reply, mut lines) = (Vec::new(), 0);
    while lines < 7 {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        lines += usize::from(byte == *b"\n");
        reply.push(byte[0]);
    }
    String::from_utf8(reply).unwrap().replace("\r\n", "|")
}

fn tidegate(args: &[&str]) -> String {
    let output = Command::new(TIDEGATE).env_clear().args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// An application that responds with the head of the request.
async fn echoing_app() -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let running = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            let length = request.len();
            let head =
                format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
            stream.write_all(&[head.into_bytes(), request].concat()).await.unwrap();
        }
    });
    (addr, AbortOnDropHandle::new(running))
}

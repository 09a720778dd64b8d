//! Malformed input to the listeners of a real node: an error in the form of the protocol, nothing
//! is counted, and the node keeps running.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use serde_json::{Value, json};
use tidegate::front::rls::message::{Code, Entry, RateLimitDescriptor, RateLimitRequest};
use tidegate::front::rls::{RlsClient, SERVICE_NAME};
use tidegate_testkit::http_client::check_body;
use tidegate_testkit::process::{Cluster, ClusterOptions, Node};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Endpoint;

use crate::TIDEGATE;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 100}
";

const CONFIG: &str = "
[auth]
domain = \"shop\"
hits = { header = \"x-hits\" }
[[auth.descriptors]]
entries = [{ key = \"user\", header = \"x-user\" }]
";

/// A guard against hanging, far above the header timeout that these nodes have.
const TIMEOUT: Duration = Duration::from_secs(10);

async fn start() -> Cluster {
    let sets = &["limits.header_timeout=300ms"];
    Cluster::start(
        TIDEGATE,
        ClusterOptions {
            nodes: &["n1"],
            rules: RULES,
            config: CONFIG,
            sets,
            ..ClusterOptions::default()
        },
    )
    .await
}

/// The key still has its whole limit, both listeners respond, and nothing but these two reads was
/// decided.
async fn assert_nothing_happened(cluster: &Cluster) {
    let node = &cluster.nodes[0];
    assert_eq!(node.metric("tidegate_store_keys").await, 0, "nothing was counted");
    let mut read = check_body("shop", "user", "ann");
    read["descriptors"][0]["hitsAddend"] = json!(0);
    let reply = cluster.http.check(node.http, &read).await.unwrap();
    assert_eq!((reply.status, reply.header("x-ratelimit-remaining")), (200, Some("100")));
    let response = grpc(node).should_rate_limit(request_in("shop", Some(0))).await.unwrap();
    assert_eq!((response.overall_code(), response.statuses[0].limit_remaining), (Code::Ok, 100));
    assert_eq!(node.verdicts("local").await, 2, "nothing else was decided");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_http_listener_answers_bad_requests_with_an_error() {
    let cluster = start().await;
    let listener = cluster.nodes[0].http;
    let request = |domain: &str, descriptors: Value| {
        json!({ "domain": domain, "descriptors": descriptors }).to_string().into_bytes()
    };
    let user = |value: &str| json!({ "entries": [{ "key": "user", "value": value }] });
    let with_hits = |hits: Value| {
        let mut body = check_body("shop", "user", "ann");
        body["hitsAddend"] = hits;
        body.to_string().into_bytes()
    };
    let entry = json!({ "key": "user", "value": "ann" });
    let long = "v".repeat(1_025);
    for (body, status, part) in [
        (b"".to_vec(), 400, "not a RateLimitRequest"),
        (b"{".to_vec(), 400, "not a RateLimitRequest"),
        (b"null".to_vec(), 400, "not a RateLimitRequest"),
        (vec![b'['; 60_000], 400, "not a RateLimitRequest"),
        (b"{\"a\":".repeat(12_000), 400, "not a RateLimitRequest"),
        (b"{\"domain\":\"\xff\"}".to_vec(), 400, "not UTF-8"),
        (b"{\"domain\":1}".to_vec(), 400, "not a RateLimitRequest"),
        (b"{\"domain\":\"shop\",\"descriptors\":{}}".to_vec(), 400, "not a RateLimitRequest"),
        (b"{\"domain\":\"shop\"} {}".to_vec(), 400, "not a RateLimitRequest"),
        (b"{\"domain\":\"a\",\"domain\":\"b\"}".to_vec(), 400, "not a RateLimitRequest"),
        (b"{\"domian\":\"shop\"}".to_vec(), 400, "domian"),
        (request("", json!([user("ann")])), 400, "domain must not be empty"),
        (request("shop", json!([])), 400, "descriptor list must not be empty"),
        (request("shop", vec![user("ann"); 33].into()), 400, "33 descriptors"),
        (request("shop", json!([{ "entries": vec![entry; 17] }])), 400, "17 entries"),
        (request("shop", json!([user("ann"), user(&long)])), 400, "1025 bytes"),
        (request(&long, json!([user("ann")])), 400, "1025 bytes"),
        (with_hits(json!(-1)), 400, "hitsAddend"),
        (with_hits(json!(1.5)), 400, "hitsAddend"),
        (with_hits(json!(4_294_967_296_u64)), 400, "hitsAddend"),
        (with_hits(json!("many")), 400, "hitsAddend"),
        (vec![b' '; 65_537], 413, "larger than 65536 bytes"),
    ] {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let headers = [("content-type", "application/json")];
        let reply = cluster.http.send(Method::POST, listener, "/v1/check", &headers, body).await;
        let reply = reply.unwrap_or_else(|error| panic!("{shown}: {error}"));
        assert_eq!(reply.status, status, "{shown}: {reply:?}");
        assert_error(&reply.body, part, &shown);
        assert_eq!(reply.header("content-type"), Some("application/json"), "{shown}");
    }

    let good = check_body("shop", "user", "ann").to_string();
    for (method, target, headers, status) in [
        (Method::GET, "/v1/check", &[][..], 405),
        (Method::POST, "/v1/checks", &[], 404),
        (Method::POST, "/auth?denied=200", &[("x-user", "ann")], 400),
        (Method::GET, "/auth", &[("x-user", "ann"), ("x-hits", "-1")], 400),
        (Method::GET, "/auth", &[("x-user", "ann"), ("x-hits", "many")], 400),
        (
            Method::GET,
            "/auth",
            &[("x-user", "ann"), ("x-original-uri", "/a"), ("x-forwarded-uri", "/b")],
            400,
        ),
    ] {
        let what = format!("{method} {target} {headers:?}");
        let reply =
            cluster.http.send(method, listener, target, headers, good.clone()).await.unwrap();
        assert_eq!(reply.status, status, "{what}: {reply:?}");
        assert_error(&reply.body, "", &what);
    }

    // A domain without rules is not an error: nothing limits it.
    let unknown = check_body("unknown", "user", "ann");
    assert_eq!(cluster.http.check(listener, &unknown).await.unwrap().status, 200);
    assert_nothing_happened(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_grpc_listener_answers_bad_calls_with_a_status() {
    let cluster = start().await;
    let node = &cluster.nodes[0];
    let with = |descriptors| RateLimitRequest { descriptors, ..request_in("shop", None) };
    let ann = request_in("shop", None).descriptors[0].clone();
    let long = "v".repeat(1_025);
    for (request, code, part) in [
        (request_in("", None), tonic::Code::Unknown, "domain must not be empty"),
        (with(vec![]), tonic::Code::Unknown, "descriptor list must not be empty"),
        (with(vec![ann; 33]), tonic::Code::InvalidArgument, "33 descriptors"),
        (request_in(&long, None), tonic::Code::InvalidArgument, "1025 bytes"),
        (request_in(&"d".repeat(100_000), None), tonic::Code::OutOfRange, "65536"),
    ] {
        let status = grpc(node).should_rate_limit(request).await.expect_err("a status");
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().contains(part), "{status:?}");
    }

    let path = format!("/{SERVICE_NAME}/ShouldRateLimit");
    let valid = framed(&request_in("shop", None).encode_to_vec());
    for (body, what) in [
        (vec![], "nothing"),
        (vec![0, 0], "half of a prefix"),
        (valid[..8].to_vec(), "half of a message"),
        (framed(&[0x0A, 2, 0xFF, 0xFE]), "a domain that is not UTF-8"),
        (framed(&[0x12, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F]), "a length beyond the end"),
        (framed(&[0xFF; 64]), "noise"),
        (framed(&vec![0x12; 30_000]), "noise that looks like nesting"),
        ([&[1][..], &valid[1..]].concat(), "compressed, with no name for how"),
        ([&[0][..], &u32::MAX.to_be_bytes(), &[0; 16]].concat(), "4 GiB announced"),
    ] {
        let status = raw_call(node.grpc, &path, body).await;
        assert!(status.as_deref().is_some_and(|code| code != "0"), "{what}: {status:?}");
    }
    let unimplemented = Some("12".to_owned());
    assert_eq!(raw_call(node.grpc, "/some.Service/Method", valid).await, unimplemented);
    assert_nothing_happened(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noise_on_any_port_ends_its_own_connection_alone() {
    let cluster = start().await;
    let node = &cluster.nodes[0];
    let Node { http, grpc, admin, .. } = *node;
    let preface = &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..];
    let client_hello = [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], &[7; 500]].concat();
    let huge_header = [b"GET / HTTP/1.1\r\nhost: t\r\nx: ".to_vec(), vec![b'v'; 1 << 20]].concat();
    let post = |headers: &str, body: &str| {
        format!("POST /v1/check HTTP/1.1\r\nhost: t\r\n{headers}\r\n\r\n{body}").into_bytes()
    };
    for noise in [
        vec![0; 4_096],
        vec![0xFF; 4_096],
        b"\r\n\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"GET  HTTP/1.1\r\nhost\r\n\r\n".to_vec(),
        client_hello,
        [preface, &[0xFF; 73]].concat(),
        [preface, &[0, 0, 5, 4, 0, 0, 0, 0, 0], &[0; 5]].concat(),
        huge_header,
        post("content-length: 9, 10", "{}"),
        post("content-length: 99999999999999999999", "{}"),
        post("content-length: 2\r\ntransfer-encoding: chunked", "0\r\n\r\n"),
        post("transfer-encoding: chunked", "zz\r\n{}\r\n0\r\n\r\n"),
        post("transfer-encoding: chunked", "ffffffffffffffff1\r\n"),
        // Half of a body, and the client is gone.
        post("content-length: 60", "{\"domain\":\"shop\","),
    ] {
        for listener in [http, grpc, admin] {
            let answer = noise_to(listener, &noise).await;
            let text = String::from_utf8_lossy(&answer);
            let shown = String::from_utf8_lossy(&noise[..noise.len().min(40)]);
            assert!(!text.contains(" 200 "), "{shown:?} to {listener}: {text}");
        }
    }
    let huge = [b"GET /healthz HTTP/1.1\r\nhost: t\r\nx: ".to_vec(), vec![b'v'; 1 << 20]].concat();
    let answer = noise_to(http, &huge).await;
    // The kernel may drop the answer when it resets a connection that still has bytes to read.
    let text = String::from_utf8_lossy(&answer);
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 431"), "{text}");
    assert_nothing_happened(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_that_dribbles_is_cut_while_others_are_served() {
    let cluster = start().await;
    let node = &cluster.nodes[0];
    let mut slow = Vec::new();
    for listener in [node.http, node.admin] {
        let mut stream = TcpStream::connect(listener).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost:").await.unwrap();
        slow.push(stream);
    }
    assert_eq!(cluster.http.get(node.http, "/healthz").await.unwrap().status, 200);
    for mut stream in slow {
        let mut rest = Vec::new();
        let cut = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut rest)).await;
        cut.expect("it is cut").unwrap();
        assert_eq!(rest, b"");
    }
    let cut = node.metric("tidegate_connections_aborted_total{listener=\"http\"}").await;
    assert_eq!(cut, 1);
    assert_nothing_happened(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_listener_answers_bad_requests_with_an_error() {
    let cluster = start().await;
    let admin = cluster.nodes[0].admin;
    for (method, target, status) in [
        (Method::GET, "/owner", 400),
        (Method::GET, "/owner?domain=shop&user=%zz", 400),
        (Method::GET, "/owner?domain=shop&user=%ff", 400),
        (Method::GET, "/nothing", 404),
        (Method::POST, "/status", 405),
    ] {
        let what = format!("{method} {target}");
        let reply = cluster.http.send(method, admin, target, &[], Bytes::new()).await.unwrap();
        assert_eq!(reply.status, status, "{what}: {reply:?}");
        assert_error(&reply.body, "", &what);
    }
    assert_nothing_happened(&cluster).await;
}

/// `body` is `{"error": text}` and the text contains `part`.
fn assert_error(body: &str, part: &str, what: &str) {
    let parsed: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{what}: {body:?}"));
    let error = parsed["error"].as_str().unwrap_or_else(|| panic!("{what}: {body}"));
    assert!(!error.is_empty() && error.contains(part), "{what}: {error}");
}

fn request_in(domain: &str, hits: Option<u64>) -> RateLimitRequest {
    let entries = vec![Entry { key: "user".into(), value: "ann".into() }];
    let descriptor = RateLimitDescriptor { entries, hits_addend: hits, ..Default::default() };
    RateLimitRequest { domain: domain.into(), descriptors: vec![descriptor], hits_addend: 0 }
}

fn grpc(node: &Node) -> RlsClient {
    RlsClient::new(&Endpoint::from_shared(format!("http://{}", node.grpc)).unwrap())
}

/// A message with the five bytes that gRPC puts before it.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, message].concat()
}

/// One gRPC call with a body as given; its status.
async fn raw_call(addr: SocketAddr, path: &str, body: Vec<u8>) -> Option<String> {
    let stream = TcpStream::connect(addr).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let driver = tokio::spawn(connection);
    let request = http::Request::post(format!("http://{addr}{path}"))
        .header("content-type", "application/grpc")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
    let trailers = body.collect().await.unwrap().trailers().cloned();
    driver.abort();
    let status = |headers: &http::HeaderMap| {
        headers.get("grpc-status").map(|code| code.to_str().unwrap().to_owned())
    };
    status(&parts.headers).or_else(|| trailers.as_ref().and_then(status))
}

/// Sends the bytes and returns everything until the listener closes.
async fn noise_to(addr: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let mut answer = Vec::new();
    // The listener may close before everything is sent, and while its response is read.
    let exchange = async {
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        let _ = stream.read_to_end(&mut answer).await;
    };
    let closed = tokio::time::timeout(TIMEOUT, exchange).await;
    assert!(closed.is_ok(), "{addr} keeps the connection open");
    answer
}

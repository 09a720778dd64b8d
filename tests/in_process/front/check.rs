//! `POST /v1/check` and the pages beside it.

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate::config::Auth;
use tidegate::front::bounds::Bounds;

use super::support::{
    Readiness, RecordedCheck, Table, http_listener, http_listener_with, parse, post_check, request,
    send,
};

fn body_in(domain: &str) -> String {
    format!(r#"{{"domain":"{domain}","descriptors":[{{"entries":[{{"key":"k","value":"v"}}]}}]}}"#)
}

#[tokio::test]
async fn a_check_is_passed_on_as_sent() {
    let table = Table::usual();
    let listener = http_listener(&table, Bounds::default(), "").await;
    let body = r#"{"domain":"open","hits_addend":"3","descriptors":[
        {"entries":[{"key":"user","value":"ann"},{"key":"path"}]},
        {"entries":[{"key":"ip","value":"::1"}],"hitsAddend":2,"isNegativeHits":true}]}"#;
    let reply = post_check(listener.addr, body.as_bytes()).await;
    assert_eq!(reply.status, 200);
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let expected = RecordedCheck {
        domain: "open".into(),
        descriptors: vec![vec![pair("user", "ann"), pair("path", "")], vec![pair("ip", "::1")]],
        own_hits: vec![None, Some(-2)],
        hits: 3,
    };
    assert_eq!(table.checks(), [expected]);
}

#[tokio::test]
async fn verdicts_become_status_headers_and_body() {
    let table = Table::usual();
    let listener = http_listener(&table, Bounds::default(), "").await;

    let reply = post_check(listener.addr, body_in("open").as_bytes()).await;
    assert_eq!((reply.status, reply.header("x-ratelimit-remaining")), (200, Some("7")));
    assert_eq!(reply.header("ratelimit"), Some("\"login\";r=7;t=12"));
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert!(reply.body.starts_with(r#"{"overallCode":"OK","statuses":[{"#), "{}", reply.body);

    let reply = post_check(listener.addr, body_in("limited").as_bytes()).await;
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("12")));
    assert!(reply.body.starts_with(r#"{"overallCode":"OVER_LIMIT""#), "{}", reply.body);

    // A domain without rules is no error.
    let reply = post_check(listener.addr, body_in("unknown").as_bytes()).await;
    assert_eq!((reply.status, reply.header("ratelimit")), (200, None));
    assert_eq!(reply.body, r#"{"overallCode":"OK","statuses":[{"code":"OK"}]}"#);
}

#[tokio::test]
async fn http2_is_used_after_its_preface() {
    let table = Table::usual();
    let listener = http_listener(&table, Bounds::default(), "").await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let request = http::Request::post(format!("http://{}/v1/check", listener.addr))
        .body(Full::new(Bytes::from(body_in("limited"))))
        .expect("a request");
    let response = client.request(request).await.expect("a response");
    assert_eq!((response.version(), response.status().as_u16()), (http::Version::HTTP_2, 429));
    assert_eq!(response.headers()["retry-after"], "12");
}

#[tokio::test]
async fn the_denied_status_is_configurable() {
    let table = Table::usual();
    for (configured, status) in [(503, 503), (200, 429), (9_999, 429)] {
        let auth = Auth::default();
        let listener =
            http_listener_with(&table, Bounds::default(), auth, Readiness(Ok(())), configured)
                .await;
        assert_eq!(post_check(listener.addr, body_in("limited").as_bytes()).await.status, status);
    }
}

#[tokio::test]
async fn bad_requests_get_an_error_and_are_not_counted() {
    let table = Table::usual();
    let listener = http_listener(&table, Bounds::default(), "").await;
    let entry = r#"{"key":"k","value":"v"}"#;
    let descriptor = format!(r#"{{"entries":[{entry}]}}"#);
    let with = |descriptors: &str| format!(r#"{{"domain":"d","descriptors":[{descriptors}]}}"#);
    let many = |item: &str, n: usize| vec![item; n].join(",");
    let cases: Vec<(Vec<u8>, u16, &str)> = vec![
        (b"".into(), 400, "EOF"),
        (b"null".into(), 400, "expected struct envoy"),
        (b"{}".into(), 400, "rate limit domain must not be empty"),
        (br#"{"domain":"d"}"#.into(), 400, "rate limit descriptor list must not be empty"),
        (b"\xff\xfe{}".into(), 400, "not UTF-8"),
        (br#"{"domain":"d","unknown":1}"#.into(), 400, "unknown field `unknown`"),
        (br#"{"domain":["d"]}"#.into(), 400, "domain: invalid type"),
        (br#"{"domain":"d","descriptors":[{"entries":[{"key":7}]}]}"#.into(), 400, "key: invalid"),
        ("[".repeat(10_000).into(), 400, "expected struct envoy"),
        (with(&"{\"entries\":[".repeat(10_000))[..60_000].into(), 400, "unknown field `entries`"),
        (with(&many(&descriptor, 33)).into(), 400, "33 descriptors; at most 32"),
        (with(&format!(r#"{{"entries":[{}]}}"#, many(entry, 17))).into(), 400, "17 entries"),
        (
            with(&format!(r#"{{"entries":[{{"key":"{}"}}]}}"#, "k".repeat(1_025))).into(),
            400,
            "1025 bytes; at most 1024",
        ),
        (vec![b' '; 64 * 1024 + 1], 413, "larger than 65536 bytes"),
        (vec![b'{'; 4 * 1024 * 1024], 413, "larger than 65536 bytes"),
    ];
    let n = cases.len() as u64;
    for (body, status, part) in cases {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let reply = post_check(listener.addr, &body).await;
        assert_eq!(reply.status, status, "{shown}");
        assert!(reply.error().contains(part), "{shown}\ngot: {}\nexpected: {part}", reply.error());
    }
    assert_eq!(table.checks(), []);
    assert_eq!(listener.stats.refused.get(), n);
    assert_eq!(post_check(listener.addr, body_in("open").as_bytes()).await.status, 200);
}

#[tokio::test]
async fn a_body_without_a_length_is_bounded_too() {
    let table = Table::usual();
    let listener =
        http_listener(&table, Bounds { body_bytes_max: 100, ..Bounds::default() }, "").await;
    let mut bytes =
        b"POST /v1/check HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..10 {
        bytes.extend_from_slice(format!("40\r\n{}\r\n", " ".repeat(64)).as_bytes());
    }
    assert_eq!(parse(&send(listener.addr, &bytes).await).status, 413);
    assert_eq!(table.checks(), []);
}

#[tokio::test]
async fn a_body_that_never_ends_is_given_up() {
    let table = Table::usual();
    let request_timeout = std::time::Duration::from_millis(50);
    let listener = http_listener(&table, Bounds { request_timeout, ..Bounds::default() }, "").await;
    let bytes = b"POST /v1/check HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\n{";
    let reply = parse(&send(listener.addr, bytes).await);
    assert_eq!((reply.status, reply.header("connection")), (408, Some("close")));
    assert_eq!(table.checks(), []);
}

#[tokio::test]
async fn a_decision_that_does_not_come_is_a_503() {
    let table = Table::usual();
    let request_timeout = std::time::Duration::from_millis(50);
    let listener = http_listener(&table, Bounds { request_timeout, ..Bounds::default() }, "").await;
    let reply = post_check(listener.addr, body_in("held").as_bytes()).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
}

/// A page in a browser on this machine can reach a listener on loopback.
#[tokio::test]
async fn a_web_page_of_another_site_counts_nothing() {
    let table = Table::usual();
    let listener = http_listener(&table, Bounds::default(), "").await;
    let body = body_in("open");
    for (n, path) in (1..).zip(["/v1/check", "/json"]) {
        for header in [("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")] {
            let headers = [("content-type", "text/plain"), header];
            let reply = request(listener.addr, "POST", path, &headers, body.as_bytes()).await;
            assert_eq!(reply.status, 403, "{path} {header:?}");
            assert!(reply.error().contains("send it from a program such as curl"), "{reply:?}");
        }
        assert_eq!(listener.stats.refused.get(), 2 * n);
    }
    assert_eq!(table.checks(), []);
    for path in ["/v1/check", "/json"] {
        let headers = [("origin", "http://test"), ("sec-fetch-site", "same-origin")];
        let reply = request(listener.addr, "POST", path, &headers, body.as_bytes()).await;
        assert_eq!(reply.status, 200, "{path}");
    }
}

/// `curl -d` sets the content type of a form.
#[tokio::test]
async fn the_content_type_does_not_matter() {
    let table = Table::usual();
    let listener = http_listener(&table, Bounds::default(), "").await;
    let body = body_in("open");
    for content_type in ["application/json", "application/x-www-form-urlencoded", "text/plain"] {
        let headers = [("content-type", content_type)];
        let reply = request(listener.addr, "POST", "/v1/check", &headers, body.as_bytes()).await;
        assert_eq!(reply.status, 200, "{content_type}");
    }
    let reply = request(listener.addr, "POST", "/v1/check", &[], body.as_bytes()).await;
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn other_paths_and_methods_get_advice() {
    let table = Table::usual();
    let listener = http_listener(&table, Bounds::default(), "").await;
    let reply = request(listener.addr, "GET", "/v1/check", &[], b"").await;
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
    assert!(reply.error().contains("GET / lists"));
    let reply = request(listener.addr, "GET", "/nothing", &[], b"").await;
    assert_eq!(reply.status, 404);
    assert!(reply.error().contains("nothing at /nothing"));
    let reply = request(listener.addr, "GET", "/", &[], b"").await;
    assert_eq!(reply.status, 200);
    assert!(reply.body.contains("POST /v1/check"));
    assert_eq!(table.checks(), []);
}

#[tokio::test]
async fn probes_get_the_readiness() {
    let table = Table::usual();
    let listener = http_listener(&table, Bounds::default(), "").await;
    assert_eq!(request(listener.addr, "GET", "/healthz", &[], b"").await.body, "ok\n");
    assert_eq!(request(listener.addr, "GET", "/readyz", &[], b"").await.status, 200);
    let metrics = request(listener.addr, "GET", "/metrics", &[], b"").await;
    assert_eq!(metrics.body, "# EOF\n");
    assert!(metrics.header("content-type").is_some_and(|it| it.starts_with("application/openm")));

    let not_ready = Readiness(Err("no peers yet".into()));
    let auth = Auth::default();
    let listener = http_listener_with(&table, Bounds::default(), auth, not_ready, 429).await;
    let reply = request(listener.addr, "GET", "/readyz", &[], b"").await;
    assert_eq!((reply.status, reply.body.as_str()), (503, "not ready: no peers yet\n"));
    assert_eq!(request(listener.addr, "GET", "/healthz", &[], b"").await.status, 200);
}

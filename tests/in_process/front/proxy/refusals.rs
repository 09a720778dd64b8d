//! Requests that the limits refuse, hold, or cannot decide.

use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt, Full};
use tidegate::decide::CheckResponse;
use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
use tidegate_limiter::units::Span;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::support::{
    Table, admitted, answer, limited, parse, refused, request, rule, send, status,
};
use super::support::{OK, RawApp, domain, http2, proxy, read_until};

#[tokio::test]
async fn a_refusal_is_a_problem_with_all_headers() {
    let app = RawApp::start(&[]).await;
    for (more, code) in [("", 429), ("denied_status = 503\n", 503)] {
        let more = format!("{more}{}", domain("limited"));
        let proxy = proxy(&Table::usual(), &[app.addr], &more).await;
        let reply = request(proxy.addr(), "GET", "/", &[], b"").await;
        assert_eq!(reply.status, code);
        assert_eq!(reply.header("content-type"), Some("application/problem+json"));
        assert_eq!(reply.header("retry-after"), Some("12"));
        assert_eq!(reply.header("x-ratelimit-remaining"), Some("0"));
        assert_eq!(reply.header("ratelimit"), Some("\"login\";r=0;t=12"));
        assert_eq!(reply.header("ratelimit-policy"), Some("\"login\";q=10;w=60"));
        let problem: serde_json::Value = serde_json::from_str(&reply.body).expect("JSON");
        assert_eq!(problem["status"], code);
        assert_eq!(problem["detail"], "over the limit; try again in 12 s");
        assert_eq!(problem["violated-policies"], serde_json::json!(["login"]));
        assert_eq!(proxy.listener.stats.refused.get(), 0);
    }
    assert_eq!(app.text(), "");
}

#[tokio::test]
async fn a_refusal_of_grpc_is_a_status_of_grpc_with_pushback() {
    let never = refused(10, Span::from_secs(12), Retry::Never);
    let never = answer(vec![status(rule(None, &[(10, 60)]), &[never], 0)]);
    let app = RawApp::start(&[]).await;
    let table = Table::new([("limited", limited()), ("never", never)]);
    for (name, pushback) in [("limited", "11200"), ("never", "-1")] {
        let proxy = proxy(&table, &[app.addr], &domain(name)).await;
        let mut client = http2(proxy.addr()).await;
        let request = Request::post("http://shop/s/m")
            .header("content-type", "application/grpc+proto")
            .body(Full::new(Bytes::from("\0\0\0\0\0")))
            .expect("a request");
        let response = client.send_request(request).await.expect("a response");
        assert_eq!((response.status().as_u16(), response.version()), (200, Version::HTTP_2));
        let headers = response.headers();
        assert_eq!(headers["grpc-status"], "8");
        assert_eq!(headers["grpc-retry-pushback-ms"], pushback);
        assert_eq!(headers["content-type"], "application/grpc");
        assert!(headers["grpc-message"].to_str().unwrap().starts_with("over the limit"));
        let body = response.into_body().collect().await.expect("a body");
        assert!(body.to_bytes().is_empty());
    }
    assert_eq!(app.text(), "");
}

#[tokio::test]
async fn a_body_that_is_refused_is_never_read_as_the_next_request() {
    let hidden = "GET /hidden HTTP/1.1\r\nhost: t\r\n\r\n";
    let app = RawApp::start(&[OK, OK]).await;
    for (framing, body) in [
        ("content-length: 1000000\r\n".to_owned(), hidden.to_owned()),
        (format!("content-length: {}\r\n", hidden.len()), hidden.to_owned()),
        ("transfer-encoding: chunked\r\n".to_owned(), format!("ffff\r\n{hidden}")),
    ] {
        let table = Table::usual();
        let proxy = proxy(&table, &[app.addr], &domain("limited")).await;
        let head = format!("POST / HTTP/1.1\r\nhost: t\r\n{framing}\r\n");
        // The body comes with the head, and after the response.
        for pieces in [vec![format!("{head}{body}")], vec![head, body]] {
            let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
            let mut pieces = pieces.into_iter();
            let first = pieces.next().expect("a piece");
            stream.write_all(first.as_bytes()).await.expect("sent");
            let head = read_until(&mut stream, "\r\n\r\n").await;
            assert!(head.starts_with("HTTP/1.1 429 "), "{head}");
            assert!(head.contains("connection: close\r\n"), "{head}");
            for piece in pieces {
                let _ = stream.write_all(piece.as_bytes()).await;
            }
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            let rest = String::from_utf8_lossy(&rest).into_owned();
            assert!(!rest.contains("HTTP/1.1"), "a second response: {rest}");
        }
        assert_eq!(table.checks().len(), 2, "{framing}");
    }
    assert_eq!(app.text(), "");
}

#[tokio::test]
async fn a_client_that_still_uploads_reads_its_refusal() {
    let app = RawApp::start(&[]).await;
    let proxy = proxy(&Table::usual(), &[app.addr], &domain("limited")).await;
    let body = vec![7; 8 << 20];
    let reply = request(proxy.addr(), "POST", "/", &[], &body).await;
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("12")));
}

fn queued(delay: Span) -> CheckResponse {
    let verdict = Verdict { delay, ..admitted(10, 5, Span::from_secs(1)) };
    answer(vec![status(rule(None, &[(10, 1)]), &[verdict], 0)])
}

#[tokio::test]
async fn a_delay_is_waited_out_before_the_request_passes() {
    let delay = Span::from_millis(60);
    let app = RawApp::start(&[OK]).await;
    let proxy = proxy(&Table::new([("queue", queued(delay))]), &[app.addr], &domain("queue")).await;
    let before = tokio::time::Instant::now();
    let reply = request(proxy.addr(), "GET", "/", &[], b"").await;
    assert_eq!((reply.status, reply.header("x-ratelimit-delay")), (200, Some("0.060")));
    assert!(before.elapsed() >= delay.to_std(), "it passed before its turn");
}

#[tokio::test]
async fn a_queue_is_bounded_in_time_and_number_and_gives_hits_back() {
    let app = RawApp::start(&[OK]).await;
    let table = Table::new([("queue", queued(Span::from_secs(9)))]);
    // Too long.
    let hold = domain("queue").replace("[auth]\n", "[auth]\nhold_max = \"8s\"\n");
    let first = proxy(&table, &[app.addr], &hold).await;
    let reply = request(first.addr(), "GET", "/", &[], b"").await;
    assert_eq!(reply.status, 429);
    assert!(reply.body.contains("queue"), "{}", reply.body);
    let hits: Vec<i64> = table.checks().iter().map(|check| check.hits).collect();
    assert_eq!(hits, [1, -1]);
    // Too many: the first is held.
    let table = Table::new([("queue", queued(Span::from_secs(9)))]);
    let more = format!("held_max = 1\n{}", domain("queue"));
    let second = proxy(&table, &[app.addr], &more).await;
    let mut held = TcpStream::connect(second.addr()).await.expect("a connection");
    held.write_all(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("sent");
    table.until_checked().await;
    assert_eq!(request(second.addr(), "GET", "/", &[], b"").await.status, 429);
    let hits: Vec<i64> = table.checks().iter().map(|check| check.hits).collect();
    assert_eq!(hits, [1, 1, -1]);
    assert_eq!(app.text(), "");
}

/// The requests behind a turn have later ones, so one that has passed is not given out again.
#[tokio::test]
async fn what_is_refused_at_its_turn_gives_back_all_but_that() {
    let app = RawApp::start(&[]).await;
    for (queue, hits) in [(Some(3), vec![1]), (None, vec![1, -1])] {
        let parts = QuotaParts {
            algorithm: Algorithm::LeakyBucket,
            limit: 10,
            window: Span::from_secs(1),
            burst: 10,
            sub_windows: 1,
            queue,
        };
        let mut rule = rule(None, &[]);
        rule.limits.push(Quota::new(parts).expect("valid"));
        let verdict = admitted(10, 5, Span::from_secs(1));
        let table = Table::new([("full", answer(vec![status(rule, &[verdict], 0)]))]);
        let proxy = proxy(&table, &[app.addr], &domain("full")).await;
        assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").await.status, 429);
        let counted: Vec<i64> = table.checks().iter().map(|check| check.hits).collect();
        assert_eq!(counted, hits, "queue {queue:?}");
    }
    assert_eq!(app.text(), "");
}

#[tokio::test]
async fn without_a_decision_nothing_passes() {
    let app = RawApp::start(&[]).await;
    let table = Table::usual();
    let proxy = proxy(&table, &[app.addr], &domain("held")).await;
    let bytes = b"GET / HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n";
    let reply = parse(&send(proxy.addr(), bytes).await);
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    assert_eq!(app.text(), "");
}

#[tokio::test]
async fn a_malformed_request_is_neither_counted_nor_passed_on() {
    let app = RawApp::start(&[]).await;
    let table = Table::usual();
    let proxy = proxy(&table, &[app.addr], &domain("open")).await;
    for (head, code, part) in [
        ("GET / HTTP/1.1\r\n", 400, "exactly one Host"),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n", 400, "exactly one Host"),
        ("CONNECT a:1 HTTP/1.1\r\nhost: a\r\n", 501, "CONNECT"),
        ("GET / HTTP/1.1\r\nhost: a\r\nexpect: gold\r\n", 417, "100-continue"),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n",
            400,
            "both Content-Length and Transfer-Encoding",
        ),
        ("GET / HTTP/1.1\r\nhost: a\n", 400, "LF alone"),
    ] {
        let bytes = format!("{head}connection: close\r\n\r\n0\r\n\r\n");
        let reply = parse(&send(proxy.addr(), bytes.as_bytes()).await);
        assert_eq!(reply.status, code, "{head:?} {}", reply.body);
        assert!(reply.body.contains(part), "{}", reply.body);
    }
    assert_eq!((table.checks().len(), proxy.listener.stats.refused.get()), (0, 6));
    assert_eq!(app.text(), "");
}

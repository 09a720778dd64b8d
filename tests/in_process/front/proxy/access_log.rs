//! The access log.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tidegate_limiter::engine::Verdict;
use tidegate_limiter::units::Span;

use serde_json::Value;
use tidegate_testkit::wait::{until, whole_lines};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::super::support::{Table, admitted, answer, request, rule, send, status};
use super::support::{OK, RawApp, domain, proxy};

/// The lines of the file, once there are `count` of them.
async fn lines(path: &Path, count: usize) -> Vec<Value> {
    let read = async || {
        let lines = whole_lines(path);
        if lines.len() == count { Ok(lines) } else { Err(format!("{lines:?}")) }
    };
    let (lines, _) = until("lines", Duration::from_secs(10), read).await;
    lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test]
async fn each_request_is_one_line_with_rule_and_verdict() {
    let dir = tempfile::tempdir().expect("a folder");
    let app = RawApp::start(&[OK, ""]).await;
    let path = dir.path().join("access.log");
    let log = format!("access_log = \"{}\"\n", path.display());
    let of = |name: &str| format!("{log}{}", domain(name));

    let open = proxy(&Table::usual(), &[app.addr], &of("open")).await;
    let target = "/a?b=%22c%22'";
    assert_eq!(request(open.addr(), "PUT", target, &[], b"").await.status, 200);
    let limited = proxy(&Table::usual(), &[app.addr], &of("limited")).await;
    assert_eq!(request(limited.addr(), "GET", "/", &[], b"").await.status, 429);
    let free = proxy(&Table::usual(), &[app.addr], &of("free")).await;
    assert_eq!(request(free.addr(), "GET", "/", &[], b"").await.status, 502);
    send(free.addr(), b"GET / HTTP/1.1\r\n\r\n").await;
    // Each of the proxies has a thread that writes.
    let mut lines = lines(&path, 4).await;
    lines.sort_by_key(|line| line["status"].as_u64());
    let shown: Vec<_> = lines
        .iter()
        .map(|line| {
            let text = |key: &str| line[key].as_str().unwrap_or("-").to_owned();
            (
                line["status"].as_u64().unwrap(),
                text("verdict"),
                text("rule"),
                line["bytes"].as_u64(),
            )
        })
        .collect();
    let bytes = |at: usize| shown[at].3;
    assert!((1..4).all(|at| bytes(at) > Some(50)), "{shown:?}");
    assert_eq!(
        shown,
        [
            (200, "allowed".to_owned(), "shop.user".to_owned(), Some(2)),
            (400, "malformed".to_owned(), "-".to_owned(), bytes(1)),
            (429, "refused".to_owned(), "shop.user".to_owned(), bytes(2)),
            (502, "allowed".to_owned(), "-".to_owned(), bytes(3)),
        ]
    );
    let first = &lines[0];
    for (key, value) in
        [("client", "127.0.0.1"), ("method", "PUT"), ("target", target), ("host", "test")]
    {
        assert_eq!(first[key], value);
    }
    assert_eq!(first["protocol"], "HTTP/1.1");
    assert!(first["time"].as_f64() > Some(1.7e9) && first["duration_ms"].as_f64() > Some(0.0));

    // After a rotation lines go to a new file.
    let old = dir.path().join("access.log.1");
    fs::rename(&path, &old).expect("renamed");
    until("a new file", Duration::from_secs(10), async || {
        path.exists().then_some(()).ok_or_else(|| "none".to_owned())
    })
    .await;
}

#[tokio::test]
async fn a_line_names_the_host_that_the_application_is_told() {
    let dir = tempfile::tempdir().expect("a folder");
    let app = RawApp::start(&[OK]).await;
    let path = dir.path().join("access.log");
    let more = format!("access_log = \"{}\"\n", path.display());
    let proxy = proxy(&Table::usual(), &[app.addr], &more).await;
    let head = b"GET http://real/x HTTP/1.1\r\nhost: forged\r\nconnection: close\r\n\r\n";
    send(proxy.addr(), head).await;
    assert_eq!(lines(&path, 1).await[0]["host"], "real");
    assert!(app.text().contains("\r\nhost: real\r\n"), "{}", app.text());
}

#[tokio::test]
async fn a_refused_head_request_was_sent_no_body() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("access.log");
    let more = format!("access_log = \"{}\"\n{}", path.display(), domain("limited"));
    let app = RawApp::start(&[]).await;
    let proxy = proxy(&Table::usual(), &[app.addr], &more).await;
    let reply = request(proxy.addr(), "HEAD", "/", &[], b"").await;
    assert_eq!((reply.status, reply.body.as_str()), (429, ""));
    let line = &lines(&path, 1).await[0];
    assert_eq!((&line["status"], &line["bytes"]), (&Value::from(429), &Value::from(0)));
}

#[tokio::test]
async fn a_client_that_leaves_has_a_line_too() {
    let dir = tempfile::tempdir().expect("a folder");
    let app = RawApp::start(&[]).await;
    let path = dir.path().join("access.log");
    let more = format!("access_log = \"{}\"\n{}", path.display(), domain("held"));
    let table = Table::usual();
    let proxy = proxy(&table, &[app.addr], &more).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("sent");
    table.until_checked().await;
    drop(stream);
    let line = &lines(&path, 1).await[0];
    assert_eq!((&line["status"], &line["verdict"]), (&Value::from(499), &Value::from("undecided")));
}

/// The limits have decided it; it only has to wait for its turn.
#[tokio::test]
async fn a_client_that_leaves_the_queue_has_a_verdict_and_a_rule() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("access.log");
    let more = format!("access_log = \"{}\"\n{}", path.display(), domain("queue"));
    let verdict = Verdict { delay: Span::from_secs(1), ..admitted(10, 5, Span::from_secs(1)) };
    let queued = answer(vec![status(rule(Some("login"), &[(10, 60)]), &[verdict], 0)]);
    let table = Table::new([("queue", queued)]);
    let app = RawApp::start(&[]).await;
    let proxy = proxy(&table, &[app.addr], &more).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("sent");
    table.until_checked().await;
    drop(stream);
    let line = &lines(&path, 1).await[0];
    assert_eq!((&line["status"], &line["verdict"]), (&Value::from(499), &Value::from("allowed")));
    assert_eq!(line["rule"], "shop.user");
}

//! Connections that switch to another protocol.

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use tidegate_testkit::wait::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::support::{Table, in_time, parse};
use super::support::{App, OK, RawApp, app, domain, ok, proxy, read_until, whole};

pub(super) const ASK: &str = "GET /chat HTTP/1.1\r\nhost: t\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: k\r\n\r\n";

/// An application that switches and then sends back what it gets, until it is told to end.
pub(super) async fn echo() -> App {
    app(|mut request| async move {
        if request.headers().get("upgrade").is_none() {
            return ok("plain");
        }
        let upgrading = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgrading.await.expect("it switches"));
            let mut bytes = [0; 1024];
            loop {
                let n = stream.read(&mut bytes).await.unwrap_or(0);
                if n == 0 || bytes[..n] == *b"end" {
                    break;
                }
                if stream.write_all(&bytes[..n]).await.is_err() {
                    break;
                }
            }
            let _ = stream.write_all(b"bye").await;
            let _ = stream.shutdown().await;
        });
        let mut response = Response::new(whole(""));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert("connection", "upgrade".parse().expect("a value"));
        headers.insert("upgrade", "WebSocket".parse().expect("a value"));
        headers.insert("sec-websocket-accept", "a".parse().expect("a value"));
        response
    })
    .await
}

pub(super) async fn switched(stream: &mut TcpStream, bytes: &str) -> String {
    stream.write_all(bytes.as_bytes()).await.expect("sent");
    read_until(stream, "\r\n\r\n").await
}

#[tokio::test]
async fn bytes_pass_in_both_directions_after_the_application_has_switched() {
    let app = echo().await;
    let table = Table::usual();
    let proxy = proxy(&table, &[app.addr], &domain("open")).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
    let head = switched(&mut stream, ASK).await.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    for line in ["connection: upgrade\r\n", "upgrade: websocket\r\n", "sec-websocket-accept: a\r\n"]
    {
        assert!(head.contains(line), "{line} {head}");
    }
    // No frames are read: any bytes pass, also what would be a request.
    for text in ["\0\u{7f}\n\n", "GET /hidden HTTP/1.1\r\nhost: t\r\n\r\n"] {
        stream.write_all(text.as_bytes()).await.expect("sent");
        read_until(&mut stream, text).await;
    }
    assert_eq!(table.checks().len(), 1);
    // The application ends its side, and then the client does.
    stream.write_all(b"end").await.expect("sent");
    let mut rest = Vec::new();
    in_time("the end", stream.read_to_end(&mut rest)).await.expect("in order");
    assert_eq!(rest, b"bye");
}

#[tokio::test]
async fn a_side_that_has_ended_still_reads_the_other() {
    let app = echo().await;
    let proxy = proxy(&Table::usual(), &[app.addr], "").await;
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
    switched(&mut stream, ASK).await;
    stream.write_all(b"last words").await.expect("sent");
    stream.shutdown().await.expect("its side ends");
    let mut rest = Vec::new();
    in_time("the end", stream.read_to_end(&mut rest)).await.expect("in order");
    assert_eq!(rest, b"last wordsbye");
}

#[tokio::test]
async fn a_refused_upgrade_reaches_nobody() {
    let app = RawApp::start(&[]).await;
    let proxy = proxy(&Table::usual(), &[app.addr], &domain("limited")).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
    // The client does not wait for the answer.
    let ahead = format!("{ASK}GET /hidden HTTP/1.1\r\nhost: t\r\n\r\n");
    stream.write_all(ahead.as_bytes()).await.expect("sent");
    let mut reply = Vec::new();
    let _ = in_time("it is closed", stream.read_to_end(&mut reply)).await;
    assert_eq!(parse(&reply).status, 429);
    assert_eq!(String::from_utf8_lossy(&reply).matches("HTTP/1.1").count(), 1);
    assert_eq!(app.text(), "");
}

#[tokio::test]
async fn without_a_101_the_connection_ends_and_nothing_sent_ahead_is_passed_on() {
    let app = RawApp::start(&[OK, OK]).await;
    let proxy = proxy(&Table::usual(), &[app.addr], "").await;
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
    let ahead = format!("{ASK}GET /hidden HTTP/1.1\r\nhost: t\r\n\r\n");
    stream.write_all(ahead.as_bytes()).await.expect("sent");
    let mut reply = Vec::new();
    let _ = in_time("it is closed", stream.read_to_end(&mut reply)).await;
    let reply = parse(&reply);
    assert_eq!((reply.status, reply.header("connection")), (200, Some("close")));
    assert_eq!(reply.body, "ok");
    let text = app.text();
    assert!(text.contains("upgrade: websocket\r\n") && !text.contains("hidden"), "{text}");
}

#[tokio::test]
async fn upgrades_to_http_and_those_with_a_body_are_not_passed_on() {
    for ask in [
        "GET / HTTP/1.1\r\nhost: t\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: A\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: t\r\nconnection: upgrade\r\nupgrade: websocket, H2C\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: t\r\nconnection: upgrade\r\nupgrade: TLS/1.0, HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: t\r\nupgrade: websocket\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: t\r\nconnection: upgrade\r\nupgrade: websocket\r\ncontent-length: 2\r\n\r\nab",
        "GET / HTTP/1.0\r\nhost: t\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    ] {
        let app = RawApp::start(&[OK]).await;
        let proxy = proxy(&Table::usual(), &[app.addr], "").await;
        let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
        stream.write_all(ask.as_bytes()).await.expect("sent");
        let mut reply = Vec::new();
        let _ = in_time("it is closed", stream.read_to_end(&mut reply)).await;
        assert_eq!(parse(&reply).status, 200, "{ask}");
        let text = app.text();
        let head = text.split("\r\n\r\n").next().expect("a head");
        for name in ["\r\nupgrade:", "\r\nconnection:", "\r\nhttp2-settings:"] {
            assert!(!head.contains(name), "{ask}\n{head}");
        }
    }
}

/// Only a connection of HTTP/1.1 can switch.
#[tokio::test]
async fn an_upgrade_is_not_passed_on_to_servers_that_are_spoken_to_by_http2() {
    let respond = |request: http::Request<hyper::body::Incoming>| async move {
        let asks = request.headers().contains_key("upgrade");
        ok(format!("{:?} {asks}", request.version()))
    };
    let (first, second) = (app(respond).await, app(respond).await);
    for (protocol, more) in [("h2c", ""), ("auto", "content-type: application/grpc\r\n")] {
        let keys = format!("protocol = \"{protocol}\"\neject_after = 1\n");
        let proxy = proxy(&Table::usual(), &[first.addr, second.addr], &keys).await;
        for _ in 0..4 {
            let ask = ASK.replace("host: t\r\n", &format!("host: t\r\n{more}"));
            let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
            stream.write_all(ask.as_bytes()).await.expect("sent");
            let mut reply = Vec::new();
            let _ = in_time("it is closed", stream.read_to_end(&mut reply)).await;
            let reply = parse(&reply);
            assert_eq!((reply.status, reply.body.as_str()), (200, "HTTP/2.0 false"), "{protocol}");
        }
        assert_eq!(proxy.upstreams.ejections.get(), 0);
    }
}

#[tokio::test]
async fn an_application_cannot_switch_to_what_the_client_did_not_ask_for() {
    let answer = "HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: other\r\n\r\nHTTP/1.1 200 OK\r\n\r\n";
    let app = RawApp::start(&[answer]).await;
    let proxy = proxy(&Table::usual(), &[app.addr], "").await;
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
    stream.write_all(ASK.as_bytes()).await.expect("sent");
    let mut reply = Vec::new();
    let _ = in_time("it is closed", stream.read_to_end(&mut reply)).await;
    assert_eq!(parse(&reply).status, 502);
}

#[tokio::test]
async fn a_quiet_tunnel_is_closed_and_a_drain_cuts_one() {
    let app = echo().await;
    let quiet = proxy(&Table::usual(), &[app.addr], "idle_timeout = \"200ms\"\n").await;
    let mut stream = TcpStream::connect(quiet.addr()).await.expect("a connection");
    switched(&mut stream, ASK).await;
    let mut rest = Vec::new();
    let _ = in_time("it is closed", stream.read_to_end(&mut rest)).await;

    let more = "[limits]\ndrain_timeout = \"200ms\"\n";
    let mut drained = proxy(&Table::usual(), &[app.addr], more).await;
    let mut stream = TcpStream::connect(drained.addr()).await.expect("a connection");
    switched(&mut stream, ASK).await;
    let stats = Arc::clone(&drained.listener.stats);
    assert_eq!(stats.accepted.get() - stats.ended.get(), 1, "it counts as a connection");
    drained.listener.drain.cancel();
    let _ = in_time("it is cut", stream.read_to_end(&mut rest)).await;
    in_time("the proxy ends", &mut drained.listener.served).await.expect("a task");
    assert_eq!(stats.dropped.get(), 1);
    eventually("it has ended", Duration::from_secs(10), || {
        stats.accepted.get() == stats.ended.get()
    })
    .await;
}

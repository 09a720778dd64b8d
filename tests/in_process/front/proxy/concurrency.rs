//! How long a request has its place among those in flight.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tidegate::config::Config;
use tidegate::decide::Decider;
use tidegate::node;
use tidegate_testkit::in_process::standalone;
use tidegate_testkit::rules::book;
use tidegate_testkit::wait::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::super::support::{in_time, request};
use super::support::{RawApp, app, byte_server, proxy_to, urls};
use super::upgrades::{ASK, echo, switched};

/// What one that was cut off keeps its place for.
const CUT_OFF_GRACE: Duration = Duration::from_millis(250);

async fn one_at_a_time() -> Arc<Decider> {
    let rules = "domain: http\ndescriptors:\n  - {key: remote_address, node_concurrency: 1}\n";
    let (environment, _) = node::system_environment();
    let core = standalone(Config::default(), book(rules), environment).await;
    Arc::new(core.decider.clone())
}

#[tokio::test]
async fn a_place_is_free_once_the_response_has_ended_whatever_marks_its_end() {
    let head = "HTTP/1.1 200 OK\r\n";
    let chunks = "transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n";
    let answers = [
        format!("{head}content-length: 2\r\n\r\nok"),
        format!("{head}{chunks}\r\n"),
        format!("{head}{chunks}x-end: 1\r\n\r\n"),
    ];
    let answers: Vec<&str> = answers.iter().flat_map(|it| [it.as_str(); 4]).collect();
    let chunked = RawApp::start(&answers).await;
    let until_close = format!("{head}\r\nok").into_bytes();
    let (until_close, _running) = byte_server(false, until_close, false).await;
    let http2 = app(|request| async move {
        let mut frames = vec![Frame::data(Bytes::from_static(b"ok"))];
        if request.uri().path() == "/trailers" {
            let trailers =
                [("grpc-status".parse().expect("a name"), HeaderValue::from_static("0"))];
            frames.push(Frame::trailers(HeaderMap::from_iter(trailers)));
        }
        let frames = frames.into_iter().map(Ok);
        Response::new(StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync())
    })
    .await;
    for (name, addr, more, path, times) in [
        ("HTTP/1.1", chunked.addr, "", "/", answers.len()),
        ("until close", until_close, "", "/", 4),
        ("HTTP/2", http2.addr, "protocol = \"h2c\"\n", "/", 4),
        ("trailers", http2.addr, "protocol = \"h2c\"\n", "/trailers", 4),
    ] {
        let proxy = proxy_to(&one_at_a_time().await, &urls(&[addr]), more).await;
        for n in 0..times {
            let reply = request(proxy.addr(), "GET", path, &[], b"").await;
            assert_eq!(reply.status, 200, "{name}, number {n}: {reply:?}");
        }
    }
}

#[tokio::test]
async fn a_place_is_free_once_both_sides_of_a_tunnel_have_ended() {
    let app = echo().await;
    let proxy = proxy_to(&one_at_a_time().await, &urls(&[app.addr]), "").await;
    let mut shortest = Duration::MAX;
    // Of a busy machine, the quickest.
    for _ in 0..5 {
        let mut tunnel = TcpStream::connect(proxy.addr()).await.expect("a connection");
        let head = switched(&mut tunnel, ASK).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").await.status, 429);
        tunnel.write_all(b"end").await.expect("sent");
        in_time("the end", tunnel.read_to_end(&mut Vec::new())).await.expect("in order");
        let start = Instant::now();
        drop(tunnel);
        until("a place", Duration::from_secs(10), async || {
            match request(proxy.addr(), "GET", "/", &[], b"").await.status {
                200 => Ok(()),
                status => Err(status.to_string()),
            }
        })
        .await;
        shortest = shortest.min(start.elapsed());
    }
    assert!(shortest < CUT_OFF_GRACE, "{shortest:?}");
}

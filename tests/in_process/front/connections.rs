//! Connections: patience, bounds and drain.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tidegate::front::bounds::{Bounds, MaxAge};
use tidegate::front::rls::message::{Entry, RateLimitDescriptor, RateLimitRequest};
use tidegate_testkit::wait::{HANGS_AFTER, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use super::support::{
    Table, first_reset, grpc_listener, header_frame, http_listener, in_time, open_stream, parse,
    request, unread,
};

const SHORT: Duration = Duration::from_millis(250);
const LONG: Duration = Duration::from_secs(3_600);
const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n";

fn patient() -> Bounds {
    Bounds { header_timeout: LONG, idle_timeout: LONG, drain_timeout: LONG, ..Bounds::default() }
}

async fn connect(addr: SocketAddr) -> TcpStream {
    TcpStream::connect(addr).await.expect("a connection")
}

/// Reads what comes until the server closes.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = in_time("read until the server closes", stream.read_to_end(&mut bytes)).await;
    bytes
}

/// Reads one answer to [`HEALTH`].
async fn healthy(stream: &mut TcpStream) {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\nok\n") {
        let n = in_time("read an answer", stream.read_buf(&mut bytes)).await.expect("an answer");
        assert_ne!(n, 0, "closed after {:?}", String::from_utf8_lossy(&bytes));
    }
}

fn get(addr: SocketAddr, path: &str) -> Request<Full<Bytes>> {
    Request::get(format!("http://{addr}{path}")).body(Full::default()).expect("a request")
}

fn held(domain: &str) -> Vec<u8> {
    let body = format!(r#"{{"domain":"{domain}","descriptors":[{{}}]}}"#);
    format!("POST /v1/check HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .into()
}

#[tokio::test]
async fn a_slow_header_is_cut() {
    let table = Table::usual();
    let listener = http_listener(&table, Bounds { header_timeout: SHORT, ..patient() }, "").await;
    for start in [&b"G"[..], b"GET /healthz HTTP/1.1\r\nhost:", b"PRI * HTT"] {
        let mut stream = connect(listener.addr).await;
        stream.write_all(start).await.expect("sent");
        assert_eq!(rest(&mut stream).await, b"", "{start:?}");
    }
    assert_eq!(listener.stats.slow.get(), 3);
    // Also the second request of a connection.
    let mut stream = connect(listener.addr).await;
    stream.write_all(HEALTH).await.expect("sent");
    healthy(&mut stream).await;
    stream.write_all(b"GET /hea").await.expect("sent");
    assert_eq!(rest(&mut stream).await, b"");
    assert_eq!(listener.stats.slow.get(), 4);
}

#[tokio::test]
async fn an_idle_connection_is_kept_until_the_idle_timeout_and_then_closed() {
    let table = Table::usual();
    let bounds = Bounds { header_timeout: SHORT, idle_timeout: 3 * SHORT, ..patient() };
    let listener = http_listener(&table, bounds, "").await;
    let mut stream = connect(listener.addr).await;
    stream.write_all(HEALTH).await.expect("sent");
    healthy(&mut stream).await;
    assert_eq!(rest(&mut stream).await, b"");
    assert_eq!((listener.stats.idle.get(), listener.stats.slow.get()), (1, 0));
}

#[tokio::test]
async fn a_long_request_is_neither_slow_nor_idle() {
    let table = Table::usual();
    let bounds = Bounds { header_timeout: SHORT, idle_timeout: SHORT, ..patient() };
    let listener = http_listener(&table, bounds, "").await;
    let mut stream = connect(listener.addr).await;
    stream.write_all(&held("held")).await.expect("sent");
    table.until_checked().await;
    // Another connection runs out of patience meanwhile: the timers have had their chance.
    let mut other = connect(listener.addr).await;
    other.write_all(b"G").await.expect("sent");
    rest(&mut other).await;
    table.gate.add_permits(1);
    assert_eq!(parse(&rest(&mut stream).await).status, 200);
}

/// With a window of one byte hyper hands a small response to h2 as a whole, where it waits.
#[tokio::test]
async fn a_client_that_does_not_read_its_responses_is_cut() {
    let table = Table::usual();
    let bounds = Bounds { send_timeout: SHORT, ..patient() };
    let listener = http_listener(&table, bounds, "").await;
    for (round, window) in [(1, 0), (2, 1)] {
        let unread = unread(listener.addr, window, &get(listener.addr, "/metrics"), 20).await;
        in_time("cut", unread.closed).await.expect("a task");
        assert_eq!(listener.stats.slow.get(), round, "window of {window}");
    }
    // Who reads may go on for as long as it likes.
    let mut stream = connect(listener.addr).await;
    for _ in 0..4 {
        stream.write_all(HEALTH).await.expect("sent");
        healthy(&mut stream).await;
        let unread = unread(listener.addr, 0, &get(listener.addr, "/healthz"), 1).await;
        in_time("cut", unread.closed).await.expect("a task");
    }
    assert_eq!(listener.stats.slow.get(), 6);
}

/// A client that sends all of its body before it reads gets the answer, not a reset.
#[tokio::test]
async fn a_body_that_is_too_large_is_answered_while_it_is_sent() {
    let table = Table::usual();
    let listener = http_listener(&table, patient(), "").await;
    let part = vec![b' '; 1 << 20];
    for length in ["content-length: 8388608", "transfer-encoding: chunked"] {
        let mut stream = connect(listener.addr).await;
        let head = format!("POST /v1/check HTTP/1.1\r\nhost: t\r\n{length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.expect("sent");
        let sent = async {
            for _ in 0..8 {
                if length.ends_with("chunked") {
                    stream.write_all(b"100000\r\n").await?;
                }
                stream.write_all(&part).await?;
                if length.ends_with("chunked") {
                    stream.write_all(b"\r\n").await?;
                }
            }
            std::io::Result::Ok(())
        };
        in_time("the body is sent", sent).await.expect("no reset");
        assert_eq!(parse(&rest(&mut stream).await).status, 413, "{length}");
    }
}

#[tokio::test]
async fn a_header_that_is_too_large_is_refused() {
    let table = Table::usual();
    let listener =
        http_listener(&table, Bounds { header_bytes_max: 8 * 1024, ..patient() }, "").await;
    let cookie = "c".repeat(64 * 1024);
    let reply = request(listener.addr, "GET", "/healthz", &[("cookie", &cookie)], b"").await;
    assert_eq!(reply.status, 431);
    assert_eq!(request(listener.addr, "GET", "/healthz", &[], b"").await.status, 200);
}

#[tokio::test]
async fn at_the_bound_the_next_connection_waits_for_one_to_end() {
    let table = Table::usual();
    let listener = http_listener(&table, Bounds { connections_max: 2, ..patient() }, "").await;
    let mut first = connect(listener.addr).await;
    let mut second = connect(listener.addr).await;
    for stream in [&mut first, &mut second] {
        stream.write_all(HEALTH).await.expect("sent");
        healthy(stream).await;
    }
    assert_eq!((listener.stats.accepted.get(), listener.stats.full.get()), (2, 1));
    // The kernel queues the third connection; the listener does not accept it.
    let mut third = connect(listener.addr).await;
    third.write_all(HEALTH).await.expect("sent");
    first.write_all(HEALTH).await.expect("sent");
    healthy(&mut first).await;
    assert_eq!(listener.stats.accepted.get(), 2);
    drop(second);
    healthy(&mut third).await;
    assert_eq!(listener.stats.accepted.get(), 3);
}

/// Connections from `127.0.0.host`.
async fn connect_from(host: u8, addr: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, host], 0).into()).expect("an address of loopback");
    socket.connect(addr).await.expect("a connection")
}

#[tokio::test]
async fn at_the_bound_of_an_address_its_next_connection_is_closed() {
    let table = Table::usual();
    let bounds = Bounds { connections_per_address_max: 2, exempt: Vec::new().into(), ..patient() };
    let listener = http_listener(&table, bounds, "").await;
    let mut first = connect_from(1, listener.addr).await;
    let mut second = connect_from(1, listener.addr).await;
    for stream in [&mut first, &mut second] {
        stream.write_all(HEALTH).await.expect("sent");
        healthy(stream).await;
    }
    for refused in 1..=3 {
        assert_eq!(rest(&mut connect_from(1, listener.addr).await).await, b"");
        assert_eq!(listener.stats.address_full.get(), refused);
    }
    // Another address is not affected, nor are the open connections.
    let mut other = connect_from(2, listener.addr).await;
    for stream in [&mut first, &mut second, &mut other] {
        stream.write_all(HEALTH).await.expect("sent");
        healthy(stream).await;
    }
    assert_eq!((listener.stats.accepted.get(), listener.stats.ended.get()), (3, 0));
    // A connection that ends makes room for another.
    drop(second);
    eventually("the second ends", HANGS_AFTER, || listener.stats.ended.get() == 1).await;
    let mut third = connect_from(1, listener.addr).await;
    third.write_all(HEALTH).await.expect("sent");
    healthy(&mut third).await;
}

#[tokio::test]
async fn loopback_has_no_bound_of_its_own() {
    let table = Table::usual();
    let bounds = Bounds { connections_per_address_max: 1, ..patient() };
    let listener = http_listener(&table, bounds, "").await;
    let mut streams = [connect_from(1, listener.addr).await, connect_from(1, listener.addr).await];
    for stream in &mut streams {
        stream.write_all(HEALTH).await.expect("sent");
        healthy(stream).await;
    }
    assert_eq!(listener.stats.address_full.get(), 0);
}

#[tokio::test]
async fn a_drain_finishes_what_is_in_flight_and_accepts_nothing_more() {
    let table = Table::usual();
    let mut listener = http_listener(&table, patient(), "").await;
    let mut idle = connect(listener.addr).await;
    idle.write_all(HEALTH).await.expect("sent");
    healthy(&mut idle).await;
    let mut busy = connect(listener.addr).await;
    busy.write_all(&held("held")).await.expect("sent");
    table.until_checked().await;

    listener.drain.cancel();
    assert_eq!(rest(&mut idle).await, b"", "the idle connection is closed at once");
    assert!(TcpStream::connect(listener.addr).await.is_err(), "the listener is closed");
    assert!(!listener.served.is_finished());

    table.gate.add_permits(1);
    let reply = parse(&rest(&mut busy).await);
    assert_eq!((reply.status, reply.header("connection")), (200, Some("close")));
    in_time("drain", &mut listener.served).await.expect("served to the end");
    assert_eq!((listener.stats.ended.get(), listener.stats.dropped.get()), (2, 0));
}

/// A connection of a gRPC client, with what its server says about its end.
async fn grpc_client(
    addr: SocketAddr,
) -> (SendRequest<Full<Bytes>>, JoinHandle<hyper::Result<()>>) {
    let stream = TokioIo::new(connect(addr).await);
    let (client, connection) =
        http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP/2");
    (client, tokio::spawn(connection))
}

#[tokio::test]
async fn an_old_connection_ends_when_nothing_is_in_flight_and_is_cut_in_the_end() {
    let table = Table::usual();
    let max_age = |grace| Some(MaxAge { after: SHORT, grace });
    let bounds = Bounds { max_age: max_age(LONG), ..patient() };
    let (listener, _health) = grpc_listener(&table, bounds).await;
    let (_idle, ended) = grpc_client(listener.addr).await;
    in_time("an idle connection", ended).await.expect("no panic").expect("a graceful end");

    let held = |addr| {
        let body = RateLimitRequest {
            domain: "held".into(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![Entry { key: "k".into(), value: "v".into() }],
                ..Default::default()
            }],
            ..Default::default()
        }
        .encode_to_vec();
        let mut message = vec![0];
        message.extend(u32::try_from(body.len()).expect("small").to_be_bytes());
        message.extend(body);
        let path = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        Request::post(format!("http://{addr}/{path}"))
            .header("content-type", "application/grpc")
            .body(Full::from(message))
            .expect("a request")
    };
    let (mut busy, ended) = grpc_client(listener.addr).await;
    let response = tokio::spawn(busy.send_request(held(listener.addr)));
    table.until_checked().await;
    // Twice its age, so that the end of the age is over.
    tokio::time::sleep(2 * SHORT).await;
    assert!(!response.is_finished() && !ended.is_finished());
    table.gate.add_permits(1);
    let response = in_time("the response", response).await.expect("no panic").expect("a response");
    assert_eq!(response.status(), 200);
    in_time("the connection", ended).await.expect("no panic").expect("a graceful end");

    let bounds = Bounds { max_age: max_age(SHORT), ..patient() };
    let (listener, _health) = grpc_listener(&table, bounds).await;
    let (mut busy, _ended) = grpc_client(listener.addr).await;
    let response = in_time("a cut", busy.send_request(held(listener.addr))).await;
    assert!(response.is_err(), "{response:?}");
}

#[tokio::test]
async fn a_drain_ends_even_if_a_request_does_not() {
    let table = Table::usual();
    let mut listener =
        http_listener(&table, Bounds { drain_timeout: SHORT, ..patient() }, "").await;
    let mut busy = connect(listener.addr).await;
    busy.write_all(&held("held")).await.expect("sent");
    table.until_checked().await;
    listener.drain.cancel();
    in_time("drain", &mut listener.served).await.expect("served to the end");
    assert_eq!(rest(&mut busy).await, b"");
    assert_eq!((listener.stats.ended.get(), listener.stats.dropped.get()), (1, 1));
}

#[tokio::test]
async fn noise_ends_its_own_connection_alone() {
    let table = Table::usual();
    let listener = http_listener(&table, patient(), "").await;
    let mut good = connect(listener.addr).await;
    for noise in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/check HTTP/1.1\r\nhost: t\r\ncontent-length: x\r\n\r\n",
        b"POST /v1/check HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let mut stream = connect(listener.addr).await;
        stream.write_all(noise).await.expect("sent");
        rest(&mut stream).await;
    }
    good.write_all(HEALTH).await.expect("sent");
    healthy(&mut good).await;
    assert_eq!(table.checks(), []);
}

/// Trailers end a request; those that do not are an error, and nothing is counted.
#[tokio::test]
async fn a_second_header_without_an_end_is_an_error_of_the_stream() {
    const PROTOCOL_ERROR: u32 = 1;
    let table = Table::usual();
    let listener = http_listener(&table, patient(), "").await;
    let mut frames = open_stream(1, "/v1/check");
    frames.extend(header_frame(1, b"\0\x01x\x01y"));
    assert_eq!(first_reset(listener.addr, &frames).await, (1, PROTOCOL_ERROR));
    assert_eq!(table.checks(), []);
}

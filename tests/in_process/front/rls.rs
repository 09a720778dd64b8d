//! Envoy's gRPC service and health.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tidegate::front::bounds::Bounds;
use tidegate::front::rls::message::{
    Code, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, Unit,
};
use tidegate::front::rls::{RlsClient, SERVICE_NAME};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::support::{Table, first_reset, grpc_listener, in_time, open_stream, send, unread};

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

fn endpoint(addr: SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{addr}")).expect("an address")
}

fn client(addr: SocketAddr) -> RlsClient {
    RlsClient::new(&endpoint(addr))
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |&(key, value): &(&str, &str)| Entry { key: key.into(), value: value.into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

fn request_in(domain: &str) -> RateLimitRequest {
    let descriptors = vec![descriptor(&[("k", "v")])];
    RateLimitRequest { domain: domain.into(), descriptors, hits_addend: 0 }
}

/// A request in the form in which gRPC sends it.
fn framed(domain: &str) -> Full<bytes::Bytes> {
    let message = request_in(domain).encode_to_vec();
    let mut body = vec![0, 0, 0, 0, u8::try_from(message.len()).expect("short")];
    body.extend(message);
    Full::from(body)
}

#[tokio::test]
async fn verdicts_become_envoys_response() {
    let table = Table::usual();
    let (listener, _) = grpc_listener(&table, Bounds::default()).await;
    let mut client = client(listener.addr);

    let response = client.should_rate_limit(request_in("open")).await.expect("a response");
    assert_eq!(response.overall_code(), Code::Ok);
    let status = &response.statuses[0];
    let limit = status.current_limit.as_ref().expect("a limit");
    assert_eq!(
        (limit.requests_per_unit, limit.unit(), limit.name.as_str()),
        (10, Unit::Minute, "login")
    );
    assert_eq!(status.limit_remaining, 7);
    assert_eq!(status.duration_until_reset.map(|it| (it.seconds, it.nanos)), Some((12, 0)));

    let response = client.should_rate_limit(request_in("limited")).await.expect("a response");
    assert_eq!(response.overall_code(), Code::OverLimit);
    assert_eq!(response.statuses[0].code(), Code::OverLimit);

    let response = client.should_rate_limit(request_in("unknown")).await.expect("a response");
    assert_eq!((response.overall_code(), response.statuses.len()), (Code::Ok, 1));
    assert_eq!(response.statuses[0].current_limit, None);
}

#[tokio::test]
async fn hits_have_the_meaning_of_envoy() {
    let table = Table::usual();
    let (listener, _) = grpc_listener(&table, Bounds::default()).await;
    let refund = RateLimitDescriptor {
        hits_addend: Some(4),
        is_negative_hits: true,
        ..descriptor(&[("a", "b"), ("c", "d")])
    };
    let peek = RateLimitDescriptor { hits_addend: Some(0), ..descriptor(&[("a", "b")]) };
    let request = RateLimitRequest { descriptors: vec![refund, peek], ..request_in("open") };
    client(listener.addr).should_rate_limit(request).await.expect("a response");
    let check = &table.checks()[0];
    assert_eq!((check.hits, &check.own_hits[..]), (1, &[Some(-4), Some(0)][..]));
    assert_eq!(check.descriptors[0].len(), 2);
}

#[tokio::test]
async fn a_limit_in_the_request_is_used_and_one_without_a_unit_is_counted_as_ignored() {
    let table = Table::usual();
    let (listener, _) = grpc_listener(&table, Bounds::default()).await;
    for (unit, ignored) in [(Unit::Day, 0), (Unit::Unknown, 1)] {
        let mut request = request_in("open");
        request.descriptors[0].limit =
            Some(RateLimitOverride { requests_per_unit: 1, unit: unit.into() });
        let response = client(listener.addr).should_rate_limit(request).await.expect("a response");
        assert_eq!(response.overall_code(), Code::Ok);
        assert_eq!(listener.stats.overrides.get(), ignored, "{unit:?}");
    }
}

#[tokio::test]
async fn bad_requests_get_a_status_and_are_not_counted() {
    let table = Table::usual();
    let (listener, _) = grpc_listener(&table, Bounds::default()).await;
    let mut client = client(listener.addr);
    let with = |descriptors| RateLimitRequest { descriptors, ..request_in("d") };
    let long = "v".repeat(1_025);
    for (request, code, part) in [
        (request_in(""), tonic::Code::Unknown, "rate limit domain must not be empty"),
        (with(vec![]), tonic::Code::Unknown, "rate limit descriptor list must not be empty"),
        (with(vec![descriptor(&[]); 33]), tonic::Code::InvalidArgument, "33 descriptors"),
        (with(vec![descriptor(&[("k", "v"); 17])]), tonic::Code::InvalidArgument, "17 entries"),
        (with(vec![descriptor(&[("k", &long)])]), tonic::Code::InvalidArgument, "1025 bytes"),
        (request_in(&long), tonic::Code::InvalidArgument, "the domain has 1025 bytes"),
        (request_in(&"d".repeat(100_000)), tonic::Code::OutOfRange, "65536"),
    ] {
        let status = client.should_rate_limit(request).await.expect_err("a status");
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().contains(part), "{status:?}");
    }
    assert_eq!(table.checks(), []);
    client.should_rate_limit(request_in("open")).await.expect("the listener keeps serving");
}

#[tokio::test]
async fn a_decision_that_does_not_come_is_a_deadline() {
    let table = Table::usual();
    let request_timeout = Duration::from_millis(50);
    let (listener, _) =
        grpc_listener(&table, Bounds { request_timeout, ..Bounds::default() }).await;
    let status =
        client(listener.addr).should_rate_limit(request_in("held")).await.expect_err("a status");
    assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_decision_that_waits_holds_up_no_other_of_its_connection() {
    let table = Table::usual();
    let request_timeout = Duration::from_millis(500);
    let (listener, _) =
        grpc_listener(&table, Bounds { request_timeout, ..Bounds::default() }).await;
    let mut client = client(listener.addr);
    client.should_rate_limit(request_in("open")).await.expect("the connection is open");
    let mut waiting = client.clone();
    let mut held = std::pin::pin!(waiting.should_rate_limit(request_in("held")));
    for _ in 0..10 {
        tokio::select! {
            biased;
            status = &mut held => panic!("it is held: {status:?}"),
            response = client.should_rate_limit(request_in("open")) => response.expect("a response"),
        };
    }
    assert_eq!(held.await.expect_err("a status").code(), tonic::Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_message_that_does_not_come_is_a_deadline() {
    let table = Table::usual();
    let request_timeout = Duration::from_millis(50);
    let (listener, _) =
        grpc_listener(&table, Bounds { request_timeout, ..Bounds::default() }).await;
    for path in [SHOULD_RATE_LIMIT, "/grpc.health.v1.Health/Check"] {
        let begun =
            futures_util::stream::iter([Ok(Frame::data(bytes::Bytes::from_static(b"\0\0\0")))]);
        let never_ends = StreamBody::new(begun.chain(futures_util::stream::pending()));
        let request = http::Request::post(format!("http://{}{path}", listener.addr));
        let status = in_time(path, call(listener.addr, request, never_ends)).await;
        assert_eq!(status.as_deref(), Some("4"), "{path}");
    }
    assert_eq!(table.checks(), []);
}

#[tokio::test]
async fn nobody_waits_longer_than_the_client_does() {
    let table = Table::usual();
    let request_timeout = Duration::from_secs(3_600);
    let (listener, _) =
        grpc_listener(&table, Bounds { request_timeout, ..Bounds::default() }).await;
    let request = http::Request::post(format!("http://{}{SHOULD_RATE_LIMIT}", listener.addr));
    let request = request.header("grpc-timeout", "50m");
    let status = in_time("answer", call(listener.addr, request, framed("held"))).await;
    assert_eq!(status.as_deref(), Some("4"));
}

/// One raw gRPC call over HTTP/2: path and body as given.
async fn raw_call(addr: SocketAddr, path: &str, body: &[u8]) -> Option<String> {
    let body = Full::new(bytes::Bytes::copy_from_slice(body));
    call(addr, http::Request::post(format!("http://{addr}{path}")), body).await
}

/// The status of a gRPC call over HTTP/2.
async fn call<B>(addr: SocketAddr, request: http::request::Builder, body: B) -> Option<String>
where
    B: hyper::body::Body<Data = bytes::Bytes, Error = std::convert::Infallible>,
    B: Send + Unpin + 'static,
{
    let stream = tokio::net::TcpStream::connect(addr).await.expect("a connection");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("a handshake");
    let driver = tokio::spawn(connection);
    let request = request.header("content-type", "application/grpc").body(body).expect("a request");
    let response = sender.send_request(request).await.expect("a response");
    let (parts, body) = response.into_parts();
    let trailers = body.collect().await.expect("a body").trailers().cloned();
    driver.abort();
    let status = |headers: &http::HeaderMap| {
        headers.get("grpc-status").map(|code| code.to_str().expect("ASCII").to_owned())
    };
    status(&parts.headers).or_else(|| trailers.as_ref().and_then(status))
}

#[tokio::test]
async fn broken_messages_end_in_a_grpc_status() {
    let table = Table::usual();
    let (listener, _) = grpc_listener(&table, Bounds::default()).await;
    let path = format!("/{SERVICE_NAME}/ShouldRateLimit");
    let frame = |message: &[u8]| {
        let length = u32::try_from(message.len()).expect("short").to_be_bytes();
        [&[0][..], &length, message].concat()
    };
    let valid = request_in("open").encode_to_vec();
    let bad_utf8 = [0x0A, 2, 0xFF, 0xFE];
    let nested = [0x12, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F];
    for (body, expected) in [
        (vec![], "internal"),
        (vec![0, 0], "truncated prefix"),
        (frame(&valid)[..8].to_vec(), "truncated message"),
        (frame(&bad_utf8), "bad UTF-8"),
        (frame(&nested), "length beyond the end"),
        (frame(&[0xFF; 64]), "noise"),
        (frame(&[0x0A; 4096]), "noise"),
        ([&[1][..], &frame(&valid)[1..]].concat(), "compressed without a name"),
        ([&[0][..], &u32::MAX.to_be_bytes(), &[0; 16]].concat(), "4 GiB announced"),
    ] {
        let status = raw_call(listener.addr, &path, &body).await;
        assert!(status.as_deref().is_some_and(|code| code != "0"), "{expected}: {status:?}");
    }
    assert_eq!(table.checks(), []);

    assert_eq!(raw_call(listener.addr, &path, &frame(&valid)).await.as_deref(), Some("0"));
    let unimplemented = Some("12".to_owned());
    assert_eq!(
        raw_call(listener.addr, &format!("/{SERVICE_NAME}/Nope"), &frame(&valid)).await,
        unimplemented
    );
    assert_eq!(
        raw_call(listener.addr, "/some.Service/Method", &frame(&valid)).await,
        unimplemented
    );
}

#[tokio::test]
async fn noise_on_the_wire_ends_its_own_connection_alone() {
    let table = Table::usual();
    let (listener, _) = grpc_listener(&table, Bounds::default()).await;
    let mut client = client(listener.addr);
    client.should_rate_limit(request_in("open")).await.expect("a response");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let huge_frame = [&preface[..], &[0xFF; 9], &[0; 64]].concat();
    let bad_settings = [&preface[..], &[0, 0, 5, 4, 0, 0, 0, 0, 0], &[0; 5]].concat();
    for noise in [&b"GET / HTTP/1.1\r\nhost: t\r\n\r\n"[..], &[0; 64], &huge_frame, &bad_settings] {
        send(listener.addr, noise).await;
    }
    client.should_rate_limit(request_in("open")).await.expect("the first connection stays open");
}

#[tokio::test]
async fn health_follows_the_listener() {
    let table = Table::usual();
    let (listener, health) = grpc_listener(&table, Bounds::default()).await;
    let channel = endpoint(listener.addr).connect_lazy();
    let check = |service: &'static str| {
        let mut client = HealthClient::new(channel.clone());
        async move {
            let request = HealthCheckRequest { service: service.to_owned() };
            client.check(request).await.map(|response| response.into_inner().status())
        }
    };
    for (serving, expected) in [
        (None, ServingStatus::NotServing),
        (Some(true), ServingStatus::Serving),
        (Some(false), ServingStatus::NotServing),
    ] {
        if let Some(serving) = serving {
            health.set_serving(serving).await;
        }
        for service in ["", SERVICE_NAME, "ratelimit"] {
            assert_eq!(check(service).await.expect("a status"), expected, "{service}");
        }
    }
    assert_eq!(check("other").await.expect_err("unknown").code(), tonic::Code::NotFound);
}

/// A watch is a response without an end. Connections that do not read their responses are closed in
/// the meantime.
#[tokio::test]
async fn a_health_watch_outlasts_the_send_timeout() {
    let table = Table::usual();
    let send_timeout = Duration::from_millis(100);
    let (listener, health) =
        grpc_listener(&table, Bounds { send_timeout, ..Bounds::default() }).await;
    let mut client = HealthClient::new(endpoint(listener.addr).connect_lazy());
    let request = HealthCheckRequest { service: SERVICE_NAME.to_owned() };
    let mut watch = client.watch(request).await.expect("a stream").into_inner();
    let first = watch.message().await.expect("a status").expect("no end");
    assert_eq!(first.status(), ServingStatus::NotServing);
    for round in 1..=3 {
        let request = http::Request::post(format!("http://{}{SHOULD_RATE_LIMIT}", listener.addr));
        let request = request.body(framed("open")).expect("a request");
        let unread = unread(listener.addr, 0, &request, 1).await;
        in_time("cut who does not read", unread.closed).await.expect("a task");
        assert_eq!(listener.stats.slow.get(), round);
    }
    health.set_serving(true).await;
    let second = in_time("hear of it", watch.message()).await.expect("a status").expect("no end");
    assert_eq!(second.status(), ServingStatus::Serving);
}

/// It would hold a drain up until `limits.drain_timeout`.
#[tokio::test]
async fn a_health_watch_ends_with_the_listener_when_all_is_said() {
    let table = Table::usual();
    let (mut listener, health) = grpc_listener(
        &table,
        Bounds { drain_timeout: Duration::from_secs(60), ..Bounds::default() },
    )
    .await;
    health.set_serving(true).await;
    let mut client = HealthClient::new(endpoint(listener.addr).connect_lazy());
    let request = HealthCheckRequest { service: SERVICE_NAME.to_owned() };
    let mut watch = client.watch(request).await.expect("a stream").into_inner();
    let mut next = async || in_time("hear of it", watch.message()).await;
    let first = next().await.expect("a status").expect("no end");
    assert_eq!(first.status(), ServingStatus::Serving);
    health.set_serving(false).await;
    listener.drain.cancel();
    let last = next().await.expect("a status").expect("no end");
    assert_eq!(last.status(), ServingStatus::NotServing);
    assert_eq!(next().await.expect_err("an end").code(), tonic::Code::Unavailable);
    in_time("drain", &mut listener.served).await.expect("served to the end");
}

#[tokio::test]
async fn streams_of_one_connection_are_bounded() {
    const REFUSED_STREAM: u32 = 7;
    let table = Table::usual();
    let (listener, _) = grpc_listener(&table, Bounds { streams_max: 7, ..Bounds::default() }).await;
    // The settings frame that the server sends first names the bound.
    let mut stream = tokio::net::TcpStream::connect(listener.addr).await.expect("a connection");
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("sent");
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.expect("a frame");
    assert_eq!(head[3], 4, "a settings frame");
    let mut settings = vec![0; usize::from(head[2])];
    stream.read_exact(&mut settings).await.expect("settings");
    let max_concurrent_streams = [0, 3, 0, 0, 0, 7];
    assert!(settings.chunks(6).any(|setting| setting == max_concurrent_streams), "{settings:?}");
    // One stream more is refused.
    let eight: Vec<u8> = (0..8).flat_map(|n| open_stream(2 * n + 1, SHOULD_RATE_LIMIT)).collect();
    assert_eq!(first_reset(listener.addr, &eight).await, (15, REFUSED_STREAM));
}

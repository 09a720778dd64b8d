//! Nodes as limiters, and services of tonic behind the layer: over sockets.

use std::collections::BTreeMap;
use std::future::{Future, ready};
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::post;
use futures_util::stream::unfold;
use tidegate_proto::rls::{
    Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitRequest, RateLimitResponse,
    SHOULD_RATE_LIMIT, Unit,
};
use tidegate_tower::{
    Answer, Check, CheckError, Descriptor, GrpcNode, HttpNode, InProcess, Limiter, RateLimitLayer,
    Verdict,
};
use tokio::net::{TcpListener, UnixListener};
use tonic::Status;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_prost::ProstCodec;
use tower::service_fn;

type Reply = fn(&RateLimitRequest) -> Result<RateLimitResponse, Status>;

/// A rate limit service that answers every check with `reply`.
fn routes(reply: Reply) -> Routes {
    let answer = move |request: Request| async move {
        let codec = ProstCodec::<RateLimitResponse, RateLimitRequest>::default();
        let decide = service_fn(move |request: tonic::Request<RateLimitRequest>| {
            ready(reply(request.get_ref()).map(tonic::Response::new))
        });
        let response: http::Response<Body> = Grpc::new(codec).unary(decide, request).await;
        response
    };
    Routes::from(Router::new().route(SHOULD_RATE_LIMIT, post(answer)))
}

async fn serve(reply: Reply) -> GrpcNode {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = Server::builder().add_routes(routes(reply));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    GrpcNode::new(&format!("http://{address}")).expect("an address")
}

async fn verdict(
    limiter: &impl Limiter,
    descriptors: &[Descriptor],
) -> Result<Verdict, CheckError> {
    let check = Check { domain: "http", descriptors, hits: 1 };
    let Answer::Later(answer) = limiter.check(&check) else { panic!("a node is waited for") };
    answer.await
}

#[expect(clippy::unnecessary_wraps, reason = "the signature of a reply")]
fn over_the_minute(request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
    assert_eq!(request.domain, "http");
    let status = |code: Code, name: &str, limit, unit: Unit, remaining, seconds| DescriptorStatus {
        code: code.into(),
        current_limit: Some(RateLimit {
            name: name.to_owned(),
            requests_per_unit: limit,
            unit: unit.into(),
        }),
        limit_remaining: remaining,
        duration_until_reset: Some(tidegate_proto::rls::Duration { seconds, nanos: 0 }),
    };
    Ok(RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        statuses: vec![
            status(Code::Ok, "hourly", 100, Unit::Hour, 57, 1_930),
            status(Code::OverLimit, "", 10, Unit::Minute, 0, 12),
            DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() },
        ],
        ..RateLimitResponse::default()
    })
}

#[tokio::test]
async fn an_answer_of_grpc_becomes_fields() {
    let node = serve(over_the_minute).await;
    let descriptors = [
        Descriptor::new("user", "ann"),
        Descriptor::new("method", "POST").with("user", "ann"),
        Descriptor::new("path", "/"),
    ];
    let verdict = verdict(&node, &descriptors).await.expect("a verdict");
    assert!(!verdict.allowed && verdict.is_decided);
    assert_eq!(verdict.violated, ["method.user"]);
    assert_eq!(verdict.retry_after, Some(Duration::from_secs(12)));
    let fields: BTreeMap<&str, &str> = verdict
        .fields
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_str().expect("ASCII")))
        .collect();
    let expected = BTreeMap::from([
        ("ratelimit", "\"hourly\";r=57;t=1930, \"method.user\";r=0;t=12"),
        ("ratelimit-policy", "\"hourly\";q=100;w=3600, \"method.user\";q=10;w=60"),
        ("retry-after", "12"),
        ("x-ratelimit-limit", "10"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "12"),
    ]);
    assert_eq!(fields, expected);
}

#[tokio::test]
async fn a_soft_limit_of_grpc_becomes_a_field() {
    let breach = |_: &RateLimitRequest| {
        let (key, value) = ("X-RateLimit-Soft-Breach".to_owned(), "1".to_owned());
        Ok(RateLimitResponse {
            overall_code: Code::Ok.into(),
            response_headers_to_add: vec![HeaderValue { key, value }],
            ..RateLimitResponse::default()
        })
    };
    let node = serve(breach).await;
    let verdict = verdict(&node, &[Descriptor::new("user", "ann")]).await.expect("a verdict");
    assert_eq!(verdict.fields["x-ratelimit-soft-breach"], "1");
}

#[tokio::test]
async fn statuses_of_grpc_are_mistakes_or_no_decision() {
    let descriptors = [Descriptor::new("user", "ann")];
    let node = serve(|_| Err(Status::invalid_argument("a value has 2000 bytes"))).await;
    let error = verdict(&node, &descriptors).await.expect_err("a mistake");
    assert!(matches!(&error, CheckError::Invalid(text) if text == "a value has 2000 bytes"));
    let node = serve(|_| Err(Status::unknown("no rate limit configuration loaded"))).await;
    let error = verdict(&node, &descriptors).await.expect_err("no decision");
    assert!(matches!(error, CheckError::Undecided(_)));
    let node = serve(|_| Ok(RateLimitResponse::default())).await;
    let error = verdict(&node, &descriptors).await.expect_err("no decision");
    assert!(matches!(error, CheckError::Undecided(_)));
}

#[tokio::test]
async fn a_node_that_does_not_listen_leaves_a_check_undecided() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let descriptors = [Descriptor::new("user", "ann")];
    let grpc = verdict(&GrpcNode::new(&url).expect("an address"), &descriptors).await;
    assert!(matches!(grpc, Err(CheckError::Undecided(_))));
    let http = verdict(&HttpNode::new(&url).expect("a URL"), &descriptors).await;
    assert!(matches!(http, Err(CheckError::Undecided(_))));
}

#[tokio::test]
async fn a_unix_socket_carries_grpc() {
    let folder = tempfile::tempdir().expect("a folder");
    let path: PathBuf = folder.path().join("limits.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let incoming = unfold(listener, |listener| async move {
        let stream = listener.accept().await.map(|(stream, _)| stream);
        Some((stream, listener))
    });
    let server = Server::builder().add_routes(routes(over_the_minute));
    tokio::spawn(server.serve_with_incoming(Box::pin(incoming)));
    let node = GrpcNode::new(&format!("unix:{}", path.display())).expect("an address");
    let verdict = verdict(&node, &[Descriptor::new("user", "ann")]).await.expect("a verdict");
    assert!(!verdict.allowed);
}

#[test]
fn only_urls_of_nodes_are_taken() {
    assert!(HttpNode::new("http://node:8080/").is_ok());
    for url in ["", "node:8080", "https://node:8080", "http://node:8080/v1/check", "http://"] {
        let error = HttpNode::new(url).expect_err(url);
        assert!(error.to_string().contains("write http://HOST:PORT"), "{error}");
    }
    assert!(GrpcNode::new("no address").is_err());
}

/// A server of tonic behind `layer`, and a client of it.
async fn health(layer: RateLimitLayer) -> HealthClient<Channel> {
    let (_, service) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = Server::builder().layer(layer).add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    HealthClient::new(endpoint.connect_lazy())
}

fn within<T>(future: impl Future<Output = T>) -> impl Future<Output = T> {
    let future = tokio::time::timeout(Duration::from_secs(20), future);
    async { future.await.expect("an answer") }
}

/// The address of the client is that of tonic's connection.
#[tokio::test]
async fn a_service_of_tonic_is_limited_by_address() {
    let rules = "domain: grpc
descriptors:
  - {key: remote_address, value: 127.0.0.1, rate_limit: {unit: hour, requests_per_unit: 2}}
";
    let layer = RateLimitLayer::new(InProcess::from_yaml(rules).expect("valid rules"), "grpc");
    let mut client = health(layer.clone()).await;
    for remaining in ["1", "0"] {
        let response = within(client.check(HealthCheckRequest::default())).await.expect("healthy");
        assert_eq!(response.metadata().get("x-ratelimit-remaining").expect("a field"), remaining);
    }
    let status = within(client.check(HealthCheckRequest::default())).await.expect_err("refused");
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    assert!(status.message().starts_with("over the limit; try again in "));
    assert!(status.metadata().contains_key("grpc-retry-pushback-ms"));
    assert!(status.metadata().contains_key("ratelimit"));
    assert_eq!(layer.counts().undecided(), 0);
}

/// A layer over a node, from the call to the verdict and back.
#[tokio::test]
async fn a_layer_over_a_node_refuses_as_the_node_says() {
    let layer = RateLimitLayer::new(serve(over_the_minute).await, "http");
    let mut client = health(layer.deadline(Duration::from_secs(20))).await;
    let status = within(client.check(HealthCheckRequest::default())).await.expect_err("refused");
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
}

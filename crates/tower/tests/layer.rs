//! The layer as a service and its clients see it, over limits in the process and over limiters that
//! do not answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::routing::any;
use futures_util::future::pending;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::Value;
use tidegate_tower::{
    Answer, Check, CheckError, Exempt, InProcess, Limiter, OnUnavailable, RateLimitLayer,
    by_address,
};
use tower::ServiceExt;
use tower_http::cors::{Any, CorsLayer};

const TWO_AN_HOUR: &str = "domain: http
descriptors:
  - key: remote_address
    rate_limit: {name: few, unit: hour, requests_per_unit: 2}
";

fn layer(rules: &str) -> RateLimitLayer {
    RateLimitLayer::new(InProcess::from_yaml(rules).expect("valid rules"), "http")
}

fn app(layer: RateLimitLayer) -> Router {
    Router::new().route("/", any(|| async { "hello" })).layer(layer)
}

/// A request of 203.0.113.7 over a connection from there.
fn request() -> Request<Body> {
    request_from("203.0.113.7:4711")
}

fn request_from(peer: &str) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    let peer: SocketAddr = peer.parse().expect("an address");
    request.extensions_mut().insert(ConnectInfo(peer));
    request
}

fn with(mut request: Request<Body>, name: &'static str, value: &'static str) -> Request<Body> {
    request.headers_mut().insert(name, value.parse().expect("a value"));
    request
}

async fn send(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.expect("an infallible service")
}

async fn problem(response: Response<Body>) -> Value {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let body = to_bytes(response.into_body(), 4_096).await.expect("a body");
    serde_json::from_slice(&body).expect("JSON")
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().expect("ASCII"))
}

#[tokio::test]
async fn allowed_and_refused_responses_carry_the_limit() {
    let app = app(layer(TWO_AN_HOUR));
    for remaining in ["1", "0"] {
        let response = send(&app, request()).await;
        assert_eq!(response.status(), StatusCode::OK);
        let headers = response.headers();
        assert_eq!(headers["ratelimit-policy"], "\"few\";q=2;w=3600");
        assert!(text(headers, "ratelimit").starts_with(&format!("\"few\";r={remaining};t=")));
        assert_eq!(headers["x-ratelimit-limit"], "2");
        assert_eq!(headers["x-ratelimit-remaining"], remaining);
        assert!(!headers.contains_key("retry-after"));
        assert_eq!(to_bytes(response.into_body(), 64).await.expect("a body"), "hello");
    }
    let response = send(&app, request()).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let headers = response.headers();
    let wait: u64 = text(headers, "retry-after").parse().expect("seconds");
    assert!((1..=3_600).contains(&wait));
    assert_eq!(text(headers, "ratelimit"), format!("\"few\";r=0;t={wait}"));
    let problem = problem(response).await;
    let quota_exceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded";
    assert_eq!(problem["type"], quota_exceeded);
    assert_eq!(problem["detail"], format!("over the limit; try again in {wait} s"));
    assert_eq!(problem["violated-policies"], serde_json::json!(["few"]));
    // Another client has a counter of its own.
    assert_eq!(send(&app, request_from("203.0.113.8:1")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn what_no_rule_matches_passes_without_fields() {
    let app = app(layer("domain: other\ndescriptors: [{key: a}]\n"));
    let response = send(&app, request()).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!response.headers().contains_key("ratelimit"));
}

#[tokio::test]
async fn only_trusted_hops_name_the_client() {
    let spoofed = || with(request(), "x-forwarded-for", "9.9.9.9, 198.51.100.1");
    let direct = app(layer(TWO_AN_HOUR));
    let behind_one = app(layer(TWO_AN_HOUR).trusted_hops(1));
    for app in [&direct, &behind_one] {
        for _ in 0..2 {
            assert_eq!(send(app, spoofed()).await.status(), StatusCode::OK);
        }
    }
    let other = || with(request(), "x-forwarded-for", "9.9.9.9, 198.51.100.2");
    assert_eq!(send(&direct, other()).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(send(&behind_one, other()).await.status(), StatusCode::OK);
    let moved_left = with(request(), "x-forwarded-for", "8.8.8.8, 198.51.100.1");
    let refused = send(&behind_one, moved_left).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn preflight_requests_are_not_counted_unless_so_configured() {
    let options = |is_preflight| {
        let mut request = request();
        *request.method_mut() = Method::OPTIONS;
        if is_preflight {
            request = with(request, "access-control-request-method", "PUT");
        }
        request
    };
    for (exempt, is_preflight, counted) in [
        (Exempt::Preflight, true, false),
        (Exempt::Preflight, false, true),
        (Exempt::Options, false, false),
        (Exempt::None, true, true),
    ] {
        let app = app(layer(TWO_AN_HOUR).exempt(exempt));
        for _ in 0..2 {
            send(&app, options(is_preflight)).await;
        }
        let is_refused = send(&app, request()).await.status() == StatusCode::TOO_MANY_REQUESTS;
        assert_eq!(is_refused, counted, "{exempt:?}, preflight: {is_preflight}");
    }
}

#[tokio::test]
async fn scripts_can_read_a_refusal_through_cors() {
    let cors = CorsLayer::new().allow_origin(Any).expose_headers(tidegate_tower::FIELDS);
    let app = app(layer(
        "domain: http
descriptors: [{key: remote_address, rate_limit: {unit: hour, requests_per_unit: 0}}]
",
    ))
    .layer(cors);
    let response = send(&app, with(request(), "origin", "https://example.org")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["access-control-allow-origin"], "*");
    let exposed = text(response.headers(), "access-control-expose-headers");
    assert!(exposed.contains("retry-after") && exposed.contains("ratelimit-policy"), "{exposed}");
}

#[tokio::test]
async fn a_grpc_client_gets_a_status_of_grpc() {
    let app = app(layer(TWO_AN_HOUR));
    let call = || with(request(), "content-type", "application/grpc");
    for _ in 0..2 {
        send(&app, call()).await;
    }
    let response = send(&app, call()).await;
    assert_eq!(response.status(), StatusCode::OK);
    let headers = response.headers();
    assert_eq!(headers["content-type"], "application/grpc");
    assert_eq!(headers["grpc-status"], "8");
    assert!(text(headers, "grpc-message").starts_with("over the limit; try again in "));
    let pushback: u64 = text(headers, "grpc-retry-pushback-ms").parse().expect("milliseconds");
    let wait: u64 = text(headers, "retry-after").parse().expect("seconds");
    assert!(pushback.div_ceil(1_000) == wait, "{pushback} ms, {wait} s");
    assert!(to_bytes(response.into_body(), 64).await.expect("a body").is_empty());
}

#[tokio::test]
async fn a_rule_that_never_allows_as_much_has_no_time_to_wait() {
    let app = app(layer(
        "domain: http
descriptors: [{key: remote_address, rate_limit: {unit: hour, requests_per_unit: 0}}]
",
    ));
    let response = send(&app, request()).await;
    assert!(!response.headers().contains_key("retry-after"));
    assert_eq!(problem(response).await["detail"], "over the limit");
    let response = send(&app, with(request(), "content-type", "application/grpc")).await;
    assert_eq!(response.headers()["grpc-retry-pushback-ms"], "-1");
}

/// A limiter that never answers.
struct Silent;

impl Limiter for Silent {
    fn check(&self, _: &Check<'_>) -> Answer {
        Answer::Later(Box::pin(pending()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_a_verdict_no_longer_than_the_deadline() {
    let layer = RateLimitLayer::new(Silent, "http");
    let (open, start) = (app(layer.clone()), tokio::time::Instant::now());
    let response = send(&open, request()).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!response.headers().contains_key("retry-after"));
    let waited = start.elapsed();
    assert!((tidegate_tower::DEADLINE..Duration::from_millis(12)).contains(&waited), "{waited:?}");
    assert_eq!(layer.counts().undecided(), 1);

    let layer = layer.on_unavailable(OnUnavailable::Deny).deadline(Duration::from_secs(1));
    let closed = app(layer.clone());
    let response = send(&closed, request()).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["retry-after"], "1");
    let problem = problem(response).await;
    assert_eq!((&problem["type"], &problem["status"]), (&"about:blank".into(), &503.into()));
    let response = send(&closed, with(request(), "content-type", "application/grpc")).await;
    assert_eq!(response.headers()["grpc-status"], "14");
    assert_eq!(layer.counts().undecided(), 3);
}

#[tokio::test]
async fn a_client_without_an_address_is_undecided_and_counted() {
    let layer = layer(TWO_AN_HOUR);
    let open = app(layer.clone());
    for _ in 0..3 {
        let response = send(&open, Request::new(Body::empty())).await;
        assert_eq!(response.status(), StatusCode::OK);
    }
    assert_eq!(layer.counts().undecided(), 3);
    // Behind a proxy on a Unix socket the proxy names it.
    let behind_one = app(layer.clone().trusted_hops(1));
    let request = || with(Request::new(Body::empty()), "x-forwarded-for", "198.51.100.1");
    let statuses = [
        send(&behind_one, request()).await.status(),
        send(&behind_one, request()).await.status(),
        send(&behind_one, request()).await.status(),
    ];
    assert_eq!(statuses.map(|status| status.as_u16()), [200, 200, 429]);
}

/// A limiter that does not take checks.
struct Strict;

impl Limiter for Strict {
    fn check(&self, _: &Check<'_>) -> Answer {
        Answer::Now(Err(CheckError::Invalid("a value has 2000 bytes".to_owned())))
    }
}

#[tokio::test]
async fn a_check_that_is_not_taken_is_refused_and_not_allowed() {
    let layer = RateLimitLayer::new(Strict, "http");
    let app = app(layer.clone());
    let response = send(&app, request()).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    let detail = problem(response).await["detail"].clone();
    assert_eq!(detail, "not taken by the rate limiter: a value has 2000 bytes");
    let response = send(&app, with(request(), "content-type", "application/grpc")).await;
    assert_eq!(response.headers()["grpc-status"], "3");
    assert_eq!((layer.counts().invalid(), layer.counts().undecided()), (2, 0));
}

const QUEUE: &str = "domain: http
descriptors:
  - key: remote_address
    rate_limit: {unit: second, requests_per_unit: 1, algorithm: leaky_bucket, queue: 20}
";

/// The queue is that of the decision clock, the wait that of the paused runtime.
#[tokio::test(start_paused = true)]
async fn a_queue_holds_a_request_until_its_turn() {
    let app = app(layer(QUEUE));
    let start = tokio::time::Instant::now();
    assert_eq!(send(&app, request()).await.status(), StatusCode::OK);
    assert!(start.elapsed() < Duration::from_millis(100));
    assert_eq!(send(&app, request()).await.status(), StatusCode::OK);
    let waited = start.elapsed();
    assert!((Duration::from_millis(500)..Duration::from_secs(2)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn what_a_queue_would_hold_for_too_long_is_refused_and_not_charged() {
    let limiter = Arc::new(InProcess::from_yaml(QUEUE).expect("valid rules"));
    let layer = RateLimitLayer::shared(limiter.clone(), "http").hold_max(Duration::from_secs(2));
    let app = app(layer);
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(send(&app, request()).await.status().as_u16());
    }
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 3, "{statuses:?}");
    let response = send(&app, request()).await;
    assert_eq!(problem(response).await["detail"], "the queue is too long; try again later");
    // Seventeen refusals have left the queue as it was.
    let head = Request::new(()).into_parts().0;
    let descriptors = by_address(&head, Some("203.0.113.7")).expect("an address");
    let Answer::Now(Ok(verdict)) =
        limiter.check(&Check { domain: "http", descriptors: &descriptors, hits: 0 })
    else {
        panic!("a limiter of the process answers at once");
    };
    assert!(verdict.remaining >= Some(17), "{verdict:?}");
}

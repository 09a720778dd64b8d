//! Liveness, readiness, metrics, and the index.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};

use super::listener::HttpListener;
use super::problem::json;
use crate::front::Probes;

/// The format of prometheus-client.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

pub(super) async fn healthz() -> Response {
    page(StatusCode::OK, TEXT, "ok\n".to_owned())
}

pub(super) async fn readyz<D, P: Probes>(
    State(listener): State<Arc<HttpListener<D, P>>>,
) -> Response {
    match listener.probes.ready() {
        Ok(()) => page(StatusCode::OK, TEXT, "ready\n".to_owned()),
        Err(why) => page(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("not ready: {why}\n")),
    }
}

pub(super) async fn metrics<D, P: Probes>(
    State(listener): State<Arc<HttpListener<D, P>>>,
) -> Response {
    page(StatusCode::OK, OPEN_METRICS, listener.probes.metrics())
}

pub(super) async fn index() -> Response {
    let index = serde_json::json!({
        "name": "tidegate",
        "version": env!("CARGO_PKG_VERSION"),
        "endpoints": {
            "POST /v1/check": "decide a RateLimitRequest in its JSON form",
            "/json": "the same with the statuses of envoyproxy/ratelimit",
            "/healthcheck": "OK while traffic may be sent here, as in envoyproxy/ratelimit",
            "/auth": "forward-auth for nginx, Traefik, Caddy, HAProxy",
            "GET /healthz": "200 while the process runs",
            "GET /readyz": "200 while traffic may be sent here",
            "GET /metrics": "OpenMetrics for Prometheus",
        },
    });
    json(StatusCode::OK, index.to_string())
}

fn page(status: StatusCode, content_type: HeaderValue, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

//! Liveness, readiness, metrics, and the index.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;

use super::listener::{HttpListener, json};
use crate::front::Probes;

/// The format of prometheus-client.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

pub(super) async fn readyz<D, P: Probes>(
    State(listener): State<Arc<HttpListener<D, P>>>,
) -> Result<&'static str, (StatusCode, String)> {
    let unready = |why| (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n"));
    listener.probes.ready().map(|()| "ready\n").map_err(unready)
}

/// `/healthcheck` of the HTTP port of envoyproxy/ratelimit: `OK`, or 500 with the reason, where
/// envoyproxy/ratelimit gives none. Source: its `src/server/health.go`.
pub(super) async fn healthcheck<D, P: Probes>(
    State(listener): State<Arc<HttpListener<D, P>>>,
) -> Result<Body, (StatusCode, Body)> {
    let unready = |why| (StatusCode::INTERNAL_SERVER_ERROR, Body::from(format!("{why}\n")));
    listener.probes.ready().map(|()| Body::from("OK")).map_err(unready)
}

pub(super) async fn metrics<D, P: Probes>(
    State(listener): State<Arc<HttpListener<D, P>>>,
) -> impl IntoResponse {
    ([(CONTENT_TYPE, OPEN_METRICS)], listener.metrics.get(|| listener.probes.metrics()))
}

pub(super) async fn index() -> Response {
    let index = serde_json::json!({
        "name": "tidegate",
        "version": env!("CARGO_PKG_VERSION"),
        "endpoints": {
            "POST /v1/check": "decide a RateLimitRequest in its JSON form",
            "POST /v1/reserve": "keep an amount of limits free for work whose cost is known late",
            "POST /v1/commit": "count what it cost, once, and end the reservation",
            "POST /v1/release": "end a reservation that cost nothing",
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

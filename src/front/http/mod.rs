//! The HTTP listener: the check API, forward-auth, health and metrics.
//!
//! | path | purpose |
//! |---|---|
//! | `POST /v1/check` | Envoy's `RateLimitRequest` as JSON; 200 or the denied status |
//! | `POST /v1/reserve`, `/v1/commit`, `/v1/release` | costs that are known late |
//! | `/auth`, `/auth/…` | forward-auth for nginx, Traefik, Caddy, `HAProxy`; any method |
//! | `/json` | the same, with the statuses of envoyproxy/ratelimit |
//! | `/healthcheck` | readiness, likewise |
//! | `GET /healthz` | liveness |
//! | `GET /readyz` | readiness |
//! | `GET /metrics` | `OpenMetrics` |
//! | `GET /` | this table |
//!
//! Errors are JSON, `{"error": "what to do"}`, and nothing is counted for them.
//!
//! `/v1/check` and `/json` read and write the messages of the rate limit service
//! ([`rls`](super::rls)) in their generated JSON form.

mod auth;
mod check;
pub(super) mod descriptors;
pub mod json;
mod listener;
pub(super) mod original;
pub mod path;
mod reserve;
mod status_pages;

use std::sync::Arc;

use axum::Router;
use axum::routing::{any, get, post};

pub use listener::HttpListener;

use super::Probes;
use crate::decide::Reserve;

/// The routes of the HTTP listener.
pub fn router<D: Reserve, P: Probes>(listener: HttpListener<D, P>) -> Router {
    Router::new()
        .route("/v1/check", post(check::check::<D, P>))
        .route("/v1/reserve", post(reserve::reserve::<D, P>))
        .route("/v1/commit", post(reserve::commit::<D, P>))
        .route("/v1/release", post(reserve::release::<D, P>))
        .route("/json", any(check::envoy_check::<D, P>))
        .route("/healthcheck", any(status_pages::healthcheck::<D, P>))
        .route("/auth", any(auth::auth::<D, P>))
        .route("/auth/", any(auth::auth::<D, P>))
        .route("/auth/{*rest}", any(auth::auth::<D, P>))
        .route("/healthz", get(status_pages::healthz))
        .route("/readyz", get(status_pages::readyz::<D, P>))
        .route("/metrics", get(status_pages::metrics::<D, P>))
        .route("/", get(status_pages::index))
        .fallback(listener::not_found)
        .method_not_allowed_fallback(listener::method_not_allowed)
        .with_state(Arc::new(listener))
}

//! The HTTP door: the check API, forward-auth, and what operators ask.
//!
//! | path | what |
//! |---|---|
//! | `POST /v1/check` | Envoy's `RateLimitRequest` as JSON, 200 or the denied status |
//! | `/auth`, `/auth/…` | forward-auth for nginx, Traefik, Caddy, `HAProxy`; any method |
//! | `/json` | the same as envoyproxy/ratelimit answers it |
//! | `/healthcheck` | whether traffic may be sent here, likewise |
//! | `GET /healthz` | the process answers |
//! | `GET /readyz` | traffic may be sent here |
//! | `GET /metrics` | `OpenMetrics` |
//! | `GET /` | this table |
//!
//! Errors are JSON, `{"error": "what to do"}`, and nothing is counted for them.

mod auth;
mod check;
pub mod json;
mod original;
pub mod path;
mod problem;
mod ratelimit;
mod status_pages;

use std::sync::Arc;

use axum::Router;
use axum::routing::{any, get, post};
use http::StatusCode;

use super::Probes;
use super::bounds::Bounds;
use super::serve::ListenerStats;
use crate::config::Auth;
use crate::decide::Decide;

/// What the HTTP door is made of.
#[derive(Debug)]
pub struct HttpListener<D, P> {
    /// Decides.
    pub decide: Arc<D>,
    /// Tells about the node.
    pub probes: Arc<P>,
    /// What a request may weigh.
    pub bounds: Bounds,
    /// Status code of a refusal; anything that is no error status is taken as 429.
    pub denied_status: u16,
    /// How forward-auth makes descriptors.
    pub auth: Auth,
    /// Where refused requests are counted.
    pub stats: Arc<ListenerStats>,
}

/// The routes of the HTTP door.
pub fn router<D: Decide, P: Probes>(listener: HttpListener<D, P>) -> Router {
    Router::new()
        .route("/v1/check", post(check::check::<D, P>))
        .route("/json", any(ratelimit::json::<D, P>))
        .route("/healthcheck", any(ratelimit::healthcheck::<D, P>))
        .route("/auth", any(auth::auth::<D, P>))
        .route("/auth/", any(auth::auth::<D, P>))
        .route("/auth/{*rest}", any(auth::auth::<D, P>))
        .route("/healthz", get(status_pages::healthz))
        .route("/readyz", get(status_pages::readyz::<D, P>))
        .route("/metrics", get(status_pages::metrics::<D, P>))
        .route("/", get(status_pages::index))
        .fallback(problem::not_found)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .with_state(Arc::new(listener))
}

/// A configured status as the type that HTTP wants.
fn denied_status(configured: u16) -> StatusCode {
    StatusCode::from_u16(configured)
        .ok()
        .filter(|status| status.is_client_error() || status.is_server_error())
        .unwrap_or(StatusCode::TOO_MANY_REQUESTS)
}

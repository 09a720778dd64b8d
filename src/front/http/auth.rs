//! `/auth`: forward-auth. The proxy sends a subrequest before it forwards a request; 200 admits it.
//!
//! *nginx* turns every status but 2xx, 401 and 403 into a 500 (`ngx_http_auth_request_module`), so
//! it gets a 403 and maps it to 429. `denied` in the query overrides `auth.denied_status` for the
//! proxy that sends it:
//!
//! ```nginx
//! location / {
//!     auth_request /_limit;
//!     auth_request_set $retry_after $upstream_http_retry_after;
//!     error_page 403 = @limited;
//!     proxy_pass http://upstream;
//! }
//! location = /_limit {
//!     internal;
//!     proxy_pass http://tidegate/auth?denied=403;
//!     proxy_pass_request_body off;
//!     proxy_set_header Content-Length "";
//!     proxy_set_header Host $host;
//!     proxy_set_header X-Original-URI $request_uri;
//!     proxy_set_header X-Original-Method $request_method;
//!     proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
//! }
//! location @limited {
//!     add_header Retry-After $retry_after always;
//!     return 429;
//! }
//! ```
//!
//! *Traefik* (`forwardAuth.address`) and *Caddy* (`forward_auth`) forward a refusal as it is: 429
//! and its headers reach the client without further configuration.
//!
//! A leaky bucket used as a queue answers "pass after `delay`". Here the delay is waited out, up to
//! `auth.hold_max`; a request that would have to wait longer is refused and its hits given back.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use http::request::Parts;
use tidegate_limiter::descriptor::Descriptor;
use tokio::time::Instant;

use super::descriptors::{self, HitsError};
use super::listener::{HttpListener, denied_status, problem, undecided};
use super::original::{self, Ambiguous};
use crate::config::Auth;
use crate::decide::{CheckRequest, Decide};
use crate::front::bounds::Refusal;
use crate::front::serve::Peer;
use crate::front::{Probes, render};

/// Why a request is not decided. Nothing was counted for it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Error {
    #[error("forward-auth is off here: set auth.domain and [[auth.descriptors]] in cluster.toml")]
    Off,
    #[error(transparent)]
    Ambiguous(#[from] Ambiguous),
    #[error(transparent)]
    Refusal(#[from] Refusal),
    #[error(transparent)]
    Hits(#[from] HitsError),
    #[error("denied={0} is not a status for refusals: 400 to 599, and 403 for nginx")]
    Denied(String),
}

impl Error {
    fn status(&self) -> StatusCode {
        match self {
            Self::Off => StatusCode::NOT_FOUND,
            Self::Refusal(Refusal::NotLoaded) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

pub(super) async fn auth<D: Decide, P: Probes>(
    State(listener): State<Arc<HttpListener<D, P>>>,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    answer(&listener, &parts).await.unwrap_or_else(|error| {
        listener.stats.refused.add(1);
        problem(error.status(), &error.to_string())
    })
}

async fn answer<D: Decide, P: Probes>(
    listener: &HttpListener<D, P>,
    parts: &Parts,
) -> Result<Response, Error> {
    let domain = listener.auth.domain.as_deref().ok_or(Error::Off)?;
    let denied = denied(parts, &listener.auth, listener.denied_status)?;
    let hits = descriptors::hits(&parts.headers, listener.auth.hits.as_ref())?;
    let bytes_max = listener.bounds.value_bytes_max;
    let original = original::original(parts, listener.auth.original, bytes_max)?;
    let peer = parts.extensions.get::<Peer>().map(|Peer(peer)| peer.ip());
    let values = descriptors::values(&parts.headers, peer, &original, &listener.auth);
    if values.is_empty() {
        return Ok(Response::default());
    }
    let descriptors: Vec<Descriptor<'_>> = values.iter().map(descriptors::borrowed).collect();
    listener.bounds.admit(domain, &descriptors)?;
    if !listener.decide.is_loaded() {
        return Err(Refusal::NotLoaded.into());
    }

    let check = CheckRequest { domain, descriptors: &descriptors, hits, for_envoy: false };
    let asked_at = Instant::now();
    let Some(answer) = listener.decide(check).await else {
        return Ok(undecided());
    };
    let delay = render::delay(&answer).to_std();
    let hold_max = listener.auth.hold_max.to_std();
    let mut response = if !answer.allowed {
        problem(denied, &render::refusal(&answer))
    } else if delay > hold_max {
        // The request will not wait.
        listener.give_back((check, asked_at), &answer).await;
        problem(denied, render::QUEUE_TOO_LONG)
    } else {
        tokio::time::sleep(delay).await;
        Response::default()
    };
    render::headers(&answer, response.headers_mut());
    Ok(response)
}

/// The status of a refusal: `denied` of the query, else that of `[auth]`, else that of `[http]`.
///
/// Only `/auth` itself reads the query: below it the query is the client's.
fn denied(parts: &Parts, auth: &Auth, inherited: u16) -> Result<StatusCode, Error> {
    let configured = denied_status(auth.denied_status.unwrap_or(inherited));
    let query = parts.uri.query().filter(|_| parts.uri.path() == "/auth").unwrap_or_default();
    let Some(denied) = query.split('&').find_map(|pair| pair.strip_prefix("denied=")) else {
        return Ok(configured);
    };
    denied
        .parse::<StatusCode>()
        .ok()
        .filter(|status| status.is_client_error() || status.is_server_error())
        .ok_or_else(|| Error::Denied(denied.chars().take(20).collect()))
}

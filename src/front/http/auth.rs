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

use std::num::NonZeroU32;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, HeaderName, StatusCode};
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::engine::Retry;
use tidegate_limiter::units::Hits;

use super::listener::{HttpListener, denied_status, problem, undecided};
use super::original::{self, Ambiguous};
use super::path;
use crate::config::Auth;
use crate::config::auth::{self, AuthDescriptor, AuthEntry, AuthValue};
use crate::decide::{CheckRequest, Decide};
use crate::front::bounds::{Bounds, Refusal};
use crate::front::serve::Peer;
use crate::front::{Probes, client_addr, render};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Why a request is not decided. Nothing was counted for it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Error {
    #[error("forward-auth is off here: set auth.domain and [[auth.descriptors]] in cluster.toml")]
    Off,
    #[error(transparent)]
    Ambiguous(#[from] Ambiguous),
    #[error(transparent)]
    Refusal(#[from] Refusal),
    #[error("header {name} is not a number of hits (1 to {max})")]
    Hits { name: HeaderName, max: NonZeroU32 },
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
    let hits = hits(&parts.headers, listener.auth.hits.as_ref())?;
    let values = values(parts, &listener.auth, &listener.bounds)?;
    if values.is_empty() {
        return Ok(Response::default());
    }
    let descriptors: Vec<Descriptor<'_>> = values.iter().map(descriptor).collect();
    listener.bounds.admit(domain, &descriptors)?;
    if !listener.decide.is_loaded() {
        return Err(Refusal::NotLoaded.into());
    }

    let check = CheckRequest { domain, descriptors: &descriptors, hits, for_envoy: false };
    let Some(answer) = listener.decide(check).await else {
        return Ok(undecided());
    };
    let delay = render::delay(&answer).to_std();
    let hold_max = listener.auth.hold_max.to_std();
    let mut response = if !answer.allowed {
        let retry = render::most_restrictive(&answer).map_or(Retry::Now, |verdict| verdict.retry);
        problem(denied, &refused(retry))
    } else if delay > hold_max {
        // The request will not wait, so its hits are returned to the queue.
        let returned = Hits::new(hits.get().saturating_neg());
        let _ = listener.decide(CheckRequest { hits: returned, ..check }).await;
        problem(denied, "the queue is longer than a request may be held; try again later")
    } else {
        tokio::time::sleep(delay).await;
        Response::default()
    };
    render::headers(&answer, response.headers_mut());
    Ok(response)
}

fn refused(retry: Retry) -> String {
    match retry {
        Retry::After(span) => {
            format!("over the limit; try again in {} s", span.as_secs_ceil().max(1))
        }
        Retry::Never => "over the limit; this costs more than the limit ever allows".to_owned(),
        Retry::Now => "over the limit".to_owned(),
    }
}

/// Keys and values of a descriptor, owned because most values are built here.
type Values<'a> = Vec<(&'a str, String)>;

fn descriptor<'a>(values: &'a Values<'_>) -> Descriptor<'a> {
    let entries = values.iter().map(|(key, value)| Entry { key, value }).collect();
    Descriptor { entries, hits: None, limit: None }
}

/// The configured descriptors all of whose values are present.
fn values<'a>(
    parts: &Parts,
    auth: &'a Auth,
    bounds: &Bounds,
) -> Result<Vec<Values<'a>>, Ambiguous> {
    let original = original::original(parts, auth.original, bounds.value_bytes_max)?;
    let client = client(parts, auth);
    let value = |entry: &AuthEntry| match &entry.value {
        AuthValue::Header(name) => original::text(&parts.headers, name),
        AuthValue::ClientAddress => client.clone(),
        AuthValue::Path => Some(original.path.clone()),
        AuthValue::PathPrefix(segments) => Some(path::prefix(&original.path, *segments).to_owned()),
        AuthValue::Method => Some(original.method.clone()),
        AuthValue::Host => Some(original.host.clone()),
        AuthValue::Constant(value) => Some(value.clone()),
    };
    let values = |descriptor: &'a AuthDescriptor| {
        let pair = |entry: &'a AuthEntry| Some((entry.key.as_str(), value(entry)?));
        descriptor.entries.iter().map(pair).collect::<Option<Values<'a>>>()
    };
    Ok(auth.descriptors.iter().filter_map(values).collect())
}

/// The client's address, grouped by prefix; `None` only if the listener has no peer address.
fn client(parts: &Parts, auth: &Auth) -> Option<String> {
    let Peer(peer) = parts.extensions.get::<Peer>()?;
    let lists: Vec<&[u8]> =
        parts.headers.get_all(&X_FORWARDED_FOR).iter().map(http::HeaderValue::as_bytes).collect();
    let real_ip = parts.headers.get(&X_REAL_IP).map(http::HeaderValue::as_bytes);
    let addr = client_addr::client_address(peer.ip(), lists.into_iter(), real_ip, &auth.trust());
    Some(client_addr::group(addr, auth.ipv6_prefix))
}

/// The cost of the request, at least one hit: a request that costs nothing would pass uncounted,
/// and a negative cost would return hits.
fn hits(headers: &HeaderMap, cost: Option<&auth::Hits>) -> Result<Hits, Error> {
    let Some((cost, text)) =
        cost.and_then(|cost| Some((cost, original::text(headers, &cost.header)?)))
    else {
        return Ok(Hits::ONE);
    };
    let (name, max) = (&cost.header, cost.max);
    let hits: Option<u32> = text.trim().parse().ok().filter(|hits| *hits <= max.get());
    let hits = hits.ok_or_else(|| Error::Hits { name: name.clone(), max })?;
    Ok(Hits::new(i64::from(hits.max(1))))
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

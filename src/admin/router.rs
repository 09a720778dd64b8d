//! The routes of the operator's door.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use http::{Method, StatusCode, Uri, header};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::Inspect;
use crate::front::Probes;
use crate::observe::metrics::CONTENT_TYPE;

/// Most key/value pairs that `/owner` takes; a descriptor has far fewer.
const ENTRIES_MAX: usize = 100;

/// What stands behind the routes.
#[derive(Clone)]
pub struct Listeners {
    /// Answers `/status` and `/owner`.
    pub inspect: Arc<dyn Inspect>,
    /// Answers `/readyz` and `/metrics`.
    pub probes: Arc<dyn Probes>,
    /// Cancelled by `/drain`: the node hands over what it owns and ends.
    pub drain: CancellationToken,
}

/// The router for the listener of `[admin]`.
pub fn router(listeners: Listeners) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/owner", get(owner))
        .route("/drain", post(drain))
        .fallback(unknown)
        .method_not_allowed_fallback(not_that_way)
        .with_state(listeners)
}

async fn index() -> Response {
    json(
        StatusCode::OK,
        &serde_json::json!({
            "endpoints": ["/healthz", "/readyz", "/metrics", "/status", "/owner?domain=D&KEY=VALUE"],
            "commands": ["POST /drain"],
        }),
    )
}

/// A node that can answer at all is alive.
async fn alive() -> Response {
    answer(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".to_owned())
}

async fn ready(State(listeners): State<Listeners>) -> Response {
    let (status, text) = match listeners.probes.ready() {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(reasons) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reasons}\n")),
    };
    answer(status, "text/plain; charset=utf-8", text)
}

async fn metrics(State(listeners): State<Listeners>) -> Response {
    answer(StatusCode::OK, CONTENT_TYPE, listeners.probes.metrics())
}

async fn status(State(listeners): State<Listeners>) -> Response {
    json(StatusCode::OK, &listeners.inspect.status())
}

/// `?domain=D` first or last, every other pair an entry, in order.
async fn owner(State(listeners): State<Listeners>, uri: Uri) -> Response {
    let Some(mut pairs) = uri.query().and_then(decode_query) else {
        return refuse(
            "the query is missing or not percent-encoded UTF-8; ask /owner?domain=D&KEY=VALUE",
        );
    };
    let domain = pairs.iter().position(|(name, _)| name == "domain").map(|i| pairs.remove(i).1);
    match domain {
        Some(domain) if !domain.is_empty() && !pairs.is_empty() => {
            json(StatusCode::OK, &listeners.inspect.owner(&domain, &pairs))
        }
        _ => refuse("a domain and at least one entry are needed; ask /owner?domain=D&KEY=VALUE"),
    }
}

/// As SIGTERM does. Answers before the node is drained: the door closes when it is.
async fn drain(State(listeners): State<Listeners>) -> Response {
    listeners.drain.cancel();
    json(StatusCode::ACCEPTED, &serde_json::json!({ "draining": true }))
}

async fn unknown() -> Response {
    json(
        StatusCode::NOT_FOUND,
        &serde_json::json!({ "error": "no such path; GET / lists those there are" }),
    )
}

async fn not_that_way(method: Method) -> Response {
    json(
        StatusCode::METHOD_NOT_ALLOWED,
        &serde_json::json!({ "error": format!("{method} is not for this path; GET / lists what is") }),
    )
}

// === answers ===

fn refuse(text: &str) -> Response {
    json(StatusCode::BAD_REQUEST, &serde_json::json!({ "error": text }))
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => answer(status, "application/json", text + "\n"),
        // Reports are plain structs; only a map with keys that are no strings could fail.
        Err(error) => {
            let text = format!("{error}\n");
            answer(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", text)
        }
    }
}

pub(super) fn answer(status: StatusCode, content_type: &'static str, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}

// === the query ===

/// The pairs of a query in order; none when it holds too many, or is not percent-encoded UTF-8.
fn decode_query(query: &str) -> Option<Vec<(String, String)>> {
    let parts: Vec<&str> = query.split('&').filter(|part| !part.is_empty()).collect();
    if parts.len() > ENTRIES_MAX {
        return None;
    }
    parts
        .into_iter()
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Some((decode(name)?, decode(value)?))
        })
        .collect()
}

/// Undoes percent-encoding, with `+` for a space as forms have it.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => {
                let (digits, tail) = rest.split_at_checked(2)?;
                let mut digits = digits.iter().map(|b| char::from(*b).to_digit(16));
                let byte = digits.try_fold(0, |byte, digit| Some(byte * 16 + digit?))?;
                bytes.push(u8::try_from(byte).ok()?);
                rest = tail;
            }
            plain => bytes.push(*plain),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_in_order_and_decoded() {
        let pairs = decode_query("domain=edge&path=%2Fa%20b&q=x+y&bare&q=%C3%A4").unwrap();
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert_eq!(
            pairs,
            [("domain", "edge"), ("path", "/a b"), ("q", "x y"), ("bare", ""), ("q", "ä")]
        );
    }

    #[test]
    fn a_query_that_cannot_be_read_is_none() {
        for query in ["a=%", "a=%2", "a=%zz", "a=%+1", "a=%ff", "%C3=1"] {
            assert_eq!(decode_query(query), None, "{query}");
        }
        assert_eq!(decode_query(&"a=1&".repeat(ENTRIES_MAX + 1)), None);
    }
}

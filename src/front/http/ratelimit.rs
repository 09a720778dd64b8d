//! `/json` and `/healthcheck`: the paths of the HTTP port of envoyproxy/ratelimit.
//!
//! | `/json` | status |
//! |---|---|
//! | every descriptor is within its limit | 200, the response in proto3 JSON |
//! | a descriptor is over its limit | 429, likewise |
//! | the body is not a request, or is refused | 400, `Bad Request` |
//! | there is no decision in time | 500, `Internal Server Error` |
//!
//! This is Envoy's rate limit service in another form, so `[envoy]` applies, and the responses have
//! no `X-RateLimit-*` headers. `/v1/check` has them, and errors with a text.
//!
//! Source: envoyproxy/ratelimit, `src/server/server_impl.go`, `NewJsonHandler`, and
//! `src/server/health.go`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use tidegate_proto::rls::Code;

use super::listener::{HttpListener, read_body};
use super::{json, problem};
use crate::decide::Decide;
use crate::front::{Probes, rls};

pub(super) async fn json<D: Decide, P: Probes>(
    State(listener): State<Arc<HttpListener<D, P>>>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let body = match read_body(body, &listener.bounds, parts.version).await {
        Ok(body) => body,
        Err(refusal) => {
            listener.stats.refused.add(1);
            return as_text(*refusal);
        }
    };
    let message = match json::request(&body) {
        Ok(message) => message,
        Err(error) => {
            // At a level that is off by default: clients decide how often this happens.
            tracing::debug!(%error, "/json: malformed request");
            listener.stats.refused.add(1);
            return text(StatusCode::BAD_REQUEST);
        }
    };
    match rls::check(&*listener.decide, &message, &listener.bounds, &listener.stats).await {
        Ok(response) => {
            let status = match response.overall_code() {
                Code::Ok => StatusCode::OK,
                Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
                Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
            };
            problem::json(status, json::response(&response))
        }
        Err(error) => {
            tracing::debug!(%error, "/json: request not decided");
            text(match error {
                rls::Error::Refused(_) => StatusCode::BAD_REQUEST,
                rls::Error::Timeout => StatusCode::INTERNAL_SERVER_ERROR,
            })
        }
    }
}

/// `OK`, or 500 with the reason, where envoyproxy/ratelimit gives none.
pub(super) async fn healthcheck<D: Decide, P: Probes>(
    State(listener): State<Arc<HttpListener<D, P>>>,
) -> Response {
    match listener.probes.ready() {
        Ok(()) => Response::new(Body::from("OK")),
        Err(why) => {
            let mut response = Response::new(Body::from(format!("{why}\n")));
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            response
        }
    }
}

/// What `http.Error` of Go writes for a status.
fn text(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    as_text(response)
}

/// The response with the name of its status as the body.
fn as_text(mut response: Response) -> Response {
    const NOSNIFF: HeaderName = HeaderName::from_static("x-content-type-options");
    let name = response.status().canonical_reason().unwrap_or_default();
    *response.body_mut() = Body::from(format!("{name}\n"));
    let headers = response.headers_mut();
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(NOSNIFF, HeaderValue::from_static("nosniff"));
    response
}

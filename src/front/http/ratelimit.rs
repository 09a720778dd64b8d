//! `/json` and `/healthcheck`: the two paths of envoyproxy/ratelimit's HTTP port.
//!
//! | `/json` | status |
//! |---|---|
//! | all is within the limits | 200, the response in proto3-JSON |
//! | something is over its limit | 429, likewise |
//! | the body is no request, or the service refuses it | 400, `Bad Request` |
//! | there is no decision in time | 500, `Internal Server Error` |
//!
//! It is Envoy's rate limit service in another form, so `[envoy]` applies, and its answers carry no
//! headers of ours. `/v1/check` is the other way to ask, with headers and with errors in words.
//!
//! Source: envoyproxy/ratelimit, `src/server/server_impl.go`, `NewJsonHandler`, and
//! `src/server/health.go`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};

use super::check::read_body;
use super::{HttpListener, json, problem};
use crate::decide::Decide;
use crate::front::Probes;
use crate::front::rls::message::Code;
use crate::front::rls::{self, Unanswered};

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
            // At a level that is off by default: strangers decide how often this happens.
            tracing::debug!(%error, "/json: no request");
            listener.stats.refused.add(1);
            return text(StatusCode::BAD_REQUEST);
        }
    };
    match rls::answer(&*listener.decide, &message, &listener.bounds, &listener.stats).await {
        Ok(response) => {
            let status = match response.overall_code() {
                Code::Ok => StatusCode::OK,
                Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
                Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
            };
            problem::json(status, json::response(&response))
        }
        Err(why) => {
            tracing::debug!(%why, "/json: no answer");
            text(match why {
                Unanswered::Refused(_) => StatusCode::BAD_REQUEST,
                Unanswered::Late => StatusCode::INTERNAL_SERVER_ERROR,
            })
        }
    }
}

/// `OK`, or 500 with the reasons, where the reference says nothing.
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

/// What Go's `http.Error` writes for a status.
fn text(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    as_text(response)
}

/// The same response with nothing but its status' name in the body.
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

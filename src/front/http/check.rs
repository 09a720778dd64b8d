//! `POST /v1/check` and `/json`: the rate limit service in its JSON form.
//!
//! The body is read as JSON whatever its content type is: `curl -d` sends that of a form, and
//! `/json` of envoyproxy/ratelimit ignores it too.
//!
//! | `/json` | status |
//! |---|---|
//! | every descriptor is within its limit | 200, the response in proto3 JSON |
//! | a descriptor is over its limit | 429, likewise |
//! | the body is not a request, or is refused | 400, `Bad Request` |
//! | a web page of another site sent it | 403, an error with a text |
//! | there is no decision in time | 500, `Internal Server Error` |
//!
//! `/json` is a path of the HTTP port of envoyproxy/ratelimit. It is Envoy's rate limit service in
//! another form, so `[envoy]` applies, and the responses have no `X-RateLimit-*` headers.
//! `/v1/check` has them, and errors with a text.
//!
//! Source: envoyproxy/ratelimit, `src/server/server_impl.go`, `NewJsonHandler`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use tidegate_proto::rls::Code;

use super::json;
use super::listener::{
    self, HttpListener, Refused, denied_status, problem, read_body, read_own_site, undecided,
};
use crate::decide::Decide;
use crate::front::bounds::Refusal;
use crate::front::{Probes, cross_site, render, rls};

pub(super) async fn check<D: Decide, P: Probes>(
    State(listener): State<Arc<HttpListener<D, P>>>,
    request: Request,
) -> Response {
    answer(&listener, request).await.unwrap_or_else(|refusal| {
        listener.stats.refused.add(1);
        *refusal
    })
}

async fn answer<D: Decide, P: Probes>(
    listener: &HttpListener<D, P>,
    request: Request,
) -> Result<Response, Refused> {
    let body = read_own_site(request, &listener.bounds).await?;
    let refused = |status, text: &str| Box::new(problem(status, text));
    let bad = |text: &str| refused(StatusCode::BAD_REQUEST, text);
    let message = json::request(&body).map_err(|error| bad(&error.to_string()))?;
    let descriptors = rls::descriptors(&message, &listener.bounds)
        .map_err(|refusal| bad(&refusal.to_string()))?;
    if !listener.decide.is_loaded() {
        let text = Refusal::NotLoaded.to_string();
        return Err(refused(StatusCode::SERVICE_UNAVAILABLE, &text));
    }
    listener.stats.overrides.add(rls::overrides_ignored(&message, false));

    let check = rls::check_request(&message, &descriptors, false);
    let Some(answer) = listener.decide(check).await else {
        return Ok(undecided());
    };
    let status =
        if answer.allowed { StatusCode::OK } else { denied_status(listener.denied_status) };
    let mut response = listener::json(status, json::response(&rls::response(&answer)));
    render::headers(&answer, response.headers_mut());
    Ok(response)
}

// === /json ===

pub(super) async fn envoy_check<D: Decide, P: Probes>(
    State(listener): State<Arc<HttpListener<D, P>>>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    if let Err(refusal) = cross_site::check(&parts) {
        listener.stats.refused.add(1);
        return problem(StatusCode::FORBIDDEN, &refusal.to_string());
    }
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
    let HttpListener { decide, bounds, stats, .. } = &*listener;
    match rls::check(&**decide, &message, bounds, bounds.request_timeout, stats).await {
        Ok(response) => {
            let status = match response.overall_code() {
                Code::Ok => StatusCode::OK,
                Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
                Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
            };
            listener::json(status, json::response(&response))
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

/// What `http.Error` of Go writes for a status.
fn text(status: StatusCode) -> Response {
    as_text(status.into_response())
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

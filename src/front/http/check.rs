//! `POST /v1/check`.
//!
//! The body is JSON whatever its content type says: `curl -d` calls it a form, and
//! envoyproxy/ratelimit's `/json` never looked either.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use http::header::{HeaderValue, RETRY_AFTER};
use http::{StatusCode, Version};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;

use super::json;
use super::problem::{self, problem};
use super::{HttpListener, denied_status};
use crate::decide::{CheckRequest, CheckResponse, Decide};
use crate::front::bounds::{Bounds, Refusal};
use crate::front::rls::{self, Question};
use crate::front::{Probes, render, within};

pub(super) async fn check<D: Decide, P: Probes>(
    State(listener): State<Arc<HttpListener<D, P>>>,
    request: Request,
) -> Response {
    match answer(&listener, request).await {
        Ok(response) => response,
        Err(refusal) => {
            listener.stats.refused.add(1);
            *refusal
        }
    }
}

/// Boxed because it is the rare case and a response is large.
pub(super) type Refused = Box<Response>;

async fn answer<D: Decide, P: Probes>(
    listener: &HttpListener<D, P>,
    request: Request,
) -> Result<Response, Refused> {
    let (parts, body) = request.into_parts();
    let body = read_body(body, &listener.bounds, parts.version).await?;
    let bad = |text: &str| Box::new(problem(StatusCode::BAD_REQUEST, text));
    let message = json::request(&body).map_err(|error| bad(&error.to_string()))?;
    let question =
        Question::new(&message, &listener.bounds).map_err(|refusal| bad(&refusal.to_string()))?;
    if !listener.decide.is_loaded() {
        return Err(Box::new(problem(
            StatusCode::SERVICE_UNAVAILABLE,
            &Refusal::NotLoaded.to_string(),
        )));
    }
    listener.stats.overrides.add(rls::overrides_ignored(&message, false));

    let Some(answer) = decide(listener, question.ask(false)).await else {
        return Ok(undecided());
    };
    let status =
        if answer.allowed { StatusCode::OK } else { denied_status(listener.denied_status) };
    let mut response = problem::json(status, json::response(&rls::response(&answer)));
    render::headers(&answer, response.headers_mut());
    Ok(response)
}

/// The verdict, unless it takes longer than a request may.
pub(super) async fn decide<D: Decide, P>(
    listener: &HttpListener<D, P>,
    ask: CheckRequest<'_>,
) -> Option<CheckResponse> {
    within(listener.bounds.request_timeout, listener.decide.decide(ask)).await
}

/// The response to a request that could not be decided in time.
pub(super) fn undecided() -> Response {
    let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, "no decision in time; try again");
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

pub(super) async fn read_body(
    body: Body,
    bounds: &Bounds,
    version: Version,
) -> Result<Bytes, Refused> {
    let max = bounds.body_bytes_max;
    let too_large = || {
        let text = format!("the body is larger than {max} bytes (limits.body_bytes_max)");
        Box::new(closing(problem(StatusCode::PAYLOAD_TOO_LARGE, &text), version))
    };
    // A length that is announced needs no reading, and an `Expect: 100-continue` gets its "no".
    if body.size_hint().lower() > max as u64 {
        return Err(too_large());
    }
    let collected = Limited::new(body, max).collect();
    match within(bounds.request_timeout, collected).await {
        Some(Ok(body)) => Ok(body.to_bytes()),
        Some(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Some(Err(error)) => {
            let text = format!("the body did not arrive whole: {error}");
            Err(Box::new(problem(StatusCode::BAD_REQUEST, &text)))
        }
        None => {
            let text = format!("the body took longer than {:?}", bounds.request_timeout);
            Err(Box::new(closing(problem(StatusCode::REQUEST_TIMEOUT, &text), version)))
        }
    }
}

/// What is left of such a body is not worth reading, so the connection ends here.
fn closing(mut response: Response, version: Version) -> Response {
    if version < Version::HTTP_2 {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(http::header::CONNECTION, close);
    }
    response
}

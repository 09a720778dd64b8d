//! `POST /v1/check`.
//!
//! The body is read as JSON whatever its content type is: `curl -d` sends that of a form, and
//! `/json` of envoyproxy/ratelimit ignores it too.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;

use super::json;
use super::listener::{HttpListener, Refused, denied_status, read_body};
use super::problem::{self, problem, undecided};
use crate::decide::Decide;
use crate::front::bounds::Refusal;
use crate::front::{Probes, render, rls};

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

async fn answer<D: Decide, P: Probes>(
    listener: &HttpListener<D, P>,
    request: Request,
) -> Result<Response, Refused> {
    let (parts, body) = request.into_parts();
    let body = read_body(body, &listener.bounds, parts.version).await?;
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
    let mut response = problem::json(status, json::response(&rls::response(&answer)));
    render::headers(&answer, response.headers_mut());
    Ok(response)
}

//! `POST /v1/reserve`, `/v1/commit` and `/v1/release`: for work whose cost is known late.
//!
//! ```text
//! POST /v1/reserve  {"domain": "llm", "descriptors": [{"entries": [{"key": "tenant", "value":
//! "a"}]}],
//!                    "amount": 4000, "ttl": "60s"}
//! 200               {"code": "OK", "reservationId": "…", "ttl": "60s", "statuses": […]}
//! POST /v1/commit   {"domain": …, "descriptors": …, "reservationId": "…", "actualAmount": 350}
//! 200               {"outcome": "COMMITTED", "statuses": […]}
//! ```
//!
//! | | status |
//! |---|---|
//! | the amount is reserved | 200 |
//! | it does not fit | 429 or the configured one, `"code": "OVER_LIMIT"`, a refusal's headers |
//! | a commit was applied, now or before | 200, with its outcome |
//! | no owner has confirmed a commit in time | 503; it may be sent again with the same id |
//!
//! | outcome | |
//! |---|---|
//! | `COMMITTED` | the reservation was live; its cost was counted in its place |
//! | `REPEATED` | it was committed before; nothing was counted |
//! | `REPORTED` | the id is unknown, or its reservation has ended: the cost was counted |
//! | `UNLIMITED` | no limit applies, or none does any more: nothing was counted |
//!
//! A reservation that is to last longer is reserved again, with its `reservationId`.

use std::pin::pin;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER};
use serde::{Deserialize, Deserializer};
use tidegate_limiter::store::{ReservationId, Settled};
use tidegate_limiter::units::Span;
use tidegate_proto::rls::{RateLimitDescriptor, RateLimitRequest};

use super::listener::{
    self, HttpListener, Refused, denied_status, problem, read_own_site, undecided,
};
use crate::decide::{CheckResponse, CommitRequest, Reserve, ReserveRequest};
use crate::front::bounds::Refusal;
use crate::front::{Probes, render, rls, within};

/// The body of `/v1/reserve`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReserveBody {
    domain: String,
    descriptors: Vec<RateLimitDescriptor>,
    amount: u64,
    #[serde(default, deserialize_with = "text")]
    ttl: Option<Span>,
    #[serde(default, alias = "reservation_id", deserialize_with = "text")]
    reservation_id: Option<ReservationId>,
}

/// The body of `/v1/commit`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CommitBody {
    domain: String,
    descriptors: Vec<RateLimitDescriptor>,
    /// Without one the cost is reported.
    #[serde(default, alias = "reservation_id", deserialize_with = "text")]
    reservation_id: Option<ReservationId>,
    #[serde(alias = "actual_amount")]
    actual_amount: u64,
}

/// The body of `/v1/release`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReleaseBody {
    domain: String,
    descriptors: Vec<RateLimitDescriptor>,
    #[serde(alias = "reservation_id", deserialize_with = "text")]
    reservation_id: Option<ReservationId>,
}

pub(super) async fn reserve<D: Reserve, P: Probes>(
    State(listener): State<Arc<HttpListener<D, P>>>,
    request: Request,
) -> Response {
    counted(&listener, answer_reserve(&listener, request).await)
}

pub(super) async fn commit<D: Reserve, P: Probes>(
    State(listener): State<Arc<HttpListener<D, P>>>,
    request: Request,
) -> Response {
    let answer = async {
        let body = read(&listener, request).await?;
        answer_commit(&listener, parse::<CommitBody>(&body, "a commit")?).await
    };
    counted(&listener, answer.await)
}

pub(super) async fn release<D: Reserve, P: Probes>(
    State(listener): State<Arc<HttpListener<D, P>>>,
    request: Request,
) -> Response {
    let answer = async {
        let body = read(&listener, request).await?;
        let ReleaseBody { domain, descriptors, reservation_id } = parse(&body, "a release")?;
        let commit = CommitBody { domain, descriptors, reservation_id, actual_amount: 0 };
        answer_commit(&listener, commit).await
    };
    counted(&listener, answer.await)
}

async fn answer_reserve<D: Reserve, P: Probes>(
    listener: &HttpListener<D, P>,
    request: Request,
) -> Result<Response, Refused> {
    let body = read(listener, request).await?;
    let ReserveBody { domain, descriptors, amount, ttl, reservation_id: id } =
        parse(&body, "a reservation")?;
    let message = RateLimitRequest { domain, descriptors, hits_addend: 0 };
    let descriptors =
        rls::descriptors(&message, &listener.bounds).map_err(|refusal| Box::new(bad(&refusal)))?;
    let (domain, descriptors) = (&message.domain, &descriptors);
    let request = ReserveRequest { domain, descriptors, amount, ttl, id };
    let reserved = pin!(listener.decide.reserve(request));
    let Some(reserved) = within(listener.bounds.request_timeout, reserved).await else {
        return Ok(undecided());
    };
    let is_allowed = reserved.response.allowed;
    let code = if is_allowed { "OK" } else { "OVER_LIMIT" };
    let mut body = serde_json::json!({ "code": code, "statuses": statuses(&reserved.response) });
    if let Some(id) = reserved.id {
        body["reservationId"] = id.to_string().into();
        body["ttl"] = seconds(reserved.ttl).into();
    }
    let status = if is_allowed { StatusCode::OK } else { denied_status(listener.denied_status) };
    let mut response = listener::json(status, body.to_string());
    render::headers(&reserved.response, response.headers_mut());
    Ok(response)
}

async fn answer_commit<D: Reserve, P>(
    listener: &HttpListener<D, P>,
    commit: CommitBody,
) -> Result<Response, Refused> {
    let CommitBody { domain, descriptors, reservation_id: id, actual_amount } = commit;
    let message = RateLimitRequest { domain, descriptors, hits_addend: 0 };
    let descriptors =
        rls::descriptors(&message, &listener.bounds).map_err(|refusal| Box::new(bad(&refusal)))?;
    let (domain, descriptors) = (&message.domain, &descriptors);
    let request = CommitRequest { domain, descriptors, id, cost: actual_amount };
    let committed = pin!(listener.decide.commit(request));
    let committed = match within(listener.bounds.request_timeout, committed).await {
        Some(Ok(committed)) => committed,
        Some(Err(error)) => return Ok(unavailable(&error.to_string())),
        None => return Ok(undecided()),
    };
    let outcome = match committed.settled {
        Some(Settled::Committed) => "COMMITTED",
        Some(Settled::Again) => "REPEATED",
        Some(Settled::Reported) => "REPORTED",
        None => "UNLIMITED",
    };
    let statuses = statuses(&committed.response);
    let body = serde_json::json!({ "outcome": outcome, "statuses": statuses });
    let mut response = listener::json(StatusCode::OK, body.to_string());
    render::headers(&committed.response, response.headers_mut());
    Ok(response)
}

// === reading ===

async fn read<D: Reserve, P>(
    listener: &HttpListener<D, P>,
    request: Request,
) -> Result<Bytes, Refused> {
    let body = read_own_site(request, &listener.bounds).await?;
    if !listener.decide.is_loaded() {
        let text = Refusal::NotLoaded.to_string();
        return Err(Box::new(problem(StatusCode::SERVICE_UNAVAILABLE, &text)));
    }
    Ok(body)
}

fn parse<T: for<'de> Deserialize<'de>>(body: &[u8], what: &str) -> Result<T, Refused> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let parsed = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| error.to_string())
        .and_then(|parsed| json.end().map(|()| parsed).map_err(|error| error.to_string()));
    parsed.map_err(|error| Box::new(bad(&format!("the body is not {what} in JSON: {error}"))))
}

/// A value that is written as text; `null` is none.
fn text<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
}

// === answering ===

fn counted<D, P>(listener: &HttpListener<D, P>, answer: Result<Response, Refused>) -> Response {
    answer.unwrap_or_else(|refusal| {
        listener.stats.refused.add(1);
        *refusal
    })
}

fn bad(text: &impl ToString) -> Response {
    problem(StatusCode::BAD_REQUEST, &text.to_string())
}

fn unavailable(text: &str) -> Response {
    let response = problem(StatusCode::SERVICE_UNAVAILABLE, text);
    ([(RETRY_AFTER, HeaderValue::from_static("1"))], response).into_response()
}

/// In seconds if they are whole: `60s`, which programs read more easily than `1m`.
fn seconds(span: Span) -> String {
    // Of an id that was asked for before it is some nanoseconds more.
    let millis = Span::from_millis(span.as_nanos() / 1_000_000);
    let span = if millis == Span::ZERO { span } else { millis };
    let seconds = span.as_secs_ceil();
    if Span::from_secs(seconds) == span { format!("{seconds}s") } else { span.to_string() }
}

fn statuses(response: &CheckResponse) -> serde_json::Value {
    serde_json::to_value(&rls::response(response).statuses).unwrap_or_default()
}

//! What the handlers of the HTTP listener share: its parts, deciding, reading a body, responses in
//! JSON.

use std::pin::pin;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Method, StatusCode, Uri, Version};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use tokio::time::Instant;

use crate::config::Auth;
use crate::decide::{CheckRequest, CheckResponse, Decide, Given};
use crate::front::bounds::Bounds;
use crate::front::pages::Page;
use crate::front::serve::ListenerStats;
use crate::front::{cross_site, within};

/// The parts of the HTTP listener.
#[derive(Debug)]
pub struct HttpListener<D, P> {
    pub decide: Arc<D>,
    pub probes: Arc<P>,
    pub bounds: Bounds,
    /// Status code of a refusal; 429 in place of anything that is not an error status.
    pub denied_status: u16,
    /// How forward-auth builds descriptors.
    pub auth: Auth,
    /// Counts refused requests.
    pub stats: Arc<ListenerStats>,
    pub metrics: Page,
}

/// An error response, boxed because it is rare and large.
pub(super) type Refused = Box<Response>;

impl<D: Decide, P> HttpListener<D, P> {
    /// The verdict, or `None` if it takes longer than a request may.
    pub(super) async fn decide(&self, check: CheckRequest<'_>) -> Option<CheckResponse> {
        within(self.bounds.request_timeout, pin!(self.decide.decide(check))).await
    }

    /// Gives back what `answer` has counted of what was asked at `asked_at`, turns in queues too.
    pub(super) async fn give_back(
        &self,
        (check, asked_at): (CheckRequest<'_>, Instant),
        answer: &CheckResponse,
    ) {
        let given = Given { passed: asked_at.elapsed().into(), turns: true };
        let giving = pin!(self.decide.give_back(check, answer, given));
        let _ = within(self.bounds.request_timeout, giving).await;
    }
}

pub(super) fn denied_status(configured: u16) -> StatusCode {
    StatusCode::from_u16(configured)
        .ok()
        .filter(|status| status.is_client_error() || status.is_server_error())
        .unwrap_or(StatusCode::TOO_MANY_REQUESTS)
}

/// The body of a request that changes counters, unless a web page of another site sent it.
pub(super) async fn read_own_site(request: Request, bounds: &Bounds) -> Result<Bytes, Refused> {
    let (parts, body) = request.into_parts();
    cross_site::check(&parts)
        .map_err(|refusal| Box::new(problem(StatusCode::FORBIDDEN, &refusal.to_string())))?;
    read_body(body, bounds, parts.version).await
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
    // A body whose announced length is too large is not read, and `Expect: 100-continue` is
    // answered with the error.
    if body.size_hint().lower() > max as u64 {
        return Err(too_large());
    }
    let collected = pin!(Limited::new(body, max).collect());
    match within(bounds.request_timeout, collected).await {
        Some(Ok(body)) => Ok(body.to_bytes()),
        Some(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Some(Err(error)) => {
            let text = format!("the body is incomplete: {error}");
            Err(Box::new(problem(StatusCode::BAD_REQUEST, &text)))
        }
        None => {
            let text = format!("the body took longer than {:?}", bounds.request_timeout);
            Err(Box::new(closing(problem(StatusCode::REQUEST_TIMEOUT, &text), version)))
        }
    }
}

/// Closes the connection after the response: the rest of the body is not read.
fn closing(mut response: Response, version: Version) -> Response {
    if version < Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

// === JSON ===

/// An error: `{"error": text}`, where the text is one line that says what to do.
pub(super) fn problem(status: StatusCode, text: &str) -> Response {
    json(status, serde_json::json!({ "error": text }).to_string())
}

/// A response whose body is JSON already.
pub(super) fn json(status: StatusCode, body: String) -> Response {
    // A static value and a `Body`: text would be copied, and a `String` sets a content type first.
    let content_type = HeaderValue::from_static("application/json");
    (status, [(CONTENT_TYPE, content_type)], Body::from(body)).into_response()
}

/// The response to a request that could not be decided in time.
pub(super) fn undecided() -> Response {
    let response = problem(StatusCode::SERVICE_UNAVAILABLE, "no decision in time; try again");
    ([(RETRY_AFTER, HeaderValue::from_static("1"))], response).into_response()
}

pub(super) async fn not_found(uri: Uri) -> Response {
    // The header limit bounds the path, at a length that is too much for an error.
    let path: String = uri.path().chars().take(100).collect();
    let text = format!("there is nothing at {path}; GET / lists what there is");
    problem(StatusCode::NOT_FOUND, &text)
}

pub(super) async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    let path = uri.path();
    let text = format!("{method} is not for {path}; GET / lists what there is");
    problem(StatusCode::METHOD_NOT_ALLOWED, &text)
}

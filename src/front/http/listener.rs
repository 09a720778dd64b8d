//! What the handlers of the HTTP listener share: its parts, reading a body, deciding.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::HeaderValue;
use http::{StatusCode, Version};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;

use super::problem::problem;
use crate::config::Auth;
use crate::decide::{CheckRequest, CheckResponse, Decide};
use crate::front::bounds::Bounds;
use crate::front::serve::ListenerStats;
use crate::front::within;

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
}

/// An error response, boxed because it is rare and large.
pub(super) type Refused = Box<Response>;

impl<D: Decide, P> HttpListener<D, P> {
    /// The verdict, or `None` if it takes longer than a request may.
    pub(super) async fn decide(&self, check: CheckRequest<'_>) -> Option<CheckResponse> {
        within(self.bounds.request_timeout, self.decide.decide(check)).await
    }
}

pub(super) fn denied_status(configured: u16) -> StatusCode {
    StatusCode::from_u16(configured)
        .ok()
        .filter(|status| status.is_client_error() || status.is_server_error())
        .unwrap_or(StatusCode::TOO_MANY_REQUESTS)
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
    let collected = Limited::new(body, max).collect();
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
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(http::header::CONNECTION, close);
    }
    response
}

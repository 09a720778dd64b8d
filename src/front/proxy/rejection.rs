//! Responses of the proxy itself: refusals and failures.
//!
//! HTTP clients get problem details (RFC 9457). gRPC clients get what a gRPC server answers: HTTP
//! 200 with a status of gRPC in the head and no body, and for a refusal the time until a retry,
//! which their libraries keep to.
//!
//! ```text
//! HTTP/1.1 429 Too Many Requests             HTTP/2 200
//! content-type: application/problem+json     content-type: application/grpc
//! retry-after: 12                            grpc-status: 8
//!                                            grpc-message: over the limit; try again in 12 s
//! {"type":"https://iana.org/...",            grpc-retry-pushback-ms: 12000
//!  "title":"Quota exceeded","status":429,
//!  "detail":"over the limit; try again in 12 s","violated-policies":["login"]}
//! ```
//!
//! Source: draft-ietf-httpapi-ratelimit-headers-10, 5 (the problem type); gRPC over HTTP/2,
//! "Responses"; gRFC A6, "Pushback".

use std::fmt::Write;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::Full;
use tidegate_limiter::engine::Retry;

use crate::decide::CheckResponse;
use crate::front::render;

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
pub(super) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// Statuses of gRPC.
mod grpc {
    pub(super) const DEADLINE_EXCEEDED: u8 = 4;
    pub(super) const RESOURCE_EXHAUSTED: u8 = 8;
    pub(super) const INTERNAL: u8 = 13;
    pub(super) const UNAVAILABLE: u8 = 14;
}

/// Which form the client reads, and whether its connection can go on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) is_grpc: bool,
    /// The body of the request is not read to its end, so an HTTP/1 connection ends.
    pub(super) closes: bool,
}

/// The response to a request that is refused by `answer`, with `status` for HTTP clients.
pub(super) fn refused(
    answer: &CheckResponse,
    status: StatusCode,
    detail: &str,
    form: Form,
) -> Response<Full<Bytes>> {
    let mut response = if form.is_grpc {
        let mut response = grpc_response(grpc::RESOURCE_EXHAUSTED, detail);
        response.headers_mut().insert(GRPC_RETRY_PUSHBACK, pushback(answer));
        response
    } else {
        let problem = serde_json::json!({
            "type": QUOTA_EXCEEDED,
            "title": "Quota exceeded",
            "status": status.as_u16(),
            "detail": detail,
            "violated-policies": render::violated(answer),
        });
        http_response(status, &problem)
    };
    render::headers(answer, response.headers_mut());
    form.apply(response)
}

/// The response to a request that cannot be passed on.
pub(super) fn failed(status: StatusCode, detail: &str, form: Form) -> Response<Full<Bytes>> {
    let mut response = if form.is_grpc {
        let code = match status {
            StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => grpc::DEADLINE_EXCEEDED,
            _ if status.is_client_error() => grpc::INTERNAL,
            _ => grpc::UNAVAILABLE,
        };
        grpc_response(code, detail)
    } else {
        let title = status.canonical_reason().unwrap_or_default();
        let problem = serde_json::json!({
            "title": title,
            "status": status.as_u16(),
            "detail": detail,
        });
        http_response(status, &problem)
    };
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    form.apply(response)
}

impl Form {
    fn apply(self, mut response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
        if self.closes {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

fn http_response(status: StatusCode, problem: &serde_json::Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(problem.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
    response
}

/// A response without a body: its head is also its trailers.
fn grpc_response(code: u8, message: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    headers.insert(GRPC_STATUS, u16::from(code).into());
    // Printable ASCII only.
    headers.extend(HeaderValue::try_from(encoded(message)).ok().map(|text| (GRPC_MESSAGE, text)));
    response
}

/// Milliseconds until a retry may pass; -1: never.
fn pushback(answer: &CheckResponse) -> HeaderValue {
    match render::most_restrictive(answer).map_or(Retry::Now, |verdict| verdict.retry) {
        Retry::Never => HeaderValue::from_static("-1"),
        Retry::Now => HeaderValue::from_static("0"),
        // Grows with the span: its ceiling in milliseconds is never early.
        Retry::After(span) => span.as_millis_ceil().into(),
    }
}

/// A message in the encoding of gRPC: percent signs for everything that is not printable ASCII.
fn encoded(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b'%' => text.push_str("%25"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => {
                // Writing to a `String` cannot fail.
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text
}

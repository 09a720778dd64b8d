//! Responses of the layer itself, in the form that the client reads.
//!
//! HTTP clients get problem details (RFC 9457). gRPC clients get what a gRPC server answers: HTTP
//! 200 with a status of gRPC in the head and no body, and for a refusal the time until a retry,
//! which their libraries keep to.
//!
//! | | HTTP | gRPC |
//! |---|---|---|
//! | refused by a limit | 429, `quota-exceeded` | `grpc-status: 8`, `grpc-retry-pushback-ms` |
//! | no decision, and denied | 503, `Retry-After: 1` | `grpc-status: 14`, pushback |
//! | not taken by the limiter | 400 | `grpc-status: 3` |
//!
//! Source: draft-ietf-httpapi-ratelimit-headers, "Problem types"; gRPC over HTTP/2, "Responses";
//! gRFC A6, "Pushback".

use std::fmt::Write;
use std::mem;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};
use tidegate_limiter::units::Span;

use crate::verdict::Verdict;

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// Statuses of gRPC.
mod grpc {
    pub(super) const INVALID_ARGUMENT: u8 = 3;
    pub(super) const RESOURCE_EXHAUSTED: u8 = 8;
    pub(super) const UNAVAILABLE: u8 = 14;
}

/// The form that the client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Http,
    Grpc,
}

/// Whether a request is one of gRPC. gRPC-Web, whose status is in the body, is not.
#[inline]
pub(crate) fn form(headers: &HeaderMap) -> Form {
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = content_type.and_then(|value| value.strip_prefix(b"application/grpc"));
    match rest.map(<[u8]>::first) {
        Some(None | Some(b'+' | b';' | b' ')) => Form::Grpc,
        _ => Form::Http,
    }
}

impl Verdict {
    /// The body of the response to a refusal: problem details.
    pub fn problem(&self) -> Value {
        if !self.is_decided {
            return problem(StatusCode::SERVICE_UNAVAILABLE, "The rate limiter is not available.");
        }
        json!({
            "type": QUOTA_EXCEEDED,
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": StatusCode::TOO_MANY_REQUESTS.as_u16(),
            "detail": self.detail(),
            "violated-policies": self.violated,
        })
    }

    fn detail(&self) -> String {
        match self.retry_after_secs() {
            _ if !self.is_decided => "the rate limiter is not available".to_owned(),
            None => "over the limit".to_owned(),
            Some(secs) => format!("over the limit; try again in {secs} s"),
        }
    }
}

/// The response to a request that `verdict` refuses.
pub(crate) fn refused(verdict: Verdict, form: Form) -> Response<Full<Bytes>> {
    let (status, code) = if verdict.is_decided {
        (StatusCode::TOO_MANY_REQUESTS, grpc::RESOURCE_EXHAUSTED)
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, grpc::UNAVAILABLE)
    };
    let mut response = match form {
        Form::Http => http_response(status, &verdict.problem()),
        Form::Grpc => {
            let mut response = grpc_response(code, &verdict.detail());
            // -1: never.
            let never = HeaderValue::from_static("-1");
            let millis = |wait| Span::from(wait).as_millis_ceil();
            let pushback = verdict.retry_after.map_or(never, |wait| millis(wait).into());
            response.headers_mut().insert(GRPC_RETRY_PUSHBACK, pushback);
            response
        }
    };
    add_fields(response.headers_mut(), verdict.fields);
    response
}

/// The response to a request that would have to wait for longer than it may.
pub(crate) fn queue_too_long(verdict: Verdict, form: Form) -> Response<Full<Bytes>> {
    let detail = "the queue is too long; try again later";
    let mut response = match form {
        Form::Http => {
            let status = StatusCode::TOO_MANY_REQUESTS;
            http_response(status, &problem(status, detail))
        }
        Form::Grpc => grpc_response(grpc::RESOURCE_EXHAUSTED, detail),
    };
    add_fields(response.headers_mut(), verdict.fields);
    response
}

/// The response to a request whose check the limiter does not take.
pub(crate) fn invalid(detail: &str, form: Form) -> Response<Full<Bytes>> {
    match form {
        Form::Http => {
            let status = StatusCode::BAD_REQUEST;
            http_response(status, &problem(status, detail))
        }
        Form::Grpc => grpc_response(grpc::INVALID_ARGUMENT, detail),
    }
}

/// Writes the fields of a verdict over those of a response.
#[inline]
pub(crate) fn add_fields(headers: &mut HeaderMap, mut fields: HeaderMap) {
    if headers.len() > fields.len() {
        headers.extend(fields);
        return;
    }
    // The fewer are added to the others: for each one a name is hashed.
    mem::swap(headers, &mut fields);
    let mut last = None;
    for (name, value) in fields {
        // Further values of a name come without it.
        if let Some(name) = name {
            last = Some(name).filter(|name| !headers.contains_key(name));
        }
        if let Some(name) = &last {
            headers.append(name, value);
        }
    }
}

fn problem(status: StatusCode, detail: &str) -> Value {
    json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or_default(),
        "status": status.as_u16(),
        "detail": detail,
    })
}

fn http_response(status: StatusCode, problem: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(problem.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
    response
}

/// A response without a body: its head is also its trailers.
fn grpc_response(code: u8, message: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    headers.insert(GRPC_STATUS, u16::from(code).into());
    // Printable ASCII only.
    headers.extend(HeaderValue::try_from(encoded(message)).ok().map(|text| (GRPC_MESSAGE, text)));
    response
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_told_by_its_content_type() {
        for (content_type, expected) in [
            ("application/grpc", Form::Grpc),
            ("application/grpc+proto", Form::Grpc),
            ("application/grpc; charset=utf-8", Form::Grpc),
            ("application/grpc-web+proto", Form::Http),
            ("application/json", Form::Http),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            assert_eq!(form(&headers), expected, "{content_type}");
        }
        assert_eq!(form(&HeaderMap::new()), Form::Http);
    }

    #[test]
    fn the_fields_of_a_verdict_are_added_to_few_and_to_many_headers() {
        let map = |lines: &[(&'static str, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in lines {
                map.append(*name, HeaderValue::from_static(value));
            }
            map
        };
        let fields = [("ratelimit", "ours"), ("retry-after", "1")];
        let few = [("set-cookie", "a"), ("retry-after", "9"), ("set-cookie", "b")];
        let many = [&few[..], &[("vary", "x"), ("vary", "y"), ("etag", "z")]].concat();
        for headers in [&[][..], &few[..1], &few, &many] {
            let mut expected = map(headers);
            expected.remove("retry-after");
            let mut added = map(headers);
            add_fields(&mut added, map(&fields));
            assert_eq!(added.remove("ratelimit").unwrap(), "ours", "{headers:?}");
            assert_eq!(added.remove("retry-after").unwrap(), "1", "{headers:?}");
            assert_eq!(added, expected, "{headers:?}");
        }
    }

    #[test]
    fn a_message_of_any_bytes_is_a_header() {
        assert_eq!(encoded("100% \n ü"), "100%25 %0A %C3%BC");
    }
}

//! JSON responses, and errors as JSON: a status and one line that says what to do.

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Method, StatusCode, Uri};

/// `{"error": text}` with `status`.
pub(super) fn problem(status: StatusCode, text: &str) -> Response {
    json(status, serde_json::json!({ "error": text }).to_string())
}

/// A response whose body is JSON already.
pub(super) fn json(status: StatusCode, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The response to a request that could not be decided in time.
pub(super) fn undecided() -> Response {
    let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, "no decision in time; try again");
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

pub(super) async fn not_found(uri: Uri) -> Response {
    // The header limit bounds the path, at a length that is too much for an error.
    let path: String = uri.path().chars().take(100).collect();
    problem(
        StatusCode::NOT_FOUND,
        &format!("there is nothing at {path}; GET / lists what there is"),
    )
}

pub(super) async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    let path = uri.path();
    let text = format!("{method} is not for {path}; GET / lists what there is");
    problem(StatusCode::METHOD_NOT_ALLOWED, &text)
}

//! Error responses: a status and one line that says what to do.

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, StatusCode, Uri};

/// `{"error": text}` with `status`.
pub(super) fn problem(status: StatusCode, text: &str) -> Response {
    json(status, serde_json::json!({ "error": text }).to_string())
}

/// A JSON body that is written already.
pub(super) fn json(status: StatusCode, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(super) async fn not_found(uri: Uri) -> Response {
    // The path is bounded by the header limit; a line of a log is not the place for all of it.
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

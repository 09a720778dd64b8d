//! The dashboard: one page and its script, compiled in. It reads `/events` and `/key` and writes
//! nothing.
//!
//! The files say nothing of the cluster. All URLs are relative, and nothing is loaded from
//! elsewhere: a policy forbids it, and scripts and styles within the page as well, so that a text
//! of a client that reaches the page stays a text.
//!
//! uPlot draws the rates: <https://github.com/leeoniya/uPlot>, MIT, in `uplot/` as published.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderValue, StatusCode};

/// A file of the dashboard.
#[derive(Clone, Copy, Debug)]
pub struct File {
    pub path: &'static str,
    pub content_type: &'static str,
    pub content: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// All that a browser loads.
pub static FILES: [File; 5] = [
    file("/ui/", HTML, include_bytes!("dashboard.html")),
    file("/ui/dashboard.js", SCRIPT, include_bytes!("dashboard.js")),
    file("/ui/dashboard.css", STYLE, include_bytes!("dashboard.css")),
    file("/ui/uplot.js", SCRIPT, include_bytes!("uplot/uPlot.iife.min.js")),
    file("/ui/uplot.css", STYLE, include_bytes!("uplot/uPlot.min.css")),
];

const fn file(path: &'static str, content_type: &'static str, content: &'static [u8]) -> File {
    File { path, content_type, content }
}

const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);
const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-resource-policy");

/// The paths of the files, and what answers there.
pub(super) fn files<S: Clone + Send + Sync + 'static>()
-> impl Iterator<Item = (&'static str, MethodRouter<S>)> {
    FILES.iter().map(|file| {
        let answer = || async {
            let headers = [(CONTENT_TYPE, file.content_type), (CACHE_CONTROL, "no-cache")];
            (StatusCode::OK, headers, file.content).into_response()
        };
        (file.path, get(answer))
    })
}

/// Tells browsers what a response may do: nothing but what the dashboard needs.
pub(super) async fn confined(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (CROSS_ORIGIN_RESOURCE_POLICY, HeaderValue::from_static("same-origin")),
    ] {
        headers.insert(name, value);
    }
    response
}

//! A small HTTP client for commands that ask a node.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::runtime;
use tokio::time::timeout;

use super::Failure;
use crate::config::UserError;

/// How long a node may take to answer, all in all.
const PATIENCE: Duration = Duration::from_secs(5);

/// Largest answer that is read; a status of a thousand members is far smaller.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Asks `url` and waits for the whole answer, whatever its status.
pub(super) fn ask(method: Method, url: &str, body: String) -> Result<Response<Bytes>, Failure> {
    let uri = parse(url)?;
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| no_answer(url, &error.to_string()))?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| no_answer(url, &error.to_string()))?;
    runtime.block_on(async {
        match timeout(PATIENCE, exchange(&http(), request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(problem)) => Err(no_answer(url, &problem)),
            Err(_) => Err(no_answer(url, &format!("nothing came within {PATIENCE:?}"))),
        }
    })
}

/// Only what a node speaks: plain HTTP with a host.
fn parse(url: &str) -> Result<Uri, Failure> {
    let uri = url.parse::<Uri>().ok();
    uri.filter(|uri| uri.scheme_str() == Some("http") && uri.host().is_some()).ok_or_else(|| {
        UserError::new(
            format!("{url}: not the URL of a node"),
            "give --url as http://HOST:PORT, such as http://127.0.0.1:8080",
        )
        .into()
    })
}

/// A client that keeps connections for further questions. Clones share them.
pub(super) type Http = Client<HttpConnector, Full<Bytes>>;

/// A client without connections yet.
pub(super) fn http() -> Http {
    Client::builder(TokioExecutor::new()).build_http()
}

/// Asks and waits, as long as it takes, for the whole answer; an error is what the system said.
pub(super) async fn exchange(
    http: &Http,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, String> {
    let response = http.request(request).await.map_err(|error| innermost(&error))?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| innermost(&*error))?;
    Ok(Response::from_parts(head, body.to_bytes()))
}

/// What the system said, without the layers around it.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let text = innermost.to_string();
    // The system's number tells people nothing.
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

fn no_answer(url: &str, problem: &str) -> Failure {
    UserError::new(
        format!("{url}: {problem}"),
        "start a node with `tidegate serve`, or give the address of one with --url",
    )
    .into()
}

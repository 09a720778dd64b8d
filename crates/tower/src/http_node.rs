//! Asks a node by HTTP: `POST /v1/check`.
//!
//! ```text
//! POST /v1/check
//! {"domain":"http","descriptors":[{"entries":[{"key":"remote_address","value":"203.0.113.7"}]}]}
//!
//! 429, RateLimit: "requests";r=0;t=31, Retry-After: 31
//! {"overallCode":"OVER_LIMIT","statuses":[...]}
//! ```
//!
//! The verdict is `overallCode`, whatever the status: a node may be configured to refuse with
//! another. Its fields are passed on as they are. An answer without a verdict is undecided, except
//! for 400 and 413: these are the sender's mistake.

use std::fmt::Display;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::uri::{PathAndQuery, Scheme};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::Value;
use sfv::{List, ListEntry, Parser};

use crate::check::{Answer, Check, CheckError, Limiter};
use crate::message;
use crate::verdict::{CURRENT, FIELDS, LIMIT, REMAINING, RESET, Verdict};

/// Seconds an admitted request has to wait before it passes.
const DELAY: HeaderName = HeaderName::from_static("x-ratelimit-delay");
/// Most bytes of an answer; one of 32 descriptors has some KiB.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// Below the time after which a node closes an idle connection (`limits.header_timeout`, 5 s).
const IDLE_MAX: Duration = Duration::from_secs(4);
/// Most idle connections that are kept; further ones are closed after their check.
const IDLE_CONNECTIONS_MAX: usize = 64;

/// A node of tidegate, or a sidecar, by HTTP. Cheap to clone; clones share connections.
///
/// Connections are opened as needed, the first with the first check. Needs a runtime of tokio.
#[derive(Clone, Debug)]
pub struct HttpNode {
    client: Client<HttpConnector, Full<Bytes>>,
    uri: Uri,
}

/// The text is not the URL of a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not the URL of a node; write http://HOST:PORT")]
pub struct InvalidUrl(String);

impl HttpNode {
    /// The node at `url`, such as `http://127.0.0.1:8080`.
    ///
    /// # Errors
    ///
    /// If that is no URL of plain HTTP, or has a path.
    pub fn new(url: &str) -> Result<Self, InvalidUrl> {
        let invalid = || InvalidUrl(url.to_owned());
        let mut parts = url.parse::<Uri>().map_err(|_| invalid())?.into_parts();
        let has_path = parts.path_and_query.as_ref().is_some_and(|path| path.as_str() != "/");
        if parts.scheme != Some(Scheme::HTTP) || parts.authority.is_none() || has_path {
            return Err(invalid());
        }
        parts.path_and_query = Some(PathAndQuery::from_static("/v1/check"));
        let uri = Uri::from_parts(parts).map_err(|_| invalid())?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build(connector);
        Ok(Self { client, uri })
    }
}

impl Limiter for HttpNode {
    fn check(&self, check: &Check<'_>) -> Answer {
        let hits = check.hits;
        // Fails for enum values without a name only, and a request has none.
        let body = serde_json::to_vec(&message::request(check)).unwrap_or_default();
        let mut request = Request::post(self.uri.clone()).body(Full::from(body)).ok();
        if let Some(request) = &mut request {
            let json = HeaderValue::from_static("application/json");
            request.headers_mut().insert(CONTENT_TYPE, json);
        }
        let client = self.client.clone();
        Answer::Later(Box::pin(async move {
            let undecided = |error: &dyn Display| CheckError::Undecided(error.to_string());
            let request = request.ok_or_else(|| undecided(&"no request"))?;
            let response = client.request(request).await.map_err(|error| undecided(&error))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| undecided(&error))?.to_bytes();
            verdict(head.status, &head.headers, &body, hits)
        }))
    }
}

/// The verdict in a node's answer to a check of `hits`.
///
/// # Errors
///
/// If the node does not take the check, or its answer has no verdict.
fn verdict(
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    hits: i64,
) -> Result<Verdict, CheckError> {
    let message: Value = serde_json::from_slice(body).unwrap_or_default();
    let allowed = match message.get("overallCode").and_then(Value::as_str) {
        Some("OK") => true,
        Some("OVER_LIMIT") => false,
        None if matches!(status, StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE) => {
            let text = message.get("error").and_then(Value::as_str);
            let text = text.map_or_else(|| format!("status {status}"), str::to_owned);
            return Err(CheckError::Invalid(text));
        }
        _ => return Err(CheckError::Undecided(format!("no verdict in the answer ({status})"))),
    };
    let number = |name: &HeaderName| headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    let field = |name| Some((name, headers.get(name)?));
    let own = |(name, value): (&HeaderName, &HeaderValue)| (name.clone(), value.clone());
    let retry_after = number(&RETRY_AFTER).filter(|_| !allowed);
    Ok(Verdict {
        allowed,
        limit: number(&LIMIT),
        remaining: number(&REMAINING),
        reset: number(&RESET),
        retry_after: retry_after.map(Duration::from_secs),
        delay: headers.get(&DELAY).and_then(delay).unwrap_or_default(),
        violated: if allowed { Vec::new() } else { violated(headers, hits) },
        fields: FIELDS.iter().filter_map(field).map(own).collect(),
        ..Verdict::unlimited()
    })
}

/// Seconds with a fraction: `0.250`.
fn delay(value: &HeaderValue) -> Option<Duration> {
    Duration::try_from_secs_f64(value.to_str().ok()?.parse().ok()?).ok()
}

/// The policies whose remaining hits are too few, by `RateLimit`.
fn violated(headers: &HeaderMap, hits: i64) -> Vec<String> {
    let Some(Ok(list)) =
        headers.get(&CURRENT).map(|value| Parser::new(value.as_bytes()).parse::<List>())
    else {
        return Vec::new();
    };
    let name = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { return None };
        let remaining = item.params.get("r")?.as_integer()?;
        let is_violated = i64::from(remaining) < hits.max(1);
        is_violated.then(|| item.bare_item.as_string().map(|name| name.as_str().to_owned()))?
    };
    list.iter().filter_map(name).collect()
}

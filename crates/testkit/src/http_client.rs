//! An HTTP client that keeps its connections and never retries: the test sees every failure.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
}

/// A complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

/// Far above what any request takes: it ends a test that would hang.
const TIMEOUT: Duration = Duration::from_secs(30);

impl Default for Http {
    fn default() -> Self {
        Self::new()
    }
}

impl Http {
    pub fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client =
            Client::builder(TokioExecutor::new()).retry_canceled_requests(false).build(connector);
        Self { client }
    }

    pub async fn send(
        &self,
        method: Method,
        addr: SocketAddr,
        target: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Reply, String> {
        let mut request = http::Request::builder().method(method);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let url = format!("http://{addr}{target}");
        let request = request.uri(&url).body(Full::new(body.into())).unwrap();
        let whole = async {
            let response = self.client.request(request).await.map_err(|error| chain(&error))?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.map_err(|error| chain(&error))?.to_bytes();
            let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into();
            let headers = parts.headers.iter().map(|(name, value)| (name.to_string(), text(value)));
            Ok(Reply {
                status: parts.status.as_u16(),
                headers: headers.collect(),
                body: String::from_utf8_lossy(&body).into_owned(),
            })
        };
        match tokio::time::timeout(TIMEOUT, whole).await {
            Ok(outcome) => outcome.map_err(|error: String| format!("{url}: {error}")),
            Err(_) => Err(format!("{url}: no response within {TIMEOUT:?}")),
        }
    }

    pub async fn get(&self, addr: SocketAddr, target: &str) -> Result<Reply, String> {
        self.send(Method::GET, addr, target, &[], Bytes::new()).await
    }

    /// `POST /v1/check`.
    pub async fn check(&self, addr: SocketAddr, body: &Value) -> Result<Reply, String> {
        self.post(addr, "/v1/check", body).await
    }

    /// `POST` of a JSON body.
    ///
    /// # Errors
    ///
    /// As [`Http::send`].
    pub async fn post(
        &self,
        addr: SocketAddr,
        target: &str,
        body: &Value,
    ) -> Result<Reply, String> {
        let headers = [("content-type", "application/json")];
        self.send(Method::POST, addr, target, &headers, body.to_string()).await
    }
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// The body of a check of one descriptor with one entry.
pub fn check_body(domain: &str, key: &str, value: &str) -> Value {
    serde_json::json!({
        "domain": domain,
        "descriptors": [{ "entries": [{ "key": key, "value": value }] }],
    })
}

/// The body of a check of one descriptor with one entry and `hits`; no hits only read the counter.
pub fn hits_body(domain: &str, key: &str, value: &str, hits: u64) -> Value {
    serde_json::json!({
        "domain": domain,
        "descriptors": [{
            "entries": [{ "key": key, "value": value }],
            "hitsAddend": hits.to_string(),
        }],
    })
}

/// An error with its causes, which hyper's own text leaves out.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

//! A running node: its addresses, and what it reports over HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, Response, header};
use serde::Deserialize;
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::error::Error;
use crate::requests::{Http, send};

/// How long a process may take to start, and the nodes to agree. Either takes a second at most; the
/// machine may be busy.
const WAIT_MAX: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: &'static str,
    pub(crate) region: &'static str,
    pub(crate) pid: u32,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Node {
    /// Polls the node's status until `found` returns a value. `what` is what it has to see.
    pub(crate) async fn wait_for<T>(
        &self,
        http: &Http,
        what: &str,
        found: impl Fn(&Status) -> Option<T>,
    ) -> Result<T, Error> {
        let url = format!("http://{}/status", self.admin);
        until(&format!("{} did not see {what}", self.id), async || {
            let response = request(http, &url, None).await?;
            let status = serde_json::from_slice(response.body());
            Ok(found(&status.map_err(Error::context(&url, LOG_ABOVE))?))
        })
        .await
    }

    /// Polls with checks of no hits until nothing remains of the limit of `key` and `value`.
    pub(crate) async fn wait_until_exhausted(
        &self,
        http: &Http,
        key: &str,
        value: &str,
    ) -> Result<(), Error> {
        let url = format!("http://{}/v1/check", self.http);
        let check = json!({
            "domain": "demo",
            "descriptors": [{ "entries": [{ "key": key, "value": value }], "hitsAddend": "0" }],
        });
        until(&format!("{} did not see that the limit is exhausted", self.id), async || {
            let response = request(http, &url, Some(check.to_string())).await?;
            let remaining = response.headers().get("x-ratelimit-remaining");
            Ok(remaining.filter(|remaining| *remaining == "0").map(|_| ()))
        })
        .await
    }

    /// How many checks the node decided by `on_unavailable` since its start.
    pub(crate) async fn fallbacks(&self, http: &Http) -> Result<u64, Error> {
        const SERIES: &str = "tidegate_verdicts_total{source=\"policy\"} ";
        let response = request(http, &format!("http://{}/metrics", self.admin), None).await?;
        let text = String::from_utf8_lossy(response.body());
        let value = text.lines().find_map(|line| line.strip_prefix(SERIES));
        Ok(value.and_then(|value| value.parse().ok()).unwrap_or(0))
    }
}

/// The part of `/status` that the demo reads.
#[derive(Debug, Deserialize)]
pub(crate) struct Status {
    not_ready: Option<String>,
    members: Vec<Member>,
    ownership: Option<Ownership>,
}

#[derive(Debug, Deserialize)]
struct Member {
    id: String,
    /// Of its mesh listener.
    addr: Option<String>,
    state: String,
}

#[derive(Debug, Deserialize)]
struct Ownership {
    /// Share of the ring, 0 to 1.
    decides: f64,
}

impl Status {
    /// The ids of the members that are up.
    pub(crate) fn up(&self) -> Vec<&str> {
        let is_up = |member: &&Member| ["self", "up"].contains(&&*member.state);
        self.members.iter().filter(is_up).map(|member| &*member.id).collect()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.not_ready.is_none()
    }

    /// The address of the node's own mesh listener.
    pub(crate) fn mesh(&self) -> Option<SocketAddr> {
        let own = self.members.iter().find(|member| member.state == "self")?;
        own.addr.as_ref()?.parse().ok()
    }

    /// Whether the node owns all keys of its region.
    pub(crate) fn owns_whole_region(&self) -> bool {
        self.ownership.as_ref().is_some_and(|ownership| ownership.decides > 0.999)
    }
}

const LOG_ABOVE: &str = "the node's log is above";

/// GET, or POST of a JSON body.
async fn request(http: &Http, url: &str, body: Option<String>) -> Result<Response<Bytes>, Error> {
    let sent = match body {
        None => send(http, Request::get(url), Body::empty()).await,
        Some(body) => {
            let request = Request::post(url).header(header::CONTENT_TYPE, "application/json");
            send(http, request, body).await
        }
    };
    sent.map_err(Error::context(url, LOG_ABOVE))
}

/// Calls `attempt` until it returns a value. `failure` is the error's text when it takes too long.
pub(crate) async fn until<T>(
    failure: &str,
    mut attempt: impl AsyncFnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let poll = async {
        loop {
            if let Some(found) = attempt().await? {
                return Ok(found);
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    timeout(WAIT_MAX, poll).await.unwrap_or_else(|_| {
        Err(Error::new(
            format!("{failure} within {WAIT_MAX:?}"),
            "try it on a machine that is less busy; its log is above",
        ))
    })
}

//! A running node: its addresses, and what it reports over HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::error::Error;
use crate::requests::{Http, send};

/// How long a process may take to start, and the nodes to agree. Either takes a second at most; the
/// machine may be busy.
const WAIT_MAX: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) client: Http,
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
        what: &str,
        found: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, Error> {
        let url = format!("http://{}/status", self.admin);
        until(&format!("{} did not see {what}", self.id), async || {
            let response = send(&self.client, Request::get(&url), Body::empty()).await?;
            let status = serde_json::from_slice(response.body());
            Ok(found(&status.map_err(Error::context(&url, "the node's log is above"))?))
        })
        .await
    }

    /// Polls with checks of no hits until nothing remains of the limit of `key` and `value`.
    pub(crate) async fn wait_until_exhausted(&self, key: &str, value: &str) -> Result<(), Error> {
        let url = format!("http://{}/v1/check", self.http);
        let check = json!({
            "domain": "demo",
            "descriptors": [{ "entries": [{ "key": key, "value": value }], "hitsAddend": "0" }],
        });
        until(&format!("{} did not see that the limit is exhausted", self.id), async || {
            let request = Request::post(&url).header(header::CONTENT_TYPE, "application/json");
            let response = send(&self.client, request, check.to_string()).await?;
            let remaining = response.headers().get("x-ratelimit-remaining");
            Ok(remaining.filter(|remaining| *remaining == "0").map(|_| ()))
        })
        .await
    }

    /// What the node counted of a rule.
    pub(crate) async fn counts(&self, rule: &str) -> Result<Counts, Error> {
        self.wait_for(rule, |status| Some(Counts::of(rule, status))).await
    }

    /// How many checks the node decided by `on_unavailable` since its start.
    pub(crate) async fn fallbacks(&self) -> Result<u64, Error> {
        const SERIES: &str = "tidegate_verdicts_total{source=\"policy\"} ";
        let request = Request::get(format!("http://{}/metrics", self.admin));
        let response = send(&self.client, request, Body::empty()).await?;
        let text = String::from_utf8_lossy(response.body());
        let value = text.lines().find_map(|line| line.strip_prefix(SERIES));
        Ok(value.and_then(|value| value.parse().ok()).unwrap_or(0))
    }
}

/// What became of the checks of one rule.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Admitted by the owner of the key, after a round trip.
    pub(crate) waited: u64,
    /// The limits of the windows that were used up, and the hits over them.
    pub(crate) full_hits: u64,
    pub(crate) over_hits: u64,
}

impl Counts {
    /// Those of a `/status`; zero while the node has checked nothing of the rule.
    fn of(rule: &str, status: &Value) -> Self {
        let mut rules = status["rules"].as_array().into_iter().flatten();
        let Some(counts) = rules.find(|report| report["rule"] == rule) else {
            return Self::default();
        };
        let count = |name: &str| counts[name].as_u64().unwrap_or(0);
        Self {
            waited: count("admitted_by_owner"),
            full_hits: count("full_hits"),
            over_hits: count("over_hits"),
        }
    }
}

/// The ids of the members that are up, by a `/status`.
pub(crate) fn up(status: &Value) -> Vec<&str> {
    let is_up = |member: &&Value| member["state"] == "self" || member["state"] == "up";
    let members = status["members"].as_array().into_iter().flatten();
    members.filter(is_up).filter_map(|member| member["id"].as_str()).collect()
}

/// The address of the mesh listener of the node whose `/status` this is.
pub(crate) fn mesh(status: &Value) -> Option<SocketAddr> {
    let mut members = status["members"].as_array()?.iter();
    members.find(|member| member["state"] == "self")?["addr"].as_str()?.parse().ok()
}

/// Whether the node whose `/status` this is decides all keys of its region.
pub(crate) fn decides_whole_region(status: &Value) -> bool {
    status["ownership"]["decides"].as_f64().is_some_and(|share| share > 0.999)
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

//! What the steps of the show share: the nodes, and how they are asked.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use super::super::Failure;
use super::super::client::{self, Http};
use super::fleet::Node;
use super::load::{self, Tally};
use crate::admin::StatusReport;
use crate::admin::report::MemberState;
use crate::config::UserError;

/// The node that is killed.
pub(super) const VICTIM: &str = "eu-2";
/// Clients at once in a burst.
pub(super) const AT_ONCE: usize = 16;
/// How long the nodes may take to agree on something. It takes a second at most; a machine may be
/// busy.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often it is looked whether they do.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// What the steps share.
pub(super) struct Stage {
    pub(super) http: Http,
    pub(super) gateway: SocketAddr,
    pub(super) nodes: Vec<Node>,
}

impl Stage {
    pub(super) async fn burst(&self, header: &str, value: &str, count: usize) -> Tally {
        load::burst(&self.http, self.gateway, (header, value), count, AT_ONCE).await
    }

    pub(super) fn survivors(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.id != VICTIM)
    }

    /// How many answers the surviving nodes gave by `on_unavailable` so far.
    pub(super) async fn by_policy(&self) -> Result<u64, Failure> {
        const SERIES: &str = "tidegate_verdicts_total{source=\"policy\"} ";
        let mut sum = 0;
        for node in self.survivors() {
            let url = format!("http://{}/metrics", node.admin);
            let answer = get(&self.http, &url).await?;
            let text = String::from_utf8_lossy(answer.body());
            let value = text.lines().find_map(|line| line.strip_prefix(SERIES));
            sum += value.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(sum)
    }

    /// Looks, without charging anything, until the node knows that the limit is used up.
    pub(super) async fn wait_until_nothing_remains(
        &self,
        node: &Node,
        key: &str,
        value: &str,
    ) -> Result<(), Failure> {
        let body = serde_json::json!({
            "domain": "demo",
            "descriptors": [{ "entries": [{ "key": key, "value": value }], "hitsAddend": "0" }],
        });
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let url = format!("http://{}/v1/check", node.http);
            let request = Request::post(&url)
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(Full::new(Bytes::from(body.to_string())));
            let request = request.map_err(|error| no_answer(&url, &error.to_string()))?;
            let answer = client::exchange(&self.http, request).await;
            let answer = answer.map_err(|error| no_answer(&url, &error))?;
            if answer.headers().get("x-ratelimit-remaining").is_some_and(|left| left == "0") {
                return Ok(());
            }
            sleep(LOOK_INTERVAL).await;
        }
        Err(never_saw(node, "that the limit is used up").into())
    }
}

/// Where the node's mesh is: what the others are to dial.
pub(super) async fn mesh_of(http: &Http, node: &Node) -> Result<SocketAddr, Failure> {
    wait_for(http, node, "itself", |report| {
        let own = report.members.iter().find(|member| member.state == MemberState::This)?;
        own.addr.as_ref()?.parse().ok()
    })
    .await
}

/// Each survivor is alone in its region, so that all its keys are to be its own.
pub(super) fn decides_its_region(report: &StatusReport) -> bool {
    report.ownership.as_ref().is_some_and(|ownership| ownership.decides > 0.999)
}

/// Who can be asked, as this node sees it.
pub(super) fn living(report: &StatusReport) -> Vec<&str> {
    let living = |state| matches!(state, MemberState::This | MemberState::Up);
    report.members.iter().filter(|m| living(m.state)).map(|m| m.id.as_str()).collect()
}

/// Asks the node for its status until `found` finds something in it.
pub(super) async fn wait_for<T>(
    http: &Http,
    node: &Node,
    what: &str,
    found: impl Fn(&StatusReport) -> Option<T>,
) -> Result<T, Failure> {
    let url = format!("http://{}/status", node.admin);
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(found) = found(&json(http, &url).await?) {
            return Ok(found);
        }
        sleep(LOOK_INTERVAL).await;
    }
    Err(never_saw(node, what).into())
}

async fn json<T: DeserializeOwned>(http: &Http, url: &str) -> Result<T, Failure> {
    let answer = get(http, url).await?;
    serde_json::from_slice(answer.body()).map_err(|error| no_answer(url, &error.to_string()).into())
}

async fn get(http: &Http, url: &str) -> Result<Response<Bytes>, Failure> {
    let request = Request::get(url).body(Full::default());
    let request = request.map_err(|error| no_answer(url, &error.to_string()))?;
    Ok(client::exchange(http, request).await.map_err(|error| no_answer(url, &error))?)
}

fn no_answer(url: &str, problem: &str) -> UserError {
    UserError::new(format!("{url}: {problem}"), "the node's log is above")
}

fn never_saw(node: &Node, what: &str) -> UserError {
    UserError::new(
        format!("{} did not see {what} within {PATIENCE:?}", node.id),
        "try it on a machine that is less busy; its log is above",
    )
}

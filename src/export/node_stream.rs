//! Follows the stream of one node, and connects again when it ends.

use std::net::IpAddr;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff};
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Collected, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::{HttpConnector, HttpInfo};
use serde_json::Value;
use tidegate_cluster::backoff::exponential;
use tokio::sync::mpsc;

use super::event_stream::EventStream;
use crate::admin::blocked::{EVENT, KEEP_ALIVE, PAUSE};
use crate::admin::{BlockedReport, NodeClient, Reach};
use crate::config::Secret;

/// Delays between attempts; the jitter adds up to as much again.
const DELAY_MIN: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(5);
/// How long a connection and the head of a response may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a stream may be silent: two comments of a node may be late.
const SILENCE_MAX: Duration = Duration::from_secs(3 * (KEEP_ALIVE.as_secs() + PAUSE.as_secs()));
/// Most bytes of a refusal that are read.
const REFUSAL_BYTES_MAX: usize = 4 << 10;

/// The picture of one node.
#[derive(Debug)]
pub(super) struct Update {
    /// Its place among the nodes that are followed.
    pub(super) node: usize,
    pub(super) report: BlockedReport,
    /// The address that was connected to.
    pub(super) addr: Option<IpAddr>,
}

/// The admin listener of a node.
#[derive(Clone, Debug)]
pub(super) struct Listener {
    pub(super) url: Uri,
    pub(super) reach: Reach,
    pub(super) token: Option<Secret>,
}

/// Sends the pictures of a node until the receiver is gone.
pub(super) async fn follow(node: usize, listener: Listener, updates: mpsc::Sender<Update>) {
    let mut delays = delays(node);
    let url = &listener.url;
    loop {
        let ended = follow_once(node, &listener, &updates, &mut delays).await;
        let Err(problem) = ended else { return };
        let delay = delays.next().unwrap_or(DELAY_MAX);
        tracing::warn!(%url, ?delay, "{problem}; connecting again, its sources stay until their time");
        tokio::time::sleep(delay).await;
    }
}

fn delays(node: usize) -> ExponentialBackoff {
    // Exporters of several machines do not connect at the same instant.
    let seed = u64::from(std::process::id()) << 32 | node as u64;
    exponential(DELAY_MIN, DELAY_MAX).with_jitter().with_jitter_seed(seed).build()
}

/// Follows one stream to its end; `Ok` when the receiver is gone.
async fn follow_once(
    node: usize,
    listener: &Listener,
    updates: &mpsc::Sender<Update>,
    delays: &mut ExponentialBackoff,
) -> Result<(), String> {
    let (mut body, addr) = tokio::time::timeout(CONNECT_TIMEOUT, open(listener))
        .await
        .map_err(|_| format!("no answer within {CONNECT_TIMEOUT:?}"))??;
    let mut events = EventStream::default();
    let mut is_first = true;
    loop {
        let frame = match tokio::time::timeout(SILENCE_MAX, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => return Err(format!("the stream broke: {}", innermost(&error))),
            Ok(None) => return Err("the node ended the stream".to_owned()),
            Err(_) => return Err(format!("the stream was silent for {SILENCE_MAX:?}")),
        };
        let Ok(data) = frame.into_data() else { continue };
        let events = events.push(&data).map_err(|error| error.to_string())?;
        // Each is the whole picture.
        let Some(event) = events.into_iter().rfind(|event| event.name == EVENT.as_bytes()) else {
            continue;
        };
        let report = serde_json::from_slice(&event.data)
            .map_err(|error| format!("not a picture of blocked sources: {error}"))?;
        if is_first {
            tracing::info!(url = %listener.url, "following a node");
            *delays = self::delays(node);
            is_first = false;
        }
        if updates.send(Update { node, report, addr }).await.is_err() {
            return Ok(());
        }
    }
}

/// Opens the stream; its body, and the address that was connected to.
async fn open(listener: &Listener) -> Result<(Incoming, Option<IpAddr>), String> {
    let Listener { url, reach, token } = listener;
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    // Its files are read again: they may have been renewed.
    let client: NodeClient<Empty<Bytes>> =
        reach.client(url, connector).map_err(|error| error.to_string())?;
    let stream = format!("{}/blocked/stream", url.to_string().trim_end_matches('/'));
    let mut request = Request::get(stream).header(ACCEPT, "text/event-stream");
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {}", token.reveal()));
    }
    let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
    let response = client.request(request).await.map_err(|error| innermost(&error))?;
    let addr = response.extensions().get::<HttpInfo>().map(|it| it.remote_addr().ip());
    let (head, body) = response.into_parts();
    if head.status == StatusCode::OK {
        return Ok((body, addr));
    }
    // In the node's own words, if it has some.
    let body = Limited::new(body, REFUSAL_BYTES_MAX).collect().await;
    let body = body.map(Collected::to_bytes).unwrap_or_default();
    let says = serde_json::from_slice(&body).ok();
    let says = says.as_ref().and_then(|body: &Value| body.get("error")).and_then(Value::as_str);
    let says = says.unwrap_or("is it the admin listener of a node?");
    Err(format!("the node answered {}: {says}", head.status))
}

/// The innermost error message.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

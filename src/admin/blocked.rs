//! `/blocked` and `/blocked/stream`: the sources that a firewall may drop.
//!
//! The stream consists of server-sent events. Each has the whole picture of the node, so nothing is
//! queued for a client and none has to keep up: one is sent at once, and after changes at most one
//! in [`PAUSE`]; a comment is sent when there was none for [`KEEP_ALIVE`]. A client that does not
//! take an event within the time for a response is disconnected.
//!
//! ```text
//! event: blocked
//! data: {"node":"n1","addresses":["10.0.0.1"],"sources":[{"source":"203.0.113.7", ...}]}
//! ```

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::decide::SourceNet;
use crate::front::pages::Page;
use crate::front::serve::Streamed;

/// Most streams at a time; further ones are refused (503).
pub const STREAMS_MAX: usize = 16;
/// Least time between two pictures of a stream.
pub const PAUSE: Duration = Duration::from_secs(1);
/// Longest time between two events or comments of a stream, after [`PAUSE`].
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The name of the events.
pub const EVENT: &str = "blocked";

/// The node behind `/blocked`.
pub trait WatchBlocked: Send + Sync + 'static {
    /// The sources that are blocked now.
    fn report(&self) -> BlockedReport;

    /// Changes with the sources.
    fn changes(&self) -> watch::Receiver<()>;
}

/// What one node says about sources that a firewall may drop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedReport {
    pub node: String,
    /// Addresses of this node, as far as its configuration has them, and of its peers, which must
    /// not be blocked.
    pub addresses: Vec<IpAddr>,
    /// Each once, ordered by address.
    pub sources: Vec<BlockedSource>,
}

/// A source that asks for many times its limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedSource {
    /// An IPv4 address or an IPv6 prefix.
    pub source: SourceNet,
    /// Id of the rule whose limit it is over.
    pub rule: String,
    /// Until it is not blocked any more; later events may name a later time.
    pub expires_in_ms: u64,
}

/// The streams that are open.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    free: Arc<Semaphore>,
    pictures: Page,
}

/// One stream.
struct Follower {
    node: Arc<dyn WatchBlocked>,
    changes: watch::Receiver<()>,
    pictures: Page,
    stop: CancellationToken,
    last: Option<Last>,
    _place: OwnedSemaphorePermit,
}

/// What a stream sent last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Picture,
    Comment,
}

impl Default for Streams {
    fn default() -> Self {
        Self { free: Arc::new(Semaphore::new(STREAMS_MAX)), pictures: Page::default() }
    }
}

impl Streams {
    /// A stream that ends with the client, or at `stop`; none if there are too many.
    pub(super) fn open(
        &self,
        node: Arc<dyn WatchBlocked>,
        stop: CancellationToken,
    ) -> Option<Response<Body>> {
        let place = self.free.clone().try_acquire_owned().ok()?;
        let follower = Follower {
            changes: node.changes(),
            node,
            pictures: self.pictures.clone(),
            stop,
            last: None,
            _place: place,
        };
        let events = stream::unfold(follower, |mut follower| async {
            let event = follower.next().await?;
            Some((Ok::<_, std::convert::Infallible>(event), follower))
        });
        let mut response = Response::new(Body::from_stream(events));
        *response.status_mut() = StatusCode::OK;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, http::HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, http::HeaderValue::from_static("no-cache"));
        response.extensions_mut().insert(Streamed);
        Some(response)
    }
}

impl Follower {
    /// The next event or comment, or none at the end.
    async fn next(&mut self) -> Option<Bytes> {
        let Self { changes, stop, last, .. } = self;
        let waits = async {
            if *last == Some(Last::Picture) {
                tokio::time::sleep(PAUSE).await;
            }
            match last {
                None => Some(Last::Picture),
                Some(_) => match tokio::time::timeout(KEEP_ALIVE, changes.changed()).await {
                    Ok(Ok(())) => Some(Last::Picture),
                    Ok(Err(_)) => None,
                    Err(_) => Some(Last::Comment),
                },
            }
        };
        let next = stop.run_until_cancelled(waits).await??;
        self.last = Some(next);
        Some(match next {
            Last::Comment => Bytes::from_static(b":\n\n"),
            Last::Picture => {
                // A change during the report is in the next one.
                self.changes.mark_unchanged();
                self.pictures.get(|| event(&self.node.report()))
            }
        })
    }
}

/// A picture as an event: JSON has no line break in it.
fn event(report: &BlockedReport) -> String {
    // Reports are plain structs; only a map whose keys are not strings can fail.
    let data = serde_json::to_string(report).unwrap_or_default();
    format!("event: {EVENT}\ndata: {data}\n\n")
}

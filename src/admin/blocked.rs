//! `/blocked` and `/blocked/stream`: the sources that a firewall may drop.
//!
//! The stream consists of server-sent events, each with a whole report of the node: one is sent at
//! once, and after changes at most one in [`PAUSE`]; a comment is sent when there was none for
//! [`KEEP_ALIVE`].
//!
//! ```text
//! event: blocked
//! data: {"node":"n1","addresses":["10.0.0.1"],"sources":[{"source":"203.0.113.7", ...}]}
//! ```

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::event_stream::{self, COMMENT, Events};
use crate::decide::SourceNet;
use crate::front::pages::Page;

/// Least time between two reports of a stream.
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

/// The reports for one client.
pub(super) struct Reports {
    node: Arc<dyn WatchBlocked>,
    changes: watch::Receiver<()>,
    /// Shared by all clients.
    page: Page,
    last: Option<Last>,
}

/// What a stream sent last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Report,
    Comment,
}

impl Reports {
    pub(super) fn of(node: Arc<dyn WatchBlocked>, page: Page) -> Self {
        Self { changes: node.changes(), node, page, last: None }
    }
}

impl Events for Reports {
    async fn next(&mut self) -> Option<Bytes> {
        if self.last == Some(Last::Report) {
            tokio::time::sleep(PAUSE).await;
        }
        let next = match self.last {
            None => Last::Report,
            Some(_) => match tokio::time::timeout(KEEP_ALIVE, self.changes.changed()).await {
                Ok(Ok(())) => Last::Report,
                Ok(Err(_)) => return None,
                Err(_) => Last::Comment,
            },
        };
        self.last = Some(next);
        Some(match next {
            Last::Comment => COMMENT,
            Last::Report => {
                // A change during the report is in the next one.
                self.changes.mark_unchanged();
                self.page.get(|| event(&self.node.report()))
            }
        })
    }
}

fn event(report: &BlockedReport) -> String {
    // Reports are plain structs; only a map whose keys are not strings can fail.
    let data = serde_json::to_string(report).unwrap_or_default();
    event_stream::event(EVENT, &data)
}

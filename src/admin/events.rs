//! `/events`: snapshots of the cluster as server-sent events.
//!
//! Each event is a whole [`ClusterSnapshot`](super::snapshot::ClusterSnapshot), rendered once for
//! all streams. Only the newest one is kept, so a slow client costs no memory.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::event_stream::{self, COMMENT, Events};
use super::key::Key;
use super::snapshot::KeyReport;

/// A comment is sent after this time without an event.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The name of the events.
pub const EVENT: &str = "cluster";

/// The node behind the dashboard.
pub trait Overview: Send + Sync + 'static {
    /// The snapshots, [as events](event); empty before the first one. They are built only while
    /// there is a receiver.
    fn snapshots(&self) -> watch::Receiver<Bytes>;

    /// What the counters of a key hold. Nothing is counted.
    fn key(&self, key: Key) -> BoxFuture<'_, KeyReport>;
}

/// The snapshots for one client.
pub(super) struct Snapshots(watch::Receiver<Bytes>);

impl Snapshots {
    pub(super) fn of(node: &dyn Overview) -> Self {
        let mut snapshots = node.snapshots();
        // The newest one is sent at once.
        snapshots.mark_changed();
        Self(snapshots)
    }
}

impl Events for Snapshots {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            match tokio::time::timeout(KEEP_ALIVE, self.0.changed()).await {
                Err(_) => return Some(COMMENT),
                Ok(Err(_)) => return None,
                Ok(Ok(())) => {
                    let snapshot = self.0.borrow_and_update().clone();
                    if !snapshot.is_empty() {
                        return Some(snapshot);
                    }
                }
            }
        }
    }
}

/// A snapshot, as JSON, as an event.
pub fn event(json: &str) -> Bytes {
    event_stream::event(EVENT, json).into()
}

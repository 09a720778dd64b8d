//! `/events`: pictures of the cluster as server-sent events.
//!
//! Each event is a whole [`ClusterSnapshot`](super::snapshot::ClusterSnapshot). The newest one is
//! kept and no other: a client that is slow misses pictures and costs no memory. It is rendered
//! once for all streams. A client that does not take an event within the time for a response is
//! disconnected.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::snapshot::KeyReport;
use crate::front::serve::Streamed;

/// Most streams at a time; further ones are refused (503).
pub const STREAMS_MAX: usize = 16;
/// A comment is sent when there was no event for so long.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The name of the events.
pub const EVENT: &str = "cluster";

/// Proxies such as nginx are not to collect the events.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The node behind the dashboard.
pub trait Overview: Send + Sync + 'static {
    /// The pictures, [as events](event); empty while the first one is made. They are made only
    /// while somebody holds a receiver.
    fn pictures(&self) -> watch::Receiver<Bytes>;

    /// What the counters of a key hold, given as key/value pairs, outermost first. Nothing is
    /// counted.
    fn key(&self, domain: String, entries: Vec<(String, String)>) -> BoxFuture<'_, KeyReport>;
}

/// The streams that are open.
#[derive(Clone, Debug)]
pub(super) struct Streams(Arc<Semaphore>);

struct Viewer {
    pictures: watch::Receiver<Bytes>,
    stop: CancellationToken,
    _place: OwnedSemaphorePermit,
}

impl Default for Streams {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(STREAMS_MAX)))
    }
}

impl Streams {
    /// A stream that ends with the client, or at `stop`; none if there are too many.
    pub(super) fn open(
        &self,
        node: &dyn Overview,
        stop: CancellationToken,
    ) -> Option<Response<Body>> {
        let place = self.0.clone().try_acquire_owned().ok()?;
        let mut pictures = node.pictures();
        // The newest picture is news to this client.
        pictures.mark_changed();
        let viewer = Viewer { pictures, stop, _place: place };
        let events = stream::unfold(viewer, |mut viewer| async {
            let event = viewer.next().await?;
            Some((Ok::<_, std::convert::Infallible>(event), viewer))
        });
        let mut response = Response::new(Body::from_stream(events));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
        response.extensions_mut().insert(Streamed);
        Some(response)
    }
}

impl Viewer {
    /// The next event or comment, or none at the end.
    async fn next(&mut self) -> Option<Bytes> {
        let Self { pictures, stop, .. } = self;
        let waits = async {
            loop {
                match tokio::time::timeout(KEEP_ALIVE, pictures.changed()).await {
                    Err(_) => return Some(Bytes::from_static(b":\n\n")),
                    Ok(Err(_)) => return None,
                    Ok(Ok(())) => {
                        let picture = pictures.borrow_and_update().clone();
                        if !picture.is_empty() {
                            return Some(picture);
                        }
                    }
                }
            }
        };
        stop.run_until_cancelled(waits).await?
    }
}

/// A picture, as JSON without a line break, as an event.
pub fn event(json: &str) -> Bytes {
    Bytes::from(format!("event: {EVENT}\ndata: {json}\n\n"))
}

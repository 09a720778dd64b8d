//! Responses with server-sent events: `/blocked/stream` and `/events`.
//!
//! Each event is complete in itself, so nothing is queued for a client, and a slow one misses
//! events. A client that does not take an event within the time for a response is disconnected.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::front::serve::Streamed;

/// Most streams of one path at a time; further ones are refused (503).
pub const STREAMS_MAX: usize = 16;

/// Keeps a connection alive; clients ignore it.
pub(super) const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// Proxies such as nginx are not to collect the events.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The events of one stream.
pub(super) trait Events: Send + 'static {
    /// The next event or [`COMMENT`]; none ends the stream.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;
}

/// The open streams of one path.
#[derive(Clone, Debug)]
pub(super) struct Streams(Arc<Semaphore>);

impl Default for Streams {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(STREAMS_MAX)))
    }
}

impl Streams {
    /// A stream that ends with its events, its client, or at `stop`; none if there are too many.
    pub(super) fn open<E: Events>(
        &self,
        events: impl FnOnce() -> E,
        stop: CancellationToken,
    ) -> Option<Response<Body>> {
        let place = self.0.clone().try_acquire_owned().ok()?;
        let events = stream::unfold((events(), stop, place), |(mut events, stop, place)| async {
            let event = stop.run_until_cancelled(events.next()).await??;
            Some((Ok::<_, Infallible>(event), (events, stop, place)))
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

/// JSON, which has no line break in it, as an event.
pub(super) fn event(name: &str, json: &str) -> String {
    format!("event: {name}\ndata: {json}\n\n")
}

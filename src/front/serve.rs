//! The accept loop of every door: HTTP, gRPC and admin.
//!
//! The caller binds the listener, so that a port in use is its error to report. Connections are
//! tasks of one `JoinSet`; it is at once their owner, their count and the bound on it. HTTP/2
//! streams run on the task of their connection.
//!
//! *Drain*, when the token is cancelled: stop accepting, tell every connection to finish (HTTP/1
//! `Connection: close`, HTTP/2 GOAWAY), wait for at most `drain_timeout`, drop the rest and count
//! it.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::bounds::Bounds;
use super::connection::Connection;
use super::tls::Tls;

/// Pause after an accept that failed for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where a request came from, among the extensions of one that comes over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// What a door speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocols {
    /// HTTP/1.1, and HTTP/2 for whoever starts with its preface.
    Http,
    /// HTTP/2 alone.
    Grpc,
}

/// How a door is spoken to.
#[derive(Clone, Debug)]
pub struct Wire {
    /// What it speaks.
    pub protocols: Protocols,
    /// Under what; `None` for plain text.
    pub tls: Option<Tls>,
}

impl From<Protocols> for Wire {
    fn from(protocols: Protocols) -> Self {
        Self { protocols, tls: None }
    }
}

/// What a door did; read by the metrics.
#[derive(Debug, Default)]
pub struct ListenerStats {
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections that ended; `accepted - ended` are open.
    pub ended: Counter,
    /// Times that accepting stopped because the bound on connections was reached.
    pub full: Counter,
    /// Connections cut because a header took too long.
    pub slow: Counter,
    /// Connections whose TLS handshake failed.
    pub unshaken: Counter,
    /// Connections closed because nothing was asked for long.
    pub idle: Counter,
    /// Connections dropped at the end of a drain.
    pub dropped: Counter,
    /// Requests refused for their form or size; nothing was counted for them.
    pub refused: Counter,
    /// Descriptors that brought a limit of their own along, which does not apply here.
    pub overrides: Counter,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

/// Serves connections until `drain` is cancelled and the last one has ended.
///
/// Not cancel-safe in the polite sense: dropping the future drops every connection at once.
pub async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    wire: impl Into<Wire>,
    bounds: &Bounds,
    stats: Arc<ListenerStats>,
    drain: CancellationToken,
) where
    S: tower::Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
    B: Body + Unpin + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Wire { protocols, tls } = wire.into();
    let mut connections = JoinSet::new();
    loop {
        let has_room = connections.len() < bounds.connections_max;
        tokio::select! {
            biased;
            () = drain.cancelled() => break,
            Some(ended) = connections.join_next() => note_end(ended, &stats),
            accepted = listener.accept(), if has_room => match accepted {
                Ok((stream, peer)) => {
                    stats.accepted.add(1);
                    let connection = Connection {
                        peer,
                        protocols,
                        tls: tls.clone(),
                        bounds: bounds.clone(),
                        stats: Arc::clone(&stats),
                        drain: drain.clone(),
                    };
                    connections.spawn(connection.run(stream, service.clone()));
                    if connections.len() == bounds.connections_max {
                        stats.full.add(1);
                        tracing::warn!(
                            connections_max = bounds.connections_max,
                            "accept no more connections until one ends; raise limits.connections_max"
                        );
                    }
                }
                Err(error) => pause_after(&error).await,
            },
        }
    }
    drop(listener);
    let all_ended = async {
        while let Some(ended) = connections.join_next().await {
            note_end(ended, &stats);
        }
    };
    if tokio::time::timeout(bounds.drain_timeout, all_ended).await.is_err() {
        let open = connections.len() as u64;
        stats.dropped.add(open);
        stats.ended.add(open);
        tracing::warn!(connections = open, "drop connections that did not end while draining");
        connections.shutdown().await;
    }
}

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        // Relaxed: a statistic orders nothing.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn note_end(ended: Result<(), tokio::task::JoinError>, stats: &ListenerStats) {
    stats.ended.add(1);
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's task panicked: this is a bug of the server");
    }
}

/// A connection that died in the queue is nothing; anything else lasts, so it is not spun on.
pub(super) async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    if !matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
        tracing::warn!(%error, "accept a connection; try again in a moment");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

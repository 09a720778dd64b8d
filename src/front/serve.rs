//! The accept loop of HTTP, gRPC and admin listeners.
//!
//! The caller binds the socket and reports a port in use. Connections are tasks of one `JoinSet`,
//! which owns them, counts them and bounds their number. HTTP/2 streams run on the task of their
//! connection.
//!
//! *Drain*, when the token is cancelled: stop accepting, shut every connection down gracefully
//! (HTTP/1 `Connection: close`, HTTP/2 GOAWAY), wait for at most `drain_timeout`, drop the rest and
//! count it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::address_bound::AddressBound;
use super::bounds::Bounds;
use super::connection::Connection;
pub use super::connection::{Endless, HttpService, Peer, Protocols, Streamed, Tunnels};
use super::socket::Listener;
pub use super::stats::ListenerStats;

/// Pause after an accept that failed for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves connections until `drain` is cancelled and the last one has ended.
///
/// Dropping the future drops every connection at once, without a graceful shutdown.
pub async fn serve<S: HttpService>(
    listener: impl Into<Listener>,
    service: S,
    protocols: Protocols,
    bounds: &Bounds,
    stats: Arc<ListenerStats>,
    drain: CancellationToken,
) {
    let listener = listener.into();
    let mut connections = JoinSet::new();
    let addresses = AddressBound::new(bounds);
    loop {
        let has_room = connections.len() < bounds.connections_max;
        tokio::select! {
            biased;
            () = drain.cancelled() => break,
            Some(ended) = connections.join_next() => stats.connection_ended(&ended),
            accepted = listener.accept(), if has_room => match accepted {
                Ok((stream, peer)) => {
                    let Some(admitted) = addresses.admit(peer.ip()) else {
                        stats.address_at_capacity(peer);
                        continue;
                    };
                    stats.accepted.add(1);
                    let connection = Connection {
                        peer,
                        protocols: protocols.clone(),
                        bounds: bounds.clone(),
                        stats: Arc::clone(&stats),
                        drain: drain.clone(),
                    };
                    let service = service.clone();
                    connections.spawn(async move {
                        connection.run(stream, service).await;
                        drop(admitted);
                    });
                    if connections.len() == bounds.connections_max {
                        stats.at_capacity(bounds.connections_max);
                    }
                }
                Err(error) => pause_after(&error, || listener.place(), &stats).await,
            },
        }
    }
    drop(listener);
    finish(connections, bounds.drain_timeout, &stats).await;
}

/// Waits until all connections have ended, and drops those that did not within `drain_timeout`.
pub(super) async fn finish(
    mut connections: JoinSet<()>,
    drain_timeout: Duration,
    stats: &ListenerStats,
) {
    let all_ended = async {
        while let Some(ended) = connections.join_next().await {
            stats.connection_ended(&ended);
        }
    };
    if tokio::time::timeout(drain_timeout, all_ended).await.is_err() {
        let open = connections.len();
        stats.dropped.add(open as u64);
        stats.ended.add(open as u64);
        tracing::warn!(
            connections = open,
            "dropping connections that did not end within limits.drain_timeout"
        );
        connections.shutdown().await;
    }
}

/// Waits after an accept that failed, so that the loop does not spin; not for a connection that
/// ended before it was accepted.
pub(super) async fn pause_after(
    error: &io::Error,
    listener: impl FnOnce() -> String,
    stats: &ListenerStats,
) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    if !matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
        stats.accept_failed(error, listener);
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

//! What a listener counts; read by the metrics.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinError;

/// Connections and requests of one listener since the start.
#[derive(Debug, Default)]
pub struct ListenerStats {
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections that ended; `accepted - ended` are open.
    pub ended: Counter,
    /// Times that accepting paused at the bound on connections.
    pub full: Counter,
    /// Times that accepting failed, for lack of open files or memory.
    pub accept_failed: Counter,
    /// Connections closed at once because their address had as many as it may.
    pub address_full: Counter,
    /// Connections cut because a header or command took too long, or a response was not taken.
    pub slow: Counter,
    /// Connections whose TLS handshake failed.
    pub handshake_failed: Counter,
    /// Connections closed after the idle timeout.
    pub idle: Counter,
    /// Connections dropped at the end of a drain.
    pub dropped: Counter,
    /// Requests refused for their form or size; no limit was charged for them.
    pub refused: Counter,
    /// Descriptors that carried a limit of their own, which this listener does not apply.
    pub overrides: Counter,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        // Relaxed: a statistic orders nothing.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl ListenerStats {
    /// Counts the end of a connection's task.
    pub(super) fn connection_ended(&self, result: &Result<(), JoinError>) {
        self.ended.add(1);
        if let Err(error) = result
            && error.is_panic()
        {
            tracing::error!(%error, "a connection task panicked; please report this bug");
        }
    }

    /// Counts a connection that is closed because its address has as many as it may.
    pub(super) fn address_at_capacity(&self, peer: SocketAddr) {
        self.address_full.add(1);
        // At a level that is off by default: clients decide how often this happens.
        tracing::debug!(%peer, "closed a connection beyond limits.connections_per_address_max");
    }

    /// Counts that accepting pauses.
    pub(super) fn at_capacity(&self, connections_max: usize) {
        self.full.add(1);
        if let Some(times) = doubled(&self.full) {
            tracing::warn!(
                connections_max,
                times,
                "connection limit reached, accepting paused; consider raising \
                 limits.connections_max"
            );
        }
    }

    /// Counts an accept that failed.
    pub(super) fn accept_failed(&self, error: &io::Error, listener: impl FnOnce() -> String) {
        self.accept_failed.add(1);
        if let Some(times) = doubled(&self.accept_failed) {
            let listener = listener();
            tracing::warn!(
                %listener, %error, times, "failed to accept a connection; trying again and again"
            );
        }
    }
}

/// The value of a counter of lines, if this one is written. Clients decide how often it happens:
/// one each time that it has doubled.
fn doubled(times: &Counter) -> Option<u64> {
    let times = times.get();
    times.is_power_of_two().then_some(times)
}

//! Follows the stream of one node, and connects again when it ends.

use std::net::IpAddr;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff};
use tidegate_cluster::backoff::exponential;
use tokio::sync::mpsc;

use crate::admin::blocked::{EVENT, KEEP_ALIVE, PAUSE};
use crate::admin::{BlockedReport, Listener};

/// Delays between attempts; the jitter adds up to as much again.
const DELAY_MIN: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(5);
/// How long a connection and the head of a response may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a stream may be silent: two comments of a node may be late.
const SILENCE_MAX: Duration = Duration::from_secs(3 * (KEEP_ALIVE.as_secs() + PAUSE.as_secs()));

/// The picture of one node.
#[derive(Debug)]
pub(super) struct Update {
    /// Its place among the nodes that are followed.
    pub(super) node: usize,
    pub(super) report: BlockedReport,
    /// The address that was connected to.
    pub(super) addr: Option<IpAddr>,
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
    let mut stream = listener.open("/blocked/stream", EVENT, CONNECT_TIMEOUT).await?;
    let addr = stream.addr();
    let mut is_first = true;
    loop {
        // Each is the whole picture.
        let report = stream.next(SILENCE_MAX).await?;
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

//! The accept loop: deals connections to the threads, and ends them in order.
//!
//! *Drain*, when the token is cancelled: stop accepting, let connections answer what they have read
//! and close them, wait for at most `drain_timeout`, drop the rest and count it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tidegate_limiter::policy::Mode;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::batch::Shared;
use super::connection::Drain;
use super::session::Credentials;
use super::threads::{Thread, ThreadEnded, WorkerPool};
use crate::config;
use crate::decide::Throttle;
use crate::front::bounds::Bounds;
use crate::front::serve::{ListenerStats, pause_after};

/// What the door is made of.
#[derive(Debug)]
pub struct Listener<D> {
    /// Asked for verdicts.
    pub decide: Arc<D>,
    /// Who may come in.
    pub credentials: Credentials,
    /// Who decides the limits that clients name.
    pub mode: Mode,
    /// How many threads carry the connections; 0 is half the cores, at least 1.
    pub threads: usize,
    /// How long a connection may be silent.
    pub idle_timeout: Duration,
    /// What requests and connections may be.
    pub bounds: Bounds,
    /// What the door counts.
    pub stats: Arc<ListenerStats>,
}

/// Why the door closed before it was to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system gave no thread, or no event loop.
    #[error("start a thread of the resp door: {0}")]
    Thread(#[from] std::io::Error),
    /// A thread ended.
    #[error(transparent)]
    Ended(#[from] ThreadEnded),
}

impl<D> Listener<D> {
    /// A door in front of `decide`, as the configuration says.
    pub fn new(
        config: &config::Config,
        decide: Arc<D>,
        bounds: Bounds,
        stats: Arc<ListenerStats>,
    ) -> Self {
        let resp = &config.resp;
        Self {
            decide,
            credentials: Credentials {
                username: resp.username.clone(),
                password: resp.password.clone(),
            },
            mode: resp.mode.unwrap_or(config.defaults.mode),
            threads: resp.threads,
            idle_timeout: resp.idle_timeout.to_std(),
            bounds,
            stats,
        }
    }
}

/// Serves connections until `drain` is cancelled and the last one has ended.
pub async fn serve<D: Throttle>(
    socket: TcpListener,
    listener: Listener<D>,
    drain: CancellationToken,
) -> Result<(), Error> {
    let Listener { decide, credentials, mode, threads, idle_timeout, bounds, stats } = listener;
    let connections_max = bounds.connections_max;
    let room = Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS)));
    let shared = Arc::new(Shared { decide, credentials, mode, bounds, stats: stats.clone() });
    let (ending, next_id) = (Drain::default(), Arc::new(AtomicI64::new(1)));
    let start = |number| {
        let (shared, drain, next_id) = (shared.clone(), ending.clone(), next_id.clone());
        Thread::start(number, WorkerPool { shared, idle_timeout, drain, next_id })
    };
    let threads: Vec<Thread> = (0..count(threads)).map(start).collect::<Result<_, _>>()?;
    let served = async {
        loop {
            let permit = connection_permit(&room, connections_max, &stats).await;
            match socket.accept().await {
                Ok((stream, _)) => {
                    stats.accepted.add(1);
                    deal(stream, permit, &threads, &stats).await?;
                }
                Err(error) => pause_after(&error).await,
            }
        }
    };
    let outcome = drain.run_until_cancelled(served).await.unwrap_or(Ok(()));
    drop(socket);
    ending.is_on.store(true, Ordering::Relaxed);
    ending.wake.cancel();
    for thread in threads {
        thread.end().await;
    }
    outcome
}

/// Room for one more connection.
async fn connection_permit(
    room: &Arc<Semaphore>,
    max: usize,
    stats: &ListenerStats,
) -> OwnedSemaphorePermit {
    loop {
        if let Ok(permit) = room.clone().try_acquire_owned() {
            return permit;
        }
        stats.full.add(1);
        tracing::warn!(
            connections_max = max,
            "accept no more connections until one ends; raise limits.connections_max"
        );
        // Closed is what it never is.
        if let Ok(permit) = room.clone().acquire_owned().await {
            return permit;
        }
    }
}

/// Gives a connection to the thread with the fewest.
async fn deal(
    stream: TcpStream,
    permit: OwnedSemaphorePermit,
    threads: &[Thread],
    stats: &ListenerStats,
) -> Result<(), Error> {
    // An answer is one small segment; waiting to fill it only adds latency.
    let _ = stream.set_nodelay(true);
    let Ok(stream) = stream.into_std() else {
        stats.ended.add(1);
        return Ok(());
    };
    let Some(thread) = threads.iter().min_by_key(|thread| thread.open()) else {
        return Err(ThreadEnded.into());
    };
    Ok(thread.give(stream, permit).await?)
}

/// How many threads `wanted` are.
fn count(wanted: usize) -> usize {
    match wanted {
        0 => (std::thread::available_parallelism().map_or(1, usize::from) / 2).max(1),
        wanted => wanted,
    }
}

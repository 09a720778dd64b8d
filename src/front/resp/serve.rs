//! The accept loop: assigns connections to the workers, and drains them.
//!
//! *Drain*, when the token is cancelled: stop accepting, let connections answer what they have read
//! and close them, wait for at most `drain_timeout`, drop the rest and count it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::connection::Drain;
use super::listener::Listener;
use super::workers::{Worker, WorkerContext, WorkerEnded};
use crate::decide::Throttle;
use crate::front::serve::pause_after;
use crate::front::stats::ListenerStats;

/// The listener failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system provides no thread or event loop.
    #[error("failed to start a worker thread of the RESP listener: {0}")]
    Start(#[from] std::io::Error),
    #[error(transparent)]
    Ended(#[from] WorkerEnded),
}

/// Serves connections until `drain` is cancelled and the last one has ended.
///
/// # Errors
///
/// A worker could not start, or ended.
pub async fn serve<D: Throttle>(
    socket: TcpListener,
    listener: Listener<D>,
    drain: CancellationToken,
) -> Result<(), Error> {
    let connections_max = listener.bounds.connections_max;
    let permits = Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS)));
    let (threads, stats) = (listener.threads, listener.stats.clone());
    let listener = Arc::new(listener);
    let (worker_drain, next_id) = (Drain::default(), Arc::new(AtomicI64::new(1)));
    let start = |number| {
        let (listener, drain, next_id) = (listener.clone(), worker_drain.clone(), next_id.clone());
        Worker::start(number, WorkerContext { listener, drain, next_id })
    };
    let workers: Vec<Worker> = (0..worker_count(threads)).map(start).collect::<Result<_, _>>()?;
    let served = async {
        loop {
            let permit = connection_permit(&permits, connections_max, &stats).await;
            match socket.accept().await {
                Ok((stream, _)) => {
                    stats.accepted.add(1);
                    assign(stream, permit, &workers, &stats).await?;
                }
                Err(error) => pause_after(&error).await,
            }
        }
    };
    let result = drain.run_until_cancelled(served).await.unwrap_or(Ok(()));
    drop(socket);
    worker_drain.is_on.store(true, Ordering::Relaxed);
    worker_drain.wake.cancel();
    for worker in workers {
        worker.end().await;
    }
    result
}

/// Waits until one more connection is allowed.
async fn connection_permit(
    permits: &Arc<Semaphore>,
    connections_max: usize,
    stats: &ListenerStats,
) -> OwnedSemaphorePermit {
    loop {
        if let Ok(permit) = permits.clone().try_acquire_owned() {
            return permit;
        }
        stats.at_capacity(connections_max);
        // The semaphore is never closed.
        if let Ok(permit) = permits.clone().acquire_owned().await {
            return permit;
        }
    }
}

/// Assigns a connection to the worker with the fewest.
async fn assign(
    stream: TcpStream,
    permit: OwnedSemaphorePermit,
    workers: &[Worker],
    stats: &ListenerStats,
) -> Result<(), Error> {
    // Replies are small segments; waiting to fill them only adds latency.
    let _ = stream.set_nodelay(true);
    let Ok(stream) = stream.into_std() else {
        stats.ended.add(1);
        return Ok(());
    };
    let Some(worker) = workers.iter().min_by_key(|worker| worker.open()) else {
        return Err(WorkerEnded.into());
    };
    Ok(worker.assign(stream, permit).await?)
}

fn worker_count(configured: usize) -> usize {
    match configured {
        0 => (std::thread::available_parallelism().map_or(1, usize::from) / 2).max(1),
        configured => configured,
    }
}

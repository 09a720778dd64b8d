//! The accept loop, and the worker threads, each with its own event loop.
//!
//! A connection is assigned to the worker with the fewest and stays there. So its reads, decisions
//! and writes happen on the thread that receives the events of its socket, and no thread has to
//! wake another.
//!
//! *Drain*, when the token is cancelled: stop accepting, let connections answer what they have read
//! and close them, wait for at most `drain_timeout`, drop the rest and count it.

use std::net::TcpStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::{io, thread};

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::busy_poll;
use super::connection::{Connection, Drain};
use super::listener::Listener;
use super::session::Session;
use super::stream::Stream;
use crate::decide::{Reserve, Throttle};
use crate::front::address_bound::{AddressBound, Admitted};
use crate::front::serve::{finish, pause_after};
use crate::front::socket::place_of;

/// The listener failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system provides no thread or event loop.
    #[error("failed to start a worker thread of the RESP listener: {0}")]
    Start(#[from] io::Error),
    /// A worker ended before the listener did.
    #[error("a worker thread of the RESP listener ended")]
    WorkerEnded,
}

/// Most accepted connections that a worker has not taken over yet; the accept loop waits.
const ACCEPTED_MAX: usize = 64;

/// Serves connections until `drain` is cancelled and the last one has ended.
///
/// # Errors
///
/// A worker could not start, or ended.
pub async fn serve<D: Throttle + Reserve>(
    socket: TcpListener,
    listener: Listener<D>,
    drain: CancellationToken,
) -> Result<(), Error> {
    let threads = match listener.threads {
        0 => (thread::available_parallelism().map_or(1, usize::from) / 2).max(1),
        configured => configured,
    };
    let listener = Arc::new(listener);
    let (worker_drain, next_id) = (Drain::default(), Arc::new(AtomicI64::new(1)));
    let start = |number| {
        let (listener, drain, next_id) = (listener.clone(), worker_drain.clone(), next_id.clone());
        Worker::start(number, WorkerContext { listener, drain, next_id })
    };
    let workers: Vec<Worker> = (0..threads).map(start).collect::<Result<_, _>>()?;
    let accepting = accept(&socket, &listener, &workers);
    let result = drain.run_until_cancelled(accepting).await.unwrap_or(Ok(()));
    drop(socket);
    worker_drain.is_on.store(true, Ordering::Relaxed);
    worker_drain.wake.cancel();
    for worker in workers {
        drop(worker.accepted);
        let _ = worker.ended.await;
    }
    result
}

/// Accepts connections, and assigns each to the worker with the fewest.
async fn accept<D>(
    socket: &TcpListener,
    listener: &Listener<D>,
    workers: &[Worker],
) -> Result<(), Error> {
    let (stats, connections_max) = (&listener.stats, listener.bounds.connections_max);
    let permits = Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS)));
    let addresses = AddressBound::new(&listener.bounds);
    loop {
        if permits.available_permits() == 0 {
            stats.at_capacity(connections_max);
        }
        // Never `None`: the semaphore is not closed.
        let permit = permits.clone().acquire_owned().await.ok();
        let (stream, peer) = match socket.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                pause_after(&error, || place_of(socket), stats).await;
                continue;
            }
        };
        let Some(admitted) = addresses.admit(peer.ip()) else {
            stats.address_at_capacity(peer);
            continue;
        };
        stats.accepted.add(1);
        // Replies are small segments; waiting to fill them only adds latency.
        let _ = stream.set_nodelay(true);
        let Ok(stream) = stream.into_std() else {
            stats.ended.add(1);
            continue;
        };
        let fewest = workers.iter().min_by_key(|worker| Arc::strong_count(&worker.open));
        let worker = fewest.ok_or(Error::WorkerEnded)?;
        let accepted = Accepted { stream, permits: (permit, admitted, worker.open.clone()) };
        worker.accepted.send(accepted).await.map_err(|_| Error::WorkerEnded)?;
    }
}

/// The handle of a worker thread. The worker ends when `accepted` is dropped and its connections
/// have ended.
#[derive(Debug)]
struct Worker {
    accepted: mpsc::Sender<Accepted>,
    /// Held by each of its connections too, also by those that it has not taken over yet.
    open: Arc<()>,
    ended: oneshot::Receiver<()>,
}

/// A connection that its worker has not taken over yet.
#[derive(Debug)]
struct Accepted {
    stream: StdStream,
    /// Count it for the listener, for its address and for its worker until it ends.
    permits: (Option<OwnedSemaphorePermit>, Admitted, Arc<()>),
}

/// What every worker serves connections with.
#[derive(Debug)]
struct WorkerContext<D> {
    listener: Arc<Listener<D>>,
    drain: Drain,
    /// The id of the next connection, for all workers.
    next_id: Arc<AtomicI64>,
}

impl Worker {
    /// Starts a worker, if the system provides a thread and an event loop.
    fn start<D: Throttle + Reserve>(number: usize, context: WorkerContext<D>) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (accepted, receiver) = mpsc::channel(ACCEPTED_MAX);
        let (ending, ended) = oneshot::channel();
        thread::Builder::new().name(format!("resp-{number}")).spawn(move || {
            runtime.block_on(context.run(receiver));
            // The receiver is gone when the listener was dropped.
            let _ = ending.send(());
        })?;
        Ok(Self { accepted, open: Arc::default(), ended })
    }
}

impl<D: Throttle + Reserve> WorkerContext<D> {
    async fn run(self, mut receiver: mpsc::Receiver<Accepted>) {
        let polling = AbortOnDropHandle::new(tokio::spawn(busy_poll::run()));
        let stats = &self.listener.stats;
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = receiver.recv() => match accepted {
                    Some(accepted) => self.spawn(accepted, &mut connections),
                    None => break,
                },
                Some(ended) = connections.join_next() => stats.connection_ended(&ended),
            }
        }
        finish(connections, self.listener.bounds.drain_timeout, stats).await;
        drop(polling);
    }

    fn spawn(&self, accepted: Accepted, connections: &mut JoinSet<()>) {
        let Accepted { stream, permits } = accepted;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let connected = TcpStream::from_std(stream).and_then(|stream| {
            let (peer, local) = (stream.peer_addr()?, stream.local_addr()?);
            let session = Session::new(id, peer, local, &self.listener.credentials);
            Ok((stream, peer, session))
        });
        let Ok((stream, peer, session)) = connected else {
            // The client has disconnected already.
            self.listener.stats.ended.add(1);
            return;
        };
        let (listener, drain) = (self.listener.clone(), self.drain.clone());
        connections.spawn(async move {
            let stream = match &listener.tls {
                None => Some(Stream::Plain(stream)),
                Some(tls) => {
                    let timeout = listener.bounds.header_timeout;
                    let handshake = tls.handshake(stream, peer, timeout, &listener.stats);
                    let shaken = drain.wake.run_until_cancelled(handshake).await;
                    shaken.flatten().map(Stream::tls)
                }
            };
            if let Some(stream) = stream {
                Connection { listener, stream, session, drain }.run().await;
            }
            drop(permits);
        });
    }
}

//! The worker threads of the listener, each with its own event loop.
//!
//! A connection is assigned to the worker with the fewest and stays there. So its reads, decisions
//! and writes happen on the thread that receives the events of its socket, and no thread has to
//! wake another.

use std::io;
use std::net::TcpStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::thread;

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::busy_poll;
use super::connection::{Connection, Drain};
use super::listener::Listener;
use super::session::Session;
use crate::decide::Throttle;

/// Most accepted connections that a worker has not taken over yet; the accept loop waits.
const ACCEPTED_MAX: usize = 64;

/// The handle of a worker thread.
#[derive(Debug)]
pub(super) struct Worker {
    accepted: mpsc::Sender<Accepted>,
    /// Its connections, including those that it has not taken over yet.
    open: Arc<AtomicUsize>,
    ended: oneshot::Receiver<()>,
}

/// A connection that its worker has not taken over yet.
#[derive(Debug)]
struct Accepted {
    stream: StdStream,
    permit: ConnectionPermit,
}

/// Counts a connection of the listener and of its worker until it ends.
#[derive(Debug)]
struct ConnectionPermit {
    open: Arc<AtomicUsize>,
    _permit: OwnedSemaphorePermit,
}

/// What every worker serves connections with.
#[derive(Debug)]
pub(super) struct WorkerContext<D> {
    pub(super) listener: Arc<Listener<D>>,
    pub(super) drain: Drain,
    /// The id of the next connection, for all workers.
    pub(super) next_id: Arc<AtomicI64>,
}

impl Worker {
    /// Starts a worker. It ends when this handle is dropped and its connections have ended.
    ///
    /// # Errors
    ///
    /// The system provides no thread or event loop.
    pub(super) fn start<D: Throttle>(number: usize, context: WorkerContext<D>) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (accepted, receiver) = mpsc::channel(ACCEPTED_MAX);
        let (ending, ended) = oneshot::channel();
        thread::Builder::new().name(format!("resp-{number}")).spawn(move || {
            run(&runtime, context, receiver);
            // The receiver is gone when the listener was dropped.
            let _ = ending.send(());
        })?;
        Ok(Self { accepted, open: Arc::default(), ended })
    }

    /// Number of its connections.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Hands over a connection.
    ///
    /// # Errors
    ///
    /// The worker has ended.
    pub(super) async fn assign(
        &self,
        stream: StdStream,
        permit: OwnedSemaphorePermit,
    ) -> Result<(), WorkerEnded> {
        self.open.fetch_add(1, Ordering::Relaxed);
        let permit = ConnectionPermit { open: self.open.clone(), _permit: permit };
        self.accepted.send(Accepted { stream, permit }).await.map_err(|_| WorkerEnded)
    }

    /// Stops the worker and waits until it has ended.
    pub(super) async fn end(self) {
        drop(self.accepted);
        let _ = self.ended.await;
    }
}

/// A worker ended before the listener did.
#[derive(Debug, thiserror::Error)]
#[error("a worker thread of the RESP listener ended")]
pub struct WorkerEnded;

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn run<D: Throttle>(
    runtime: &Runtime,
    context: WorkerContext<D>,
    mut receiver: mpsc::Receiver<Accepted>,
) {
    runtime.block_on(async move {
        let polling = AbortOnDropHandle::new(tokio::spawn(busy_poll::run()));
        let stats = &context.listener.stats;
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = receiver.recv() => match accepted {
                    Some(accepted) => context.spawn(accepted, &mut connections),
                    None => break,
                },
                Some(ended) = connections.join_next() => stats.connection_ended(&ended),
            }
        }
        let all_ended = async {
            while let Some(ended) = connections.join_next().await {
                stats.connection_ended(&ended);
            }
        };
        let drain_timeout = context.listener.bounds.drain_timeout;
        if tokio::time::timeout(drain_timeout, all_ended).await.is_err() {
            stats.connections_dropped(connections.len());
            connections.shutdown().await;
        }
        drop(polling);
    });
}

impl<D: Throttle> WorkerContext<D> {
    fn spawn(&self, accepted: Accepted, connections: &mut JoinSet<()>) {
        let Accepted { stream, permit } = accepted;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let connected = TcpStream::from_std(stream).and_then(|stream| {
            let (peer, local) = (stream.peer_addr()?, stream.local_addr()?);
            let session = Session::new(id, peer, local, &self.listener.credentials);
            Ok((stream, session))
        });
        let Ok((stream, session)) = connected else {
            // The client has disconnected already.
            self.listener.stats.ended.add(1);
            return;
        };
        let connection = Connection {
            listener: self.listener.clone(),
            stream,
            session,
            drain: self.drain.clone(),
        };
        connections.spawn(async move {
            connection.run().await;
            drop(permit);
        });
    }
}

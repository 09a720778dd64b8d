//! The threads that carry the door's connections: each an event loop of its own.
//!
//! A connection is dealt to the thread that has the fewest and stays there. So its reads, decisions
//! and writes happen where its socket's events arrive, and no thread has to be woken for another.

use std::io;
use std::net::TcpStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use tokio_util::task::AbortOnDropHandle;

use super::batch::Shared;
use super::connection::{Connection, Drain};
use super::session::Session;
use super::watch;
use crate::decide::Throttle;

/// Most connections on their way to a thread; the accept loop waits.
const ARRIVALS_MAX: usize = 64;

/// A thread, as the accept loop sees it.
#[derive(Debug)]
pub(super) struct Thread {
    arrivals: mpsc::Sender<Arrival>,
    /// Connections that it has, and those on their way to it.
    open: Arc<AtomicUsize>,
    ended: oneshot::Receiver<()>,
}

/// A connection on its way to its thread.
#[derive(Debug)]
struct Arrival {
    stream: StdStream,
    permit: ConnectionPermit,
}

/// Room for a connection in the door and on its thread, given back when it ends.
#[derive(Debug)]
struct ConnectionPermit {
    open: Arc<AtomicUsize>,
    _permit: OwnedSemaphorePermit,
}

/// What a thread serves connections with.
#[derive(Debug)]
pub(super) struct WorkerPool<D> {
    pub(super) shared: Arc<Shared<D>>,
    pub(super) idle_timeout: Duration,
    pub(super) drain: Drain,
    /// The number of the next connection.
    pub(super) next_id: Arc<AtomicI64>,
}

impl Thread {
    /// Starts a thread. It ends when this handle is gone and its connections are.
    pub(super) fn start<D: Throttle>(
        number: usize,
        worker_pool: WorkerPool<D>,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (arrivals, arriving) = mpsc::channel(ARRIVALS_MAX);
        let (ending, ended) = oneshot::channel();
        thread::Builder::new().name(format!("resp-{number}")).spawn(move || {
            run(&runtime, worker_pool, arriving);
            // Nobody waits any more when the door was dropped.
            let _ = ending.send(());
        })?;
        Ok(Self { arrivals, open: Arc::default(), ended })
    }

    /// How many connections it has.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Gives it a connection; fails when it has ended.
    pub(super) async fn give(
        &self,
        stream: StdStream,
        permit: OwnedSemaphorePermit,
    ) -> Result<(), ThreadEnded> {
        self.open.fetch_add(1, Ordering::Relaxed);
        let permit = ConnectionPermit { open: self.open.clone(), _permit: permit };
        self.arrivals.send(Arrival { stream, permit }).await.map_err(|_| ThreadEnded)
    }

    /// Lets it end, and waits until it has.
    pub(super) async fn end(self) {
        drop(self.arrivals);
        let _ = self.ended.await;
    }
}

/// A thread of the door ended before the door did.
#[derive(Debug, thiserror::Error)]
#[error("a thread of the resp door ended")]
pub struct ThreadEnded;

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn run<D: Throttle>(
    runtime: &Runtime,
    worker_pool: WorkerPool<D>,
    mut arriving: mpsc::Receiver<Arrival>,
) {
    runtime.block_on(async move {
        let lookout = AbortOnDropHandle::new(tokio::spawn(watch::look_out()));
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                arrival = arriving.recv() => match arrival {
                    Some(arrival) => worker_pool.welcome(arrival, &mut connections),
                    None => break,
                },
                Some(ended) = connections.join_next() => worker_pool.note_end(&ended),
            }
        }
        let all_ended = async {
            while let Some(ended) = connections.join_next().await {
                worker_pool.note_end(&ended);
            }
        };
        let timeouts = worker_pool.shared.bounds.drain_timeout;
        if tokio::time::timeout(timeouts, all_ended).await.is_err() {
            let open = connections.len() as u64;
            worker_pool.shared.stats.dropped.add(open);
            worker_pool.shared.stats.ended.add(open);
            tracing::warn!(connections = open, "drop connections that did not end while draining");
            connections.shutdown().await;
        }
        drop(lookout);
    });
}

impl<D: Throttle> WorkerPool<D> {
    fn welcome(&self, arrival: Arrival, connections: &mut JoinSet<()>) {
        let Arrival { stream, permit } = arrival;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let begun = TcpStream::from_std(stream).and_then(|stream| {
            let (peer, local) = (stream.peer_addr()?, stream.local_addr()?);
            let session = Session::new(id, peer, local, &self.shared.credentials);
            Ok((stream, session))
        });
        let Ok((stream, session)) = begun else {
            // It died on its way here.
            self.shared.stats.ended.add(1);
            return;
        };
        let connection = Connection {
            shared: self.shared.clone(),
            stream,
            session,
            idle_timeout: self.idle_timeout,
            drain: self.drain.clone(),
        };
        connections.spawn(async move {
            connection.run().await;
            drop(permit);
        });
    }

    fn note_end(&self, ended: &Result<(), JoinError>) {
        self.shared.stats.ended.add(1);
        if let Err(error) = ended
            && error.is_panic()
        {
            tracing::error!(%error, "a connection's task panicked: this is a bug of the server");
        }
    }
}

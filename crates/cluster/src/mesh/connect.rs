//! Accepting and dialing: from an incoming connection or a dial request to an established peer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quinn::{Connection, Incoming};
use tidegate_ownership::identity::{Generation, NodeId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connection;
use super::handle::{Mesh, Tasks};
use super::hello::{self, Error as HelloError, Expected, HELLO_TIMEOUT};
use super::peer::Peer;
use super::registry::{Admission, DialOutcome, Registry};
use super::service::Service;
use super::wire::{self, Hello, close_code};
use crate::pki::MESH_NAME;

const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Incoming handshakes and hellos in progress. At the bound a connection is refused; the peer dials
/// again.
const HANDSHAKES_MAX: usize = 64;
/// With more handshakes in progress, clients have to prove their address before they use resources.
const UNVALIDATED_HANDSHAKES_MAX: usize = 16;
/// The longest that closing waits for peers to receive the close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

impl Mesh {
    /// Accepts, dials and serves peers until `stop`, then closes every connection.
    pub async fn run(&self, tasks: Tasks, service: Arc<dyn Service>, stop: CancellationToken) {
        let mut dial_requests = tasks.dial_requests;
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        let mut connections = JoinSet::new();
        let mut generation = self.shared.options.incarnation.subscribe();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                incoming = self.shared.endpoint.accept() => {
                    let Some(incoming) = incoming else { break };
                    if let Some((incoming, permit)) = self.screen(incoming, &handshakes) {
                        connections.spawn(self.clone().accept(incoming, service.clone(), permit));
                    }
                }
                Some(addr) = dial_requests.recv() => {
                    connections.spawn(self.clone().dial(addr, service.clone()));
                }
                Ok(()) = generation.changed() => {
                    for peer in self.peers() {
                        peer.connection.close(close_code::NEW_GENERATION, b"new generation");
                    }
                }
                Some(ended) = connections.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "connection task panicked; report this bug");
                    }
                }
            }
        }
        self.shared.endpoint.close(close_code::LEAVING, b"leaving");
        // Peers that receive the close frame need not wait for their idle timeout; one that does
        // not receive it must not delay the shutdown.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.shared.endpoint.wait_idle()).await;
    }

    /// Bounds the handshakes in progress. `None` when the connection was refused or has to validate
    /// its address first.
    fn screen(
        &self,
        incoming: Incoming,
        handshakes: &Arc<Semaphore>,
    ) -> Option<(Incoming, OwnedSemaphorePermit)> {
        let Ok(permit) = handshakes.clone().try_acquire_owned() else {
            self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
            incoming.refuse();
            return None;
        };
        let in_progress = HANDSHAKES_MAX - handshakes.available_permits();
        let is_busy = in_progress > UNVALIDATED_HANDSHAKES_MAX;
        if is_busy && incoming.may_retry() && !incoming.remote_address_validated() {
            let _ = incoming.retry();
            return None;
        }
        Some((incoming, permit))
    }

    async fn accept(
        self,
        incoming: Incoming,
        service: Arc<dyn Service>,
        permit: OwnedSemaphorePermit,
    ) {
        let from = incoming.remote_address();
        let generation = self.shared.options.incarnation.generation();
        let exchange = async {
            let connection = handshake(HELLO_TIMEOUT, incoming).await?;
            let hello = hello::accept(&connection, |node| self.expected(node)).await;
            close_if_refused(connection, hello)
        };
        let exchanged = exchange.await;
        drop(permit);
        match exchanged {
            Ok((connection, hello)) => {
                let dialer = hello.node.clone();
                self.establish(connection, hello, dialer, generation, service).await;
            }
            Err(error) => {
                self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%from, %error, "refused an incoming connection");
            }
        }
    }

    async fn dial(self, addr: SocketAddr, service: Arc<dyn Service>) {
        let generation = self.shared.options.incarnation.generation();
        let exchange = async {
            let connecting = self
                .shared
                .endpoint
                .connect(addr, MESH_NAME)
                .map_err(|error| HelloError::Connection(error.to_string()))?;
            let connection = handshake(DIAL_TIMEOUT, connecting).await?;
            let own = self.own_hello(self.shared.registry.highest_seen_at(addr));
            let hello = hello::dial(&connection, own, |node| self.expected(node)).await;
            close_if_refused(connection, hello)
        };
        let exchanged = exchange.await;
        self.shared.registry.dial_ended(
            addr,
            match &exchanged {
                Ok((_, hello)) => DialOutcome::Answered(&hello.node),
                Err(HelloError::RefusedByPeer(wire::Refusal::Own)) => DialOutcome::Own,
                Err(_) => DialOutcome::Failed,
            },
        );
        match exchanged {
            Ok((connection, hello)) => {
                let dialer = self.shared.options.incarnation.node().clone();
                self.establish(connection, hello, dialer, generation, service).await;
            }
            Err(error) => {
                self.shared.counters.dials_failed.fetch_add(1, Ordering::Relaxed);
                // A refusal that names a higher generation means that our clock was set back.
                if let HelloError::RefusedByPeer(wire::Refusal::Generation(highest_seen)) = &error {
                    self.shared.options.incarnation.bump(*highest_seen);
                }
                // An absent peer is retried; a refusal needs an operator.
                if matches!(error, HelloError::Connection(_)) {
                    tracing::debug!(%addr, %error, "failed to dial a peer; retrying");
                } else {
                    tracing::warn!(%addr, %error, "failed to dial a peer");
                }
            }
        }
    }

    /// Registers a peer with an accepted hello and runs its connection until it closes.
    /// `generation` is the one that our hello carried.
    async fn establish(
        &self,
        connection: Connection,
        hello: Hello,
        dialer: NodeId,
        generation: Generation,
        service: Arc<dyn Service>,
    ) {
        if let Some(highest_seen) = hello.highest_seen {
            self.shared.options.incarnation.bump(highest_seen);
        }
        let (peer, queues) = Peer::new(connection, &hello, dialer);
        let now = self.shared.clock.system();
        peer.record_clock_offset(now, hello.clock, now);
        let peer = Arc::new(peer);
        match self.shared.registry.admit(peer.clone()) {
            Admission::Surplus => {
                peer.connection.close(close_code::REPLACED, b"one connection is enough");
            }
            Admission::Admitted { replaced } => {
                if let Some(old) = replaced {
                    old.connection.close(close_code::REPLACED, b"replaced");
                }
                // Checked after the registration: a later bump closes all registered connections.
                if self.shared.options.incarnation.generation() != generation {
                    peer.connection.close(close_code::NEW_GENERATION, b"new generation");
                    self.shared.registry.remove(&peer);
                    return;
                }
                self.shared.counters.admitted.fetch_add(1, Ordering::Relaxed);
                let Generation(peer_generation) = peer.generation;
                tracing::info!(peer = %peer.id, generation = peer_generation, "peer connected");
                let _registered = Registered { registry: &self.shared.registry, peer: &peer };
                connection::run(peer.clone(), queues, service, self.shared.clock.clone()).await;
                tracing::info!(peer = %peer.id, generation = peer_generation, "peer disconnected");
            }
        }
    }

    fn expected(&self, node: &NodeId) -> Expected {
        let highest_seen = self.shared.registry.highest_seen(node);
        Expected { own: self.own_hello(highest_seen), highest_seen }
    }

    fn own_hello(&self, highest_seen: Option<Generation>) -> Hello {
        let options = &self.shared.options;
        Hello {
            cluster: options.cluster.clone(),
            node: options.incarnation.node().clone(),
            generation: options.incarnation.generation(),
            region: options.region.clone(),
            advertise: self.shared.advertise,
            secret: options.secret,
            clock: self.shared.clock.system(),
            highest_seen,
        }
    }
}

async fn handshake(
    timeout: Duration,
    connecting: impl IntoFuture<Output = Result<Connection, quinn::ConnectionError>>,
) -> Result<Connection, HelloError> {
    tokio::time::timeout(timeout, connecting)
        .await
        .map_err(|_| HelloError::Connection("no handshake in time".into()))?
        .map_err(|error| HelloError::Connection(error.to_string()))
}

fn close_if_refused(
    connection: Connection,
    hello: Result<Hello, HelloError>,
) -> Result<(Connection, Hello), HelloError> {
    match hello {
        Ok(hello) => Ok((connection, hello)),
        Err(error) => {
            connection.close(close_code::REFUSED, error.to_string().as_bytes());
            Err(error)
        }
    }
}

/// Removes a peer from the registry on drop.
struct Registered<'a> {
    registry: &'a Registry,
    peer: &'a Arc<Peer>,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.registry.remove(self.peer);
    }
}

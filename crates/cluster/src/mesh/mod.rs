//! The mesh: one mutually authenticated QUIC connection between every two nodes.
//!
//! One UDP port carries everything nodes say to each other: forwarded checks, columns, states and
//! gossip. [`Mesh`] is the handle that callers clone; [`Mesh::run`] owns the tasks.
//!
//! Two nodes may dial each other at once. Both sides then keep the connection that the lower node
//! id dialed, so they agree without asking; a newer start of a peer always replaces an older one.
//! A node whose generation grows while it runs closes its connections: peers take it for the start
//! that it named in its hello, and refuse the column of any other.
//!
//! **Invariant:** a peer is in the table only after an accepted hello in both directions, so
//! nothing a stranger sends reaches [`Service`].

pub mod bounded_vec;
pub mod codec;
mod connect;
mod hello;
mod peer;
mod registry;
mod rpc_stream;
mod serve;
pub mod tls;
pub mod wire;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use quinn::{Endpoint, VarInt};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use hello::{Error as HelloError, HELLO_TIMEOUT};
pub use peer::{PING_INTERVAL, Peer, UNREACHABLE_AFTER};
pub use rpc_stream::{CallError, IN_FLIGHT_MAX};

use tidegate_ownership::identity::NodeId;
use tidegate_ownership::{Epochs, OwnershipStatus};

use self::registry::{Dialed, Registry};
use self::wire::{Call, Reply};
use super::incarnation::Incarnation;
use crate::environment::{Clock, Environment};
use crate::pki::Identity;

/// What the mesh needs to know to start.
#[derive(Debug)]
pub struct Options {
    /// Name of the cluster; peers of another are refused.
    pub cluster: String,
    /// This node, as peers know it; the mesh raises its generation when a peer remembers more.
    pub incarnation: Arc<Incarnation>,
    /// The region this node is in.
    pub region: String,
    /// UDP address to bind.
    pub listen: SocketAddr,
    /// Address that peers reach this node at; the bound address when `None`.
    pub advertise: Option<SocketAddr>,
    /// Fingerprint of the key secret.
    pub secret: u64,
}

/// What a node does for its peers. Called on the reading task of a stream: it must not block.
pub trait Service: Send + Sync + 'static {
    /// Answers one call of an established peer.
    fn answer(&self, from: &Peer, call: Call) -> Answer;

    /// A peer sent bytes that are no frame; its stream was closed.
    fn malformed(&self, from: &NodeId);

    /// Where this node stands, as the ping to `peer` that is about to be sent tells it.
    fn ownership_status(&self, peer: &Peer) -> OwnershipStatus;

    /// A peer answered the ping that was sent at `sent`.
    fn ponged(&self, from: &Peer, sent: Instant, epochs: Option<Epochs>, grant: Option<u64>);
}

/// The answer to a call.
pub enum Answer {
    /// Here it is.
    Now(Reply),
    /// It waits for something, another node's word say, for a bounded time. It does not hold up
    /// other answers; too many that wait are answered [`Reply::Unconfirmed`] at once.
    Later(BoxFuture<'static, Reply>),
}

/// Which of a peer's streams a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamClass {
    /// Short and urgent: checks and pings.
    Checks,
    /// Long and patient: columns, states, gossip.
    Bulk,
}

/// The handle of the mesh; cheap to clone.
#[derive(Clone, Debug)]
pub struct Mesh {
    shared: Arc<Shared>,
}

/// What happened on the mesh since the start; read by the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Peers that were admitted.
    pub admitted: AtomicU64,
    /// Connections that failed their handshake or hello: strangers, mostly.
    pub refused: AtomicU64,
    /// Dials that found nobody.
    pub dials_failed: AtomicU64,
    /// Calls sent.
    pub calls: AtomicU64,
    /// Calls whose deadline passed.
    pub timeouts: AtomicU64,
    /// Calls that were not sent: no connection, a silent peer, or a full queue.
    pub unsent: AtomicU64,
    /// Messages that were dropped because the lane was full.
    pub dropped: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    advertise: SocketAddr,
    endpoint: Endpoint,
    clock: Arc<dyn Clock>,
    registry: Registry,
    /// Addresses to dial, drained by [`Mesh::run`].
    wanted: mpsc::Sender<SocketAddr>,
    counters: Counters,
}

/// The mesh could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The certificate and key do not work.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// The socket could not be bound.
    #[error("{addr}: {source}")]
    Bind {
        /// The address that was asked for.
        addr: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The tasks of the mesh, to be run once.
pub struct Tasks {
    wanted: mpsc::Receiver<SocketAddr>,
}

/// Handshakes and hellos under way at once. At the bound whoever comes is refused and comes again.
const HANDSHAKES_MAX: usize = 64;
/// Above this many handshakes under way, addresses must prove themselves before they cost anything.
const HANDSHAKES_TRUSTED: usize = 16;
/// Dials waiting to start. At the bound a wish is dropped; membership repeats it.
const WANTED_MAX: usize = 1_024;
/// The longest that closing waits for peers to hear of it.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

const CODE_LEAVING: VarInt = VarInt::from_u32(0);
const CODE_LANE_BROKEN: VarInt = VarInt::from_u32(4);
const CODE_RENEWED: VarInt = VarInt::from_u32(5);

impl Mesh {
    /// Binds the socket. Nothing is accepted or dialed until [`Mesh::run`].
    pub async fn bind(
        options: Options,
        identity: &Identity,
        environment: &Environment,
    ) -> Result<(Self, Tasks), Error> {
        let (server, client) = tls::configure(identity)?;
        let bind = |source| Error::Bind { addr: options.listen, source };
        let socket = environment.net.bind_udp(options.listen).await.map_err(bind)?;
        let mut seed = [0; 32];
        environment.entropy.fill(&mut seed).map_err(bind)?;
        let mut config = quinn::EndpointConfig::default();
        config.rng_seed(Some(seed));
        let runtime = environment.net.quinn_runtime();
        let mut endpoint =
            Endpoint::new_with_abstract_socket(config, Some(server), socket, runtime)
                .map_err(bind)?;
        endpoint.set_default_client_config(client);

        let bound = endpoint.local_addr().map_err(bind)?;
        let (wanted, wishes) = mpsc::channel(WANTED_MAX);
        let shared = Shared {
            advertise: options.advertise.unwrap_or(bound),
            registry: Registry::default(),
            options,
            endpoint,
            clock: environment.clock.clone(),
            wanted,
            counters: Counters::default(),
        };
        Ok((Self { shared: Arc::new(shared) }, Tasks { wanted: wishes }))
    }

    /// Accepts, dials and serves peers until `stop`, then closes every connection.
    pub async fn run(&self, tasks: Tasks, service: Arc<dyn Service>, stop: CancellationToken) {
        let mut wanted = tasks.wanted;
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        let mut connections = JoinSet::new();
        let mut generation = self.shared.options.incarnation.changes();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                incoming = self.shared.endpoint.accept() => {
                    let Some(incoming) = incoming else { break };
                    let Ok(permit) = handshakes.clone().try_acquire_owned() else {
                        self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
                        incoming.refuse();
                        continue;
                    };
                    let busy = handshakes.available_permits() < HANDSHAKES_MAX - HANDSHAKES_TRUSTED;
                    if busy && incoming.may_retry() && !incoming.remote_address_validated() {
                        let _ = incoming.retry();
                        continue;
                    }
                    let (mesh, service) = (self.clone(), service.clone());
                    connections.spawn(async move { mesh.accept(incoming, service, permit).await; });
                }
                Some(addr) = wanted.recv() => {
                    let (mesh, service) = (self.clone(), service.clone());
                    connections.spawn(async move { mesh.dial(addr, service).await; });
                }
                Ok(()) = generation.changed() => {
                    for peer in self.peers() {
                        peer.connection.close(CODE_RENEWED, b"a newer start of this node");
                    }
                }
                Some(ended) = connections.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "serve a connection");
                    }
                }
            }
        }
        self.shared.endpoint.close(CODE_LEAVING, b"leaving");
        // Peers that hear of it need not wait for their idle timeout; one that does not must not
        // hold us up.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.shared.endpoint.wait_idle()).await;
    }

    /// Asks `to` and waits for its answer until `deadline` from now. Cancel-safe.
    pub async fn call(
        &self,
        to: &NodeId,
        stream: StreamClass,
        call: Call,
        deadline: Duration,
    ) -> Result<Reply, CallError> {
        let Some(peer) = self.peer(to) else {
            self.shared.counters.unsent.fetch_add(1, Ordering::Relaxed);
            return Err(CallError::NotConnected);
        };
        self.call_peer(&peer, stream, call, deadline).await
    }

    /// Like [`Mesh::call`] over this connection, and over no other that takes its place: another
    /// start of the node never hears of it. Cancel-safe.
    pub async fn call_peer(
        &self,
        peer: &Peer,
        stream: StreamClass,
        call: Call,
        deadline: Duration,
    ) -> Result<Reply, CallError> {
        let counters = &self.shared.counters;
        let outcome = if peer.is_unreachable() {
            Err(CallError::Silent)
        } else {
            counters.calls.fetch_add(1, Ordering::Relaxed);
            peer.stream(stream).call(call, deadline).await
        };
        match outcome {
            Ok(_) => {}
            Err(CallError::Timeout) => drop(counters.timeouts.fetch_add(1, Ordering::Relaxed)),
            Err(_) => drop(counters.unsent.fetch_add(1, Ordering::Relaxed)),
        }
        outcome
    }

    /// Tells `to` something that wants no reply. Returns whether it was queued; when it is not
    /// connected or its lane is full, it hears nothing. Never waits.
    pub fn notify(&self, to: &NodeId, stream: StreamClass, call: Call) -> bool {
        let is_queued = self.peer(to).is_some_and(|peer| peer.stream(stream).tell(call));
        if !is_queued {
            self.shared.counters.dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_queued
    }

    /// Sends gossip to the peer that advertises `addr`; dials it when it is not connected, and
    /// drops the message then, as a datagram would be. Never waits.
    pub fn tell(&self, addr: SocketAddr, gossip: Vec<u8>) {
        match self.shared.registry.by_addr(addr) {
            Some(peer) if !peer.bulk.tell(Call::Gossip(gossip)) => {
                self.shared.counters.dropped.fetch_add(1, Ordering::Relaxed);
            }
            Some(_) => {}
            None => self.want(addr),
        }
    }

    /// Dials `addr` unless it is connected, being dialed, or was dialed a moment ago. Never waits.
    pub fn want(&self, addr: SocketAddr) {
        if addr == self.shared.advertise || !self.shared.registry.may_dial(addr) {
            return;
        }
        if self.shared.wanted.try_send(addr).is_err() {
            self.shared.registry.dial_ended(addr, Dialed::Failed);
        }
    }

    /// Pings every peer now, beside its regular pings. Never waits.
    pub fn ping_now(&self) {
        for peer in self.peers() {
            peer.ping_now();
        }
    }

    /// The established connection to a node.
    pub fn peer(&self, id: &NodeId) -> Option<Arc<Peer>> {
        self.shared.registry.get(id)
    }

    /// All established peers, sorted by id.
    pub fn peers(&self) -> Vec<Arc<Peer>> {
        self.shared.registry.all()
    }

    /// Address that peers reach this node at.
    pub fn advertise(&self) -> SocketAddr {
        self.shared.advertise
    }

    /// What happened since the start.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }
}

//! The handle of the mesh: calls and messages to peers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quinn::Endpoint;
use tidegate_ownership::identity::NodeId;
use tokio::sync::mpsc;

use super::peer::Peer;
use super::registry::{DialOutcome, Registry};
use super::rpc_stream::{CallError, StreamClass};
use super::tls;
use super::wire::{Call, Reply};
use crate::environment::{Clock, Environment};
use crate::incarnation::Incarnation;
use crate::pki::Identity;

#[derive(Debug)]
pub struct Options {
    /// Peers of a cluster with another name are refused.
    pub cluster: String,
    /// This node; the mesh bumps its generation when a peer has seen a higher one.
    pub incarnation: Arc<Incarnation>,
    pub region: String,
    /// UDP address to bind.
    pub listen: SocketAddr,
    /// The address that peers use; the bound address when `None`.
    pub advertise: Option<SocketAddr>,
    /// Fingerprint of the key secret, which all nodes of a cluster share.
    pub secret: u64,
}

/// The handle of the mesh; cheap to clone.
#[derive(Clone, Debug)]
pub struct Mesh {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) advertise: SocketAddr,
    pub(super) endpoint: Endpoint,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) registry: Registry,
    dial_requests: mpsc::Sender<SocketAddr>,
    pub(super) counters: Counters,
}

/// Events since the start, for the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections with an accepted hello.
    pub admitted: AtomicU64,
    /// Incoming connections that failed their handshake or hello.
    pub refused: AtomicU64,
    pub dials_failed: AtomicU64,
    /// Calls sent.
    pub calls: AtomicU64,
    /// Calls whose deadline passed.
    pub timeouts: AtomicU64,
    /// Calls that were not sent: not connected, unreachable, or queue full.
    pub unsent: AtomicU64,
    /// Messages without a reply that were dropped because the queue was full.
    pub dropped: AtomicU64,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Tls(#[from] tls::Error),
    #[error("{addr}: {source}")]
    Bind { addr: SocketAddr, source: std::io::Error },
}

/// What [`Mesh::run`] needs besides the handle.
pub struct Tasks {
    pub(super) dial_requests: mpsc::Receiver<SocketAddr>,
}

/// Dials waiting to start. At the bound a request is dropped; membership repeats it.
const DIAL_REQUESTS_MAX: usize = 1_024;

impl Mesh {
    /// Binds the socket. Nothing is accepted or dialed until [`Mesh::run`].
    ///
    /// # Errors
    ///
    /// [`Error::Tls`] when certificate and key do not fit together, [`Error::Bind`] when the socket
    /// cannot be bound or the system provides no randomness.
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
        let (dial_requests, requested) = mpsc::channel(DIAL_REQUESTS_MAX);
        let shared = Shared {
            advertise: options.advertise.unwrap_or(bound),
            registry: Registry::default(),
            options,
            endpoint,
            clock: environment.clock.clone(),
            dial_requests,
            counters: Counters::default(),
        };
        Ok((Self { shared: Arc::new(shared) }, Tasks { dial_requests: requested }))
    }

    /// Calls `to` and waits for its reply until `deadline` from now. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`CallError`] when there is no reply; its variants say whether the call may have been
    /// applied.
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

    /// Like [`Mesh::call`], over this connection only, so that the call reaches no other
    /// incarnation of the node. Cancel-safe.
    ///
    /// # Errors
    ///
    /// As [`Mesh::call`].
    pub async fn call_peer(
        &self,
        peer: &Peer,
        stream: StreamClass,
        call: Call,
        deadline: Duration,
    ) -> Result<Reply, CallError> {
        let counters = &self.shared.counters;
        let outcome = if peer.is_unreachable() {
            Err(CallError::Unreachable)
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

    /// Sends `to` a message without a reply. Returns whether it was queued; it is dropped when `to`
    /// is not connected or its queue is full. Never waits.
    pub fn notify(&self, to: &NodeId, stream: StreamClass, call: Call) -> bool {
        let is_queued = self.peer(to).is_some_and(|peer| peer.stream(stream).notify(call));
        if !is_queued {
            self.shared.counters.dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_queued
    }

    /// Sends gossip to the peer that advertises `addr`. If there is none, requests a dial and drops
    /// the message, as a datagram would be. Never waits.
    pub fn send_gossip(&self, addr: SocketAddr, gossip: Vec<u8>) {
        match self.shared.registry.by_addr(addr) {
            Some(peer) if !peer.bulk.notify(Call::Gossip(gossip)) => {
                self.shared.counters.dropped.fetch_add(1, Ordering::Relaxed);
            }
            Some(_) => {}
            None => self.request_dial(addr),
        }
    }

    /// Requests a dial of `addr`, unless it is connected, being dialed, or in back-off. Never
    /// waits.
    pub fn request_dial(&self, addr: SocketAddr) {
        if addr == self.shared.advertise || !self.shared.registry.start_dial(addr) {
            return;
        }
        if self.shared.dial_requests.try_send(addr).is_err() {
            self.shared.registry.dial_ended(addr, DialOutcome::Failed);
        }
    }

    /// Pings every peer in addition to its regular pings. Never waits.
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

    /// The mesh address that this node advertises.
    pub fn advertise(&self) -> SocketAddr {
        self.shared.advertise
    }

    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }
}

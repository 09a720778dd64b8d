//! The handle of the mesh: calls and messages to peers; accepting and dialing, from an incoming
//! connection or a dial request to an established peer.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use quinn::{Connection, ConnectionError, Endpoint, Incoming};
use tidegate_ownership::Versions;
use tidegate_ownership::identity::{Generation, NodeId};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connection::{self, Service};
use super::credentials::Credentials;
use super::hello::{self, Error as HelloError, Expected, HELLO_TIMEOUT};
use super::peer::Peer;
use super::refused_certificate::{self, RefusalLog};
use super::registry::{Admission, DialOutcome, Edges, Registry};
use super::rpc_stream::{CallError, StreamClass};
use super::tls;
use super::traffic::Traffic;
use super::wire::{Call, EDGES_MAX, Hello, PEERS_MAX, Refusal, Reply, SharedSettings, close_code};
use crate::count;
use crate::environment::{Clock, Environment};
use crate::incarnation::Incarnation;
use crate::per_address::{PerAddress, Slot};
use crate::pki::{Identity, MESH_NAME, Revocations, Role};
use crate::ticks::Ticks;

#[derive(Debug)]
pub struct Options {
    /// Peers of a cluster with another name are refused.
    pub cluster: String,
    /// This node; the mesh bumps its generation when a peer has seen a higher one.
    pub incarnation: Arc<Incarnation>,
    /// With the node of the incarnation this node's identity.
    pub birth: u64,
    pub region: String,
    /// UDP address to bind.
    pub listen: SocketAddr,
    /// The address that peers use; the bound address when `None`.
    pub advertise: Option<SocketAddr>,
    /// Fingerprint of the key secret, which all nodes of a cluster share.
    pub secret: u64,
    /// Whether keys name their domain.
    pub names_domains: bool,
    pub shared: SharedSettings,
}

/// The handle of the mesh.
#[derive(Debug)]
pub struct Mesh {
    options: Options,
    /// Of this node.
    pub role: Role,
    /// The mesh address that this node advertises.
    pub advertise: SocketAddr,
    endpoint: Endpoint,
    pub(super) credentials: ArcSwap<Credentials>,
    pub(super) credentials_replaced: Notify,
    pub(crate) clock: Arc<dyn Clock>,
    /// Of all that this node does at intervals.
    pub ticks: Ticks,
    /// Certificates that are refused.
    pub revocations: Arc<Revocations>,
    registry: Registry,
    dial_requests: mpsc::Sender<SocketAddr>,
    /// The versions of the wire format that this node speaks.
    pub versions: Versions,
    /// The version that the members of its region have to speak; 0 while it is not known.
    required_version: AtomicU8,
    refusals_logged: RefusalLog,
    pub counters: Counters,
}

/// Events since the start, for the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections with an accepted hello.
    pub admitted: AtomicU64,
    /// Incoming connections that failed their handshake or hello.
    pub refused: AtomicU64,
    pub dials_failed: AtomicU64,
    /// Connections closed because the certificate of the peer was not valid any more.
    pub untrusted: AtomicU64,
    /// Calls sent.
    pub calls: AtomicU64,
    /// Calls whose deadline passed.
    pub timeouts: AtomicU64,
    /// Calls that were not sent: not connected, unreachable, or queue full.
    pub unsent: AtomicU64,
    /// Messages without a reply that were dropped because the queue was full.
    pub dropped: AtomicU64,
    /// What was sent. Shared with the tasks of the connections.
    pub traffic: Arc<Traffic>,
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
pub struct Tasks(mpsc::Receiver<SocketAddr>);

const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Incoming handshakes and hellos in progress. At the bound a connection is refused; the peer dials
/// again.
const HANDSHAKES_MAX: usize = 64;
/// With more handshakes in progress, clients have to prove their address before they use resources.
const UNVALIDATED_HANDSHAKES_MAX: usize = 16;
/// Handshakes and hellos in progress from one address, or IPv6 /64, so that one host that opens
/// connections and says nothing keeps no other one out. More than can come from forged addresses,
/// so that those do not keep out the node whose address they carry.
const HANDSHAKES_PER_ADDRESS_MAX: usize = 24;
const _: () = assert!(
    UNVALIDATED_HANDSHAKES_MAX < HANDSHAKES_PER_ADDRESS_MAX
        && HANDSHAKES_PER_ADDRESS_MAX < HANDSHAKES_MAX
);
/// The longest that closing waits for peers to receive the close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Dials waiting to start. At the bound a request is dropped; membership repeats it.
const DIAL_REQUESTS_MAX: usize = 1_024;
/// A connection that another one has replaced is closed after this time.
const REPLACED_CLOSES_AFTER: Duration = Duration::from_millis(500);
/// Cores that an edge is connected to. At the bound the one that it has not called for longest is
/// let go, if that is longer than [`LETS_GO_AFTER`].
const EDGE_PEERS_MAX: usize = 64;
const LETS_GO_AFTER: Duration = Duration::from_secs(1);
/// How long one that waits for a connection waits before it looks for a failed dial.
const CONNECT_POLL: Duration = Duration::from_millis(20);

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
    ) -> Result<(Arc<Self>, Tasks), Error> {
        let credentials = Credentials::new(Arc::new(identity.clone()), options.names_domains, 0)?;
        let bind = |source| Error::Bind { addr: options.listen, source };
        let socket = environment.net.bind_udp(options.listen).await.map_err(bind)?;
        let mut seed = [0; 32];
        environment.entropy.fill(&mut seed).map_err(bind)?;
        let mut config = quinn::EndpointConfig::default();
        config.rng_seed(Some(seed));
        let runtime = environment.net.quinn_runtime();
        let server = (*credentials.server).clone();
        let endpoint = Endpoint::new_with_abstract_socket(config, Some(server), socket, runtime)
            .map_err(bind)?;

        let bound = endpoint.local_addr().map_err(bind)?;
        let (dial_requests, requested) = mpsc::channel(DIAL_REQUESTS_MAX);
        let mesh = Self {
            advertise: options.advertise.unwrap_or(bound),
            registry: Registry::default(),
            role: identity.role,
            options,
            endpoint,
            credentials: ArcSwap::from_pointee(credentials),
            credentials_replaced: Notify::new(),
            clock: environment.clock.clone(),
            revocations: Arc::default(),
            ticks: Ticks::start(),
            dial_requests,
            versions: environment.versions,
            required_version: AtomicU8::new(0),
            refusals_logged: RefusalLog::default(),
            counters: Counters::default(),
        };
        Ok((Arc::new(mesh), Tasks(requested)))
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
            count(&self.counters.unsent, 1);
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
        let counters = &self.counters;
        let outcome = if peer.is_unreachable() {
            Err(CallError::Unreachable)
        } else {
            count(&counters.calls, 1);
            peer.used();
            peer.stream(stream).call(call, deadline).await
        };
        match outcome {
            Ok(_) => {}
            Err(CallError::Timeout) => count(&counters.timeouts, 1),
            Err(_) => count(&counters.unsent, 1),
        }
        outcome
    }

    /// Sends `to` a message without a reply. Returns whether it was queued; it is dropped when `to`
    /// is not connected or its queue is full. Never waits.
    pub fn notify(&self, to: &NodeId, stream: StreamClass, call: Call) -> bool {
        let is_queued = self.peer(to).is_some_and(|peer| peer.stream(stream).notify(call));
        if !is_queued {
            count(&self.counters.dropped, 1);
        }
        is_queued
    }

    /// Sends gossip to the peer that advertises `addr`. If there is none, requests a dial and drops
    /// the message, as a datagram would be. Never waits.
    pub fn send_gossip(&self, addr: SocketAddr, gossip: Vec<u8>) {
        match self.registry.by_addr(addr) {
            Some(peer) if !peer.stream(StreamClass::Bulk).notify(Call::Gossip(gossip)) => {
                count(&self.counters.dropped, 1);
            }
            Some(_) => {}
            None => self.request_dial(addr),
        }
    }

    /// Requests a dial of `addr`, unless it is connected, being dialed, or in back-off. Never
    /// waits.
    pub fn request_dial(&self, addr: SocketAddr) {
        if addr == self.advertise || !self.registry.start_dial(addr) {
            return;
        }
        if self.dial_requests.try_send(addr).is_err() {
            self.registry.dial_ended(addr, DialOutcome::Failed);
        }
    }

    /// The connection to the core `id` at `addr`, which an edge opens when it uses it. `None` if it
    /// cannot be opened now. Cancel-safe.
    pub async fn connect(&self, id: &NodeId, addr: SocketAddr) -> Option<Arc<Peer>> {
        loop {
            let admitted = self.registry.admitted.notified();
            tokio::pin!(admitted);
            admitted.as_mut().enable();
            if let Some(peer) = self.peer(id) {
                // A core that has started again dials no edge. Calls fail at once until it answers.
                if peer.is_lost() {
                    self.request_dial(addr);
                }
                return Some(peer);
            }
            if !self.registry.is_dialing(addr) && !self.has_room() {
                return None;
            }
            self.request_dial(addr);
            if !self.registry.is_dialing(addr) {
                // A dial of before may have ended well meanwhile.
                return self.peer(id);
            }
            let _ = tokio::time::timeout(CONNECT_POLL, admitted).await;
        }
    }

    /// The connection to the node that `broken` was connected to, which an edge opens anew.
    /// Cancel-safe.
    pub async fn reconnect(&self, broken: &Peer) -> Option<Arc<Peer>> {
        match self.role {
            Role::Core => self.peer(&broken.id),
            Role::Edge => self.connect(&broken.id, broken.advertise).await,
        }
    }

    /// Whether an edge may open another connection; if not, it begins to close one.
    fn has_room(&self) -> bool {
        if self.registry.len() + self.registry.dialing() < EDGE_PEERS_MAX {
            return true;
        }
        let longest = self.peers().into_iter().max_by_key(|peer| peer.unused_for());
        if let Some(peer) = longest.filter(|peer| peer.unused_for() > LETS_GO_AFTER) {
            peer.let_go();
        }
        false
    }

    /// Dials `addr` although it is connected. If that fails, the connection stays. Never waits.
    pub(super) fn dial_anew(&self, addr: SocketAddr) {
        // A full queue drops it; it is repeated.
        let _ = self.dial_requests.try_send(addr);
    }

    /// Pings every peer in addition to its regular pings. Never waits.
    pub fn ping_now(&self) {
        for peer in self.peers() {
            peer.ping_now();
        }
    }

    /// This node.
    pub fn node(&self) -> &NodeId {
        self.options.incarnation.node()
    }

    /// Whether keys name their domain.
    pub fn names_domains(&self) -> bool {
        self.options.names_domains
    }

    /// This node's region.
    pub fn region(&self) -> &str {
        &self.options.region
    }

    /// This node's generation.
    pub fn generation(&self) -> Generation {
        self.options.incarnation.generation()
    }

    /// From now on peers of this region that do not speak `version` are refused: the cluster map
    /// requires it ([`ClusterMap::version`](tidegate_ownership::ClusterMap::version)). Those of
    /// other regions are asked for by the maps there.
    pub fn require_version(&self, version: u8) {
        self.required_version.store(version, Ordering::Relaxed);
    }

    /// The established connection to a core, or else to an edge of this name.
    pub fn peer(&self, id: &NodeId) -> Option<Arc<Peer>> {
        self.registry.get(id).or_else(|| self.registry.edges().get(id).cloned())
    }

    /// All cores that are connected, sorted by id.
    pub fn peers(&self) -> Vec<Arc<Peer>> {
        self.registry.all()
    }

    /// All edges that are connected.
    pub fn edges(&self) -> Arc<Edges> {
        self.registry.edges()
    }
}

// === accepting and dialing ===

impl Mesh {
    /// Accepts, dials and serves peers until `stop`, then closes every connection.
    pub async fn run(
        self: &Arc<Self>,
        Tasks(mut dial_requests): Tasks,
        service: Arc<dyn Service>,
        stop: CancellationToken,
    ) {
        let handshakes = Handshakes::default();
        let mut connections = JoinSet::new();
        let mut generation = self.options.incarnation.subscribe();
        connections.spawn(self.clone().follow_certificates());
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                incoming = self.endpoint.accept() => {
                    let Some(incoming) = incoming else { break };
                    if let Some((incoming, permits)) = self.screen(incoming, &handshakes) {
                        connections.spawn(self.clone().accept(incoming, service.clone(), permits));
                    }
                }
                Some(addr) = dial_requests.recv() => {
                    connections.spawn(self.clone().dial(addr, service.clone()));
                }
                Ok(()) = generation.changed() => {
                    for peer in self.peers().iter().chain(self.edges().iter()) {
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
        self.endpoint.close(close_code::LEAVING, b"leaving");
        // Peers that receive the close frame need not wait for their idle timeout; one that does
        // not receive it must not delay the shutdown.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.endpoint.wait_idle()).await;
    }

    /// Bounds the handshakes in progress. `None` when the connection was refused or has to validate
    /// its address first.
    fn screen(
        &self,
        incoming: Incoming,
        handshakes: &Handshakes,
    ) -> Option<(Incoming, HandshakePermits)> {
        let Some(permits) = handshakes.begin(incoming.remote_address().ip()) else {
            count(&self.counters.refused, 1);
            incoming.refuse();
            return None;
        };
        let in_progress = HANDSHAKES_MAX - handshakes.all.available_permits();
        let is_busy = in_progress > UNVALIDATED_HANDSHAKES_MAX;
        if is_busy && incoming.may_retry() && !incoming.remote_address_validated() {
            let _ = incoming.retry();
            return None;
        }
        Some((incoming, permits))
    }

    async fn accept(
        self: Arc<Self>,
        incoming: Incoming,
        service: Arc<dyn Service>,
        permits: HandshakePermits,
    ) {
        let from = incoming.remote_address();
        let generation = self.options.incarnation.generation();
        let credentials = self.credentials.load_full();
        let exchange = async {
            let connecting =
                incoming.accept_with(credentials.server.clone()).map_err(|error| failed(&error))?;
            let connection = handshake(HELLO_TIMEOUT, connecting).await?;
            let roles: &[Role] = match self.role {
                Role::Core => &[Role::Core, Role::Edge],
                Role::Edge => &[Role::Core],
            };
            let expected = |node: &NodeId, role: Role| self.expected(node, role);
            let hello = hello::accept(&connection, roles, expected).await;
            close_if_refused(connection, hello)
        };
        let exchanged = exchange.await;
        drop(permits);
        match exchanged {
            Ok((connection, (hello, role))) => {
                let (dialer, dialed) = (hello.node.clone(), None);
                let credentials = credentials.number;
                let began = Began { dialer, dialed, role, generation, credentials };
                self.establish(connection, hello, began, service).await;
            }
            Err(error) => {
                count(&self.counters.refused, 1);
                if self.refusals_logged.admits_incoming(&error, from) {
                    tracing::warn!(%from, %error, "refused an incoming connection");
                } else {
                    tracing::debug!(%from, %error, "refused an incoming connection");
                }
            }
        }
    }

    async fn dial(self: Arc<Self>, addr: SocketAddr, service: Arc<dyn Service>) {
        let generation = self.options.incarnation.generation();
        let credentials = self.credentials.load_full();
        let exchange = async {
            let connecting = self
                .endpoint
                .connect_with(credentials.client.clone(), addr, MESH_NAME)
                .map_err(|error| HelloError::Connection(error.to_string()))?;
            let connection = handshake(DIAL_TIMEOUT, connecting).await?;
            let own = self.own_hello(self.registry.highest_seen_at(addr));
            let expected = |node: &NodeId| self.expected(node, Role::Core);
            let mut hello = hello::dial(&connection, own, expected).await;
            // Two members of two clusters have one name: neither gives way, so neither is to raise
            // its generation for the other.
            if matches!(hello, Err(HelloError::RefusedByPeer(Refusal::Generation(_))))
                && self.options.incarnation.is_member()
                && hello::is_of(&connection, self.options.incarnation.node())
            {
                hello = Err(HelloError::RefusedByPeer(Refusal::Own));
            }
            close_if_refused(connection, hello)
        };
        match exchange.await {
            Ok((connection, hello)) => {
                let (dialer, role) = (self.options.incarnation.node().clone(), Role::Core);
                let (credentials, dialed) = (credentials.number, Some(addr));
                let began = Began { dialer, dialed, role, generation, credentials };
                self.establish(connection, hello, began, service).await;
            }
            Err(error) => {
                let outcome = match error {
                    // To one that is no member it may be another process of its name, which tells
                    // it so when it has joined itself.
                    HelloError::RefusedByPeer(Refusal::Own)
                        if self.options.incarnation.is_member() =>
                    {
                        DialOutcome::Own
                    }
                    HelloError::RefusedByPeer(Refusal::Generation(_)) => DialOutcome::Outdated,
                    _ => DialOutcome::Failed,
                };
                self.registry.dial_ended(addr, outcome);
                count(&self.counters.dials_failed, 1);
                // Our clock was set back, or another process runs under this name.
                if let HelloError::RefusedByPeer(Refusal::Generation(highest_seen)) = &error {
                    self.options.incarnation.bump(*highest_seen);
                }
                let knows_no_edges = self.role == Role::Edge
                    && matches!(error, HelloError::RefusedByPeer(Refusal::Role));
                if knows_no_edges && self.refusals_logged.admits_dial(&error, addr) {
                    tracing::warn!(
                        %addr,
                        "this peer takes no edges: it runs a release that knows none, or is one \
                         itself; upgrade the cores before edges are started, and name cores in \
                         cluster.seeds; retrying, and asking others"
                    );
                } else if self.refusals_logged.admits_dial(&error, addr) {
                    tracing::warn!(%addr, %error, "failed to dial a peer; retrying");
                } else {
                    tracing::debug!(%addr, %error, "failed to dial a peer; retrying");
                }
            }
        }
    }

    /// Registers a peer with an accepted hello and runs its connection until it closes.
    async fn establish(
        &self,
        connection: Connection,
        hello: Hello,
        began: Began,
        service: Arc<dyn Service>,
    ) {
        if let Some(highest_seen) = hello.highest_seen {
            self.options.incarnation.bump(highest_seen);
        }
        let Began { dialer, dialed, role, generation, credentials } = began;
        let (peer, queues) =
            Peer::new(connection, (&hello, role), self.versions, dialer, credentials);
        peer.record_clocks(hello.clock, None, self.clock.monotonic());
        let peer = Arc::new(peer);
        let admission = self.registry.admit(peer.clone());
        // Not before: one that waits for the connection takes a dial that has ended for a failure.
        if let Some(addr) = dialed {
            self.registry.dial_ended(addr, DialOutcome::Answered(&peer.id));
        }
        match admission {
            Admission::Surplus => {
                peer.connection.close(close_code::REPLACED, b"one connection is enough");
            }
            Admission::Admitted { replaced } => {
                for old in replaced {
                    close_replaced(old, &peer);
                }
                // Checked after the registration: a later bump closes all registered connections.
                if self.options.incarnation.generation() != generation {
                    peer.connection.close(close_code::NEW_GENERATION, b"new generation");
                    self.registry.remove(&peer);
                    return;
                }
                count(&self.counters.admitted, 1);
                let Generation(peer_generation) = peer.generation;
                let role = peer.role.name();
                tracing::info!(peer = %peer.id, role, generation = peer_generation, "peer connected");
                scopeguard::defer!(self.registry.remove(&peer));
                let (clock, traffic) = (self.clock.clone(), self.counters.traffic.clone());
                let ends = (self.role, service);
                connection::run(peer.clone(), queues, ends, clock, self.ticks, traffic).await;
                tracing::info!(peer = %peer.id, generation = peer_generation, "peer disconnected");
            }
        }
    }

    fn expected(&self, node: &NodeId, role: Role) -> Expected {
        let (highest_seen, full) = match role {
            Role::Core => {
                let is_full = self.registry.len() >= PEERS_MAX && self.registry.get(node).is_none();
                (self.registry.highest_seen(node), is_full.then_some(Refusal::Full))
            }
            Role::Edge => {
                let edges = self.registry.edges();
                let connected = edges.get(node);
                let is_full = edges.len() >= EDGES_MAX && connected.is_none();
                let is_taken = self.registry.get(node).is_some();
                let refusal = is_full.then_some(Refusal::FullOfEdges);
                // One that has started again with its clock set back is to take the place of its
                // earlier start, and another process with its name is not to take that of a living
                // one: so the connection is pinged, and counts as lost when that is not answered.
                if let Some(edge) = connected {
                    edge.ping_now();
                }
                let lost = connected.filter(|edge| edge.is_lost());
                let highest_seen = lost.map(|edge| edge.generation);
                (highest_seen, is_taken.then_some(Refusal::NameOfCore).or(refusal))
            }
        };
        let secrets = self.credentials.load().secrets.clone();
        let required_version = self.required_version.load(Ordering::Relaxed);
        let own = self.own_hello(highest_seen);
        let revocations = self.revocations.clone();
        let is_member = self.options.incarnation.is_member();
        Expected { own, secrets, is_member, highest_seen, required_version, full, revocations }
    }

    fn own_hello(&self, highest_seen: Option<Generation>) -> Hello {
        let options = &self.options;
        Hello {
            cluster: options.cluster.clone(),
            node: options.incarnation.node().clone(),
            birth: options.birth,
            generation: options.incarnation.generation(),
            region: options.region.clone(),
            versions: self.versions,
            shared: options.shared,
            advertise: self.advertise,
            secret: options.secret,
            clock: self.clock.system(),
            highest_seen,
        }
    }
}

/// Closes `old`, which `new` has replaced: what is in flight on it ends first. Its other end may
/// hear of the close before it hears that `new` is established, and would have no connection then.
fn close_replaced(old: Arc<Peer>, new: &Peer) {
    let close = |old: &Peer| old.connection.close(close_code::REPLACED, b"replaced");
    // At most one for each peer waits to be closed.
    if old.generation != new.generation || old.age() < REPLACED_CLOSES_AFTER {
        return close(&old);
    }
    tokio::spawn(async move {
        tokio::time::sleep(REPLACED_CLOSES_AFTER).await;
        close(&old);
    });
}

/// What a connection began with.
struct Began {
    dialer: NodeId,
    /// The address that this node dialed.
    dialed: Option<SocketAddr>,
    /// Of the peer.
    role: Role,
    /// That of our hello.
    generation: Generation,
    /// The number of our [`Credentials`].
    credentials: u64,
}

/// The handshakes in progress, of all addresses and of each.
#[derive(Debug)]
struct Handshakes {
    all: Arc<Semaphore>,
    per_address: Arc<PerAddress>,
}

/// Held by a handshake in progress.
type HandshakePermits = (OwnedSemaphorePermit, Slot);

impl Default for Handshakes {
    fn default() -> Self {
        let all = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        Self { all, per_address: PerAddress::new(HANDSHAKES_PER_ADDRESS_MAX) }
    }
}

impl Handshakes {
    /// `None` when all, or those of `from`, are in use.
    fn begin(&self, from: IpAddr) -> Option<HandshakePermits> {
        let permit = self.all.clone().try_acquire_owned().ok()?;
        Some((permit, self.per_address.acquire(from)?))
    }
}

async fn handshake(
    timeout: Duration,
    connecting: impl IntoFuture<Output = Result<Connection, ConnectionError>>,
) -> Result<Connection, HelloError> {
    tokio::time::timeout(timeout, connecting)
        .await
        .map_err(|_| HelloError::Connection("no handshake in time".into()))?
        .map_err(|error| failed(&error))
}

fn failed(error: &ConnectionError) -> HelloError {
    match refused_certificate::refusal(error) {
        Some(refusal) => HelloError::Certificate(refusal),
        None => HelloError::Connection(error.to_string()),
    }
}

fn close_if_refused<H>(
    connection: Connection,
    hello: Result<H, HelloError>,
) -> Result<(Connection, H), HelloError> {
    match hello {
        Ok(hello) => Ok((connection, hello)),
        // The acceptor refused this node's certificate after the handshake.
        Err(HelloError::Connection(error)) if connection.close_reason().is_some() => {
            let reason = connection.close_reason();
            Err(reason.map_or(HelloError::Connection(error), |reason| failed(&reason)))
        }
        Err(error) => {
            connection.close(close_code::REFUSED, error.to_string().as_bytes());
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_does_not_hold_all_handshakes() {
        let handshakes = Handshakes::default();
        // Any address of a /64 is the same host.
        let silent = |n: u16| handshakes.begin([0x2001, 0xdb8, 0, 1, 0, 0, 0, n].into());
        let mut held: Vec<_> = (0..100).filter_map(silent).collect();
        assert_eq!(held.len(), HANDSHAKES_PER_ADDRESS_MAX);
        let other = |n: u8| handshakes.begin([192, 0, 2, n].into());
        let others: Vec<_> = (0..100).filter_map(other).collect();
        assert_eq!(others.len(), HANDSHAKES_MAX - HANDSHAKES_PER_ADDRESS_MAX);
        // A handshake that ends makes room, also one that was refused for the bound of its host.
        held.pop();
        assert!(silent(1).is_some());
        assert!(other(1).is_some());
    }
}

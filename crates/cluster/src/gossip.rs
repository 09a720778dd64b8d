//! Membership by gossip: chitchat, carried by the mesh.
//!
//! chitchat's own UDP transport believes every packet, so that a stranger could add members. Ours
//! hands its messages to the mesh, whose peers are authenticated. Only a dozen short facts a node
//! go through it, never a counter.
//!
//! chitchat runs as one task that a message it cannot reconcile ends, silently. The loop in
//! [`Gossip::run`] notices, says so, and starts it anew under a new generation: peers hold versions
//! of the old one that a fresh start would contradict.

mod node_metadata;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{
    ChitchatConfig, ChitchatHandle, ChitchatId, ChitchatMessage, Deserializable,
    FailureDetectorConfig, NodeState, Serializable, spawn_chitchat,
};
use parking_lot::Mutex;
use tidegate_ownership::VoterSet;
use tidegate_ownership::identity::Generation;
use tidegate_ownership::membership::{Member, MemberState, View};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::node_metadata::{key_values, member};
use super::incarnation::Incarnation;
use super::mesh::Mesh;
use crate::environment::Net;

/// What gossip needs to know to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the cluster.
    pub cluster: String,
    /// `host:port` of some members.
    pub seeds: Vec<String>,
    /// How often to gossip.
    pub interval: Duration,
}

/// What a node tells about itself; the rest of a [`Member`] follows from its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMetadata {
    /// The region it is in.
    pub region: String,
    /// The zone it is in.
    pub zone: String,
    /// Whether it takes keys.
    pub state: MemberState,
    /// Fingerprint of its rule book.
    pub rule_book: u64,
    /// Where its HTTP door listens.
    pub http: Option<SocketAddr>,
    /// Who counts for a majority, in its eyes.
    pub voter_set: VoterSet,
}

/// The handle of gossip; cheap to clone.
#[derive(Clone, Debug)]
pub struct Gossip {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    incarnation: Arc<Incarnation>,
    mesh: Mesh,
    /// Looks up the seeds.
    net: Arc<dyn Net>,
    node_metadata: watch::Sender<NodeMetadata>,
    view: watch::Sender<View>,
    running: watch::Sender<bool>,
    /// Where messages from peers go; replaced at each start of chitchat.
    inbox: Mutex<Option<mpsc::Sender<(SocketAddr, ChitchatMessage)>>>,
}

/// What changes while chitchat runs.
struct Changes {
    node_metadata: watch::Receiver<NodeMetadata>,
    generation: watch::Receiver<Generation>,
}

/// Why chitchat is not followed any more.
#[derive(PartialEq, Eq)]
enum Ended {
    /// Its task ended: peers hold versions that a fresh start would contradict.
    Failed,
    /// Somebody wants it so.
    Asked,
}

/// Messages from peers that wait for chitchat. At the bound: dropped, as datagrams would be.
const INBOX_MAX: usize = 256;
/// The pause before chitchat is started anew.
const RESTART_PAUSE: Duration = Duration::from_millis(500);
/// How often members that are not connected are dialed.
const DIAL_INTERVAL: Duration = Duration::from_millis(250);
/// Gossip of a member whose intervals average `m` is missed for `6 m` before it counts as dead:
/// somewhat over a second at the default interval.
const PHI_THRESHOLD: f64 = 6.0;
/// Intervals longer than this are not samples: a pause must not make the detector patient.
const SAMPLE_MAX: Duration = Duration::from_secs(2);
/// How long a dead member is still gossiped to, so that a healed partition finds itself.
const DEAD_MEMORY: Duration = Duration::from_secs(3_600);
/// How often seeds are looked up and dialed, if they are not connected.
const SEED_INTERVAL: Duration = Duration::from_secs(1);
/// How long deleted facts are remembered; none is ever deleted.
const TOMBSTONE_MEMORY: Duration = Duration::from_secs(600);

impl Gossip {
    /// Gossip of this node over `mesh`. Nothing is sent until [`Gossip::run`].
    pub fn new(
        options: Options,
        incarnation: Arc<Incarnation>,
        mesh: Mesh,
        net: Arc<dyn Net>,
        node_metadata: NodeMetadata,
    ) -> Self {
        let own = own_member(&incarnation, &mesh, &node_metadata);
        let shared = Shared {
            options,
            incarnation,
            mesh,
            net,
            node_metadata: watch::channel(node_metadata).0,
            view: watch::channel(View::new([own])).0,
            running: watch::channel(false).0,
            inbox: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The members as this node sees them; it is always one of them itself.
    pub fn views(&self) -> watch::Receiver<View> {
        self.shared.view.subscribe()
    }

    /// Whether membership is kept up to date; false while chitchat is being started anew.
    pub fn running(&self) -> watch::Receiver<bool> {
        self.shared.running.subscribe()
    }

    /// Changes what this node tells about itself.
    pub fn tell(&self, change: impl FnOnce(&mut NodeMetadata)) {
        self.shared.node_metadata.send_if_modified(|node_metadata| {
            let before = node_metadata.clone();
            change(node_metadata);
            *node_metadata != before
        });
        self.publish(&BTreeMap::new(), true);
    }

    /// Takes in a gossip message that an authenticated peer sent. Never waits.
    pub fn deliver(&self, from: SocketAddr, bytes: &[u8]) {
        let mut rest = bytes;
        match ChitchatMessage::deserialize(&mut rest) {
            Ok(message) => {
                if let Some(inbox) = &*self.shared.inbox.lock() {
                    let _ = inbox.try_send((from, message));
                }
            }
            Err(error) => tracing::warn!(%from, %error, "read a gossip message"),
        }
    }

    /// Gossips until `stop`, restarting chitchat whenever its task ends or the generation grows.
    pub async fn run(&self, stop: CancellationToken) {
        tokio::select! {
            () = self.keep_running(&stop) => {}
            () = self.seek_seeds() => {}
        }
    }

    async fn keep_running(&self, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            // Taken before the start reads them, so that no change falls between.
            let changes = Changes {
                node_metadata: self.shared.node_metadata.subscribe(),
                generation: self.shared.incarnation.changes(),
            };
            let mut has_failed = true;
            match self.start().await {
                Ok(chitchat) => {
                    self.shared.running.send_replace(true);
                    has_failed = self.follow(&chitchat, changes, stop).await == Ended::Failed;
                    chitchat.abort();
                }
                Err(error) => tracing::error!(%error, "start gossip"),
            }
            if stop.is_cancelled() {
                break;
            }
            self.shared.running.send_replace(false);
            if has_failed {
                self.shared.incarnation.renew();
            }
            let _ = tokio::time::timeout(RESTART_PAUSE, stop.cancelled()).await;
        }
    }

    async fn start(&self) -> anyhow::Result<ChitchatHandle> {
        let shared = &self.shared;
        let me = shared.mesh.advertise();
        let generation = shared.incarnation.generation();
        let config = ChitchatConfig {
            chitchat_id: ChitchatId::new(shared.incarnation.node().as_str(), generation.0, me),
            cluster_id: shared.options.cluster.clone(),
            gossip_interval: shared.options.interval,
            listen_addr: me,
            // Seeds are dialed by us: chitchat would look up names once a minute.
            seed_nodes: Vec::new(),
            failure_detector_config: FailureDetectorConfig {
                phi_threshold: PHI_THRESHOLD,
                sampling_window_size: 100,
                max_interval: SAMPLE_MAX,
                initial_interval: shared.options.interval.mul_f32(1.5),
                dead_node_grace_period: DEAD_MEMORY,
            },
            marked_for_deletion_grace_period: TOMBSTONE_MEMORY,
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let node_metadata = shared.node_metadata.borrow().clone();
        let transport = MeshTransport { gossip: self.clone() };
        spawn_chitchat(config, key_values(&node_metadata), &transport).await
    }

    /// Publishes views and facts until something asks for a new start.
    async fn follow(
        &self,
        chitchat: &ChitchatHandle,
        changes: Changes,
        stop: &CancellationToken,
    ) -> Ended {
        let Changes { mut node_metadata, mut generation } = changes;
        let mut live = chitchat.with_chitchat(|chitchat| chitchat.live_nodes_watcher()).await;
        let mut dial = tokio::time::interval(DIAL_INTERVAL);
        let ended = chitchat.termination_watcher();
        tokio::pin!(ended);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ended::Asked,
                outcome = &mut ended => {
                    tracing::error!(?outcome, "gossip stopped; start it anew");
                    return Ended::Failed;
                }
                _ = generation.changed() => {
                    tracing::warn!("a peer remembers a newer start of this node; start gossip anew");
                    return Ended::Asked;
                }
                Ok(()) = live.changed() => {
                    let nodes = live.borrow_and_update().clone();
                    self.publish(&nodes, false);
                }
                Ok(()) = node_metadata.changed() => {
                    let own = key_values(&node_metadata.borrow_and_update().clone());
                    chitchat.with_chitchat(|chitchat| {
                        for (key, value) in &own {
                            chitchat.self_node_state().set(key, value);
                        }
                    }).await;
                }
                _ = dial.tick() => self.seek(chitchat),
            }
        }
    }

    /// Dials members that are not connected, and gossips with peers that are no members yet: those
    /// that answered at a seed's address, or came by themselves.
    fn seek(&self, chitchat: &ChitchatHandle) {
        let shared = &self.shared;
        let view = shared.view.borrow().clone();
        for member in view.members() {
            shared.mesh.want(member.addr);
        }
        for peer in shared.mesh.peers().iter().filter(|peer| view.get(&peer.id).is_none()) {
            // The command's queue is chitchat's own and is drained as fast as it gossips.
            let _ = chitchat.gossip(peer.advertise);
        }
    }

    /// Looks up the seeds and dials what they stand for, again and again: names move. Looking up
    /// may take long, so this is a task of its own.
    async fn seek_seeds(&self) {
        loop {
            for seed in &self.shared.options.seeds {
                match self.shared.net.resolve(seed).await {
                    Ok(addrs) => addrs.into_iter().for_each(|addr| self.shared.mesh.want(addr)),
                    Err(error) => tracing::debug!(%seed, %error, "look up a seed"),
                }
            }
            tokio::time::sleep(SEED_INTERVAL).await;
        }
    }

    /// Replaces the view: this node as it knows itself, the others as `live` has them, or as they
    /// were when `keep_others`.
    fn publish(&self, live: &BTreeMap<ChitchatId, NodeState>, keep_others: bool) {
        let shared = &self.shared;
        let own = own_member(&shared.incarnation, &shared.mesh, &shared.node_metadata.borrow());
        let me = own.id.clone();
        shared.view.send_if_modified(|view| {
            let known = if keep_others { view.members() } else { &[] };
            let last_seen = live.iter().filter_map(|(id, state)| member(id, state));
            let others = known.iter().cloned().chain(last_seen).filter(|member| member.id != me);
            let next = View::new(others.chain([own.clone()]));
            let is_new = next != *view;
            if is_new {
                let epoch = format_args!("{:016x}", next.epoch());
                tracing::info!(members = next.members().len(), %epoch, "new view");
                *view = next;
            }
            is_new
        });
    }
}

/// This node as it sees itself.
fn own_member(incarnation: &Incarnation, mesh: &Mesh, node_metadata: &NodeMetadata) -> Member {
    Member {
        id: incarnation.node().clone(),
        generation: incarnation.generation(),
        addr: mesh.advertise(),
        region: node_metadata.region.clone(),
        zone: node_metadata.zone.clone(),
        state: node_metadata.state,
        rule_book: node_metadata.rule_book,
        http: node_metadata.http,
        voter_set: node_metadata.voter_set.clone(),
    }
}

// === chitchat's transport ===

struct MeshTransport {
    gossip: Gossip,
}

struct MeshSocket {
    mesh: Mesh,
    inbox: mpsc::Receiver<(SocketAddr, ChitchatMessage)>,
}

#[async_trait]
impl Transport for MeshTransport {
    async fn open(&self, _: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let (deliver, inbox) = mpsc::channel(INBOX_MAX);
        *self.gossip.shared.inbox.lock() = Some(deliver);
        Ok(Box::new(MeshSocket { mesh: self.gossip.shared.mesh.clone(), inbox }))
    }
}

#[async_trait]
impl Socket for MeshSocket {
    /// Runs inside chitchat's loop, so it queues or drops and never waits for a dial.
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        self.mesh.tell(to, message.serialize_to_vec());
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        self.inbox.recv().await.ok_or_else(|| anyhow::anyhow!("the mesh is closed"))
    }
}

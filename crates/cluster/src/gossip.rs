//! Membership by gossip: chitchat over the mesh.
//!
//! chitchat's own UDP transport accepts every packet, so a stranger could add members. This
//! transport sends its messages through the mesh, whose peers are authenticated. It carries a few
//! short key-value pairs per node, never a counter.
//!
//! chitchat runs as one task, which ends silently on a message that it cannot reconcile. The loop
//! in [`Gossip::run`] logs that and restarts it under a new generation: peers hold versions of the
//! old generation that a fresh start would contradict.

mod node_metadata;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{
    ChitchatConfig, ChitchatHandle, ChitchatId, ChitchatMessage, Deserializable,
    FailureDetectorConfig, Serializable, spawn_chitchat,
};
use parking_lot::Mutex;
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::membership::{Member, View};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::node_metadata::{key_values, member, reach_losses};
use crate::environment::Net;
use crate::incarnation::Incarnation;
use crate::mesh::Mesh;

#[derive(Clone, Debug)]
pub struct Options {
    pub cluster: String,
    /// `host:port` of some members.
    pub seeds: Vec<String>,
    /// Between two rounds of gossip.
    pub interval: Duration,
}

/// The handle of gossip.
#[derive(Debug)]
pub struct Gossip {
    options: Options,
    incarnation: Arc<Incarnation>,
    mesh: Arc<Mesh>,
    /// Resolves the seeds.
    net: Arc<dyn Net>,
    own: watch::Sender<Own>,
    view: watch::Sender<View>,
    /// Of the others that reach all of their region.
    reach_losses: Mutex<BTreeMap<NodeId, u64>>,
    running: watch::Sender<bool>,
    /// Messages from peers to chitchat; replaced at each of its starts.
    inbox: Mutex<Option<mpsc::Sender<(SocketAddr, ChitchatMessage)>>>,
}

/// What this node publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Own {
    /// Its generation is that of the start.
    member: Member,
    reach_losses: Option<u64>,
}

/// Why [`Gossip::follow`] returned.
#[derive(PartialEq, Eq)]
enum Ended {
    /// The task of chitchat ended: peers hold versions that a fresh start would contradict.
    Failed,
    /// Restart or shutdown requested.
    Requested,
}

/// Messages from peers that wait for chitchat. At the bound they are dropped, as datagrams would
/// be.
const INBOX_MAX: usize = 256;
/// The pause before chitchat is restarted.
const RESTART_PAUSE: Duration = Duration::from_millis(500);
/// How often members that are not connected are dialed.
const DIAL_INTERVAL: Duration = Duration::from_millis(250);
/// A member whose messages arrive every `m` on average is dead after `6 m` without one: somewhat
/// over a second at the default interval.
const PHI_THRESHOLD: f64 = 6.0;
/// Longer intervals are no samples: one pause must not slow down the failure detector.
const SAMPLE_MAX: Duration = Duration::from_secs(2);
/// How long a dead member is remembered. For half of this it is in every message, which has room
/// for somewhat more than [`PEERS_MAX`](crate::mesh::PEERS_MAX) starts of nodes. After
/// a longer partition nodes find each other again by dialing: seeds, and members of the cluster
/// map. Every connected peer gets gossip.
const DEAD_NODE_GRACE_PERIOD: Duration = Duration::from_secs(60);
/// How often seeds are resolved, and dialed if they are not connected.
const SEED_INTERVAL: Duration = Duration::from_secs(1);
/// How long chitchat keeps tombstones. No key is ever deleted.
const TOMBSTONE_GRACE_PERIOD: Duration = Duration::from_secs(600);

impl Gossip {
    /// Sends nothing until [`Gossip::run`].
    pub fn new(
        options: Options,
        incarnation: Arc<Incarnation>,
        mesh: Arc<Mesh>,
        net: Arc<dyn Net>,
        own: Member,
    ) -> Arc<Self> {
        Arc::new(Self {
            options,
            incarnation,
            mesh,
            net,
            view: watch::channel(View::new([own.clone()])).0,
            own: watch::channel(Own { member: own, reach_losses: None }).0,
            reach_losses: Mutex::default(),
            running: watch::channel(false).0,
            inbox: Mutex::default(),
        })
    }

    /// The live members, always including this node.
    pub fn views(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    /// Whether membership is kept up to date; false while chitchat restarts.
    pub fn running(&self) -> watch::Receiver<bool> {
        self.running.subscribe()
    }

    /// Changes the metadata of this node and publishes it.
    pub fn publish(&self, change: impl FnOnce(&mut Member)) {
        self.own.send_if_modified(|own| {
            let before = own.clone();
            change(&mut own.member);
            *own != before
        });
        self.replace_view(|view| view.members().to_vec());
    }

    /// Publishes how often this node has lost another one of its region out of reach; `None` while
    /// it does not reach all.
    pub fn publish_reach_losses(&self, losses: Option<u64>) {
        self.own.send_if_modified(|own| std::mem::replace(&mut own.reach_losses, losses) != losses);
    }

    /// The same of each of these other nodes, if all of them reach all of their region. It takes
    /// some rounds until a change is known here; a node of an earlier release does not say it.
    pub fn reach_losses<'a>(&self, nodes: impl Iterator<Item = &'a NodeId>) -> Option<Vec<u64>> {
        let reach_losses = self.reach_losses.lock();
        nodes.map(|node| reach_losses.get(node).copied()).collect()
    }

    /// Delivers a gossip message of an authenticated peer. Never waits.
    pub fn deliver(&self, from: SocketAddr, bytes: &[u8]) {
        let mut rest = bytes;
        match ChitchatMessage::deserialize(&mut rest) {
            Ok(message) => {
                if let Some(inbox) = &*self.inbox.lock() {
                    let _ = inbox.try_send((from, message));
                }
            }
            Err(error) => tracing::warn!(%from, %error, "dropped a malformed gossip message"),
        }
    }

    /// Runs chitchat until `stop`. Restarts it when its task ends or the generation changes.
    pub async fn run(self: &Arc<Self>, stop: CancellationToken) {
        tokio::select! {
            () = self.keep_running(&stop) => {}
            () = self.dial_seeds() => {}
        }
    }

    async fn keep_running(self: &Arc<Self>, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            // Subscribed before the start reads the values, so that no change is lost.
            let own = self.own.subscribe();
            let generation = self.incarnation.subscribe();
            let mut has_failed = true;
            match self.start().await {
                Ok(chitchat) => {
                    self.running.send_replace(true);
                    let ended = self.follow(&chitchat, own, generation, stop).await;
                    has_failed = ended == Ended::Failed;
                    chitchat.abort();
                }
                Err(error) => {
                    tracing::error!(
                        %error, "failed to start gossip; membership is stale until a retry succeeds"
                    );
                }
            }
            if stop.is_cancelled() {
                break;
            }
            self.running.send_replace(false);
            if has_failed {
                self.incarnation.renew();
            }
            let _ = tokio::time::timeout(RESTART_PAUSE, stop.cancelled()).await;
        }
    }

    async fn start(self: &Arc<Self>) -> anyhow::Result<ChitchatHandle> {
        let me = self.mesh.advertise;
        let generation = self.incarnation.generation();
        let config = ChitchatConfig {
            chitchat_id: ChitchatId::new(self.incarnation.node().as_str(), generation.0, me),
            cluster_id: self.options.cluster.clone(),
            gossip_interval: self.options.interval,
            listen_addr: me,
            // `dial_seeds` does this: chitchat resolves names only once a minute.
            seed_nodes: Vec::new(),
            failure_detector_config: FailureDetectorConfig {
                phi_threshold: PHI_THRESHOLD,
                sampling_window_size: 100,
                max_interval: SAMPLE_MAX,
                initial_interval: self.options.interval.mul_f32(1.5),
                dead_node_grace_period: DEAD_NODE_GRACE_PERIOD,
            },
            marked_for_deletion_grace_period: TOMBSTONE_GRACE_PERIOD,
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let own = published(&self.own.borrow());
        let transport = MeshTransport(self.clone());
        spawn_chitchat(config, own, &transport).await
    }

    /// Publishes views and metadata until chitchat ends or has to be restarted.
    async fn follow(
        &self,
        chitchat: &ChitchatHandle,
        mut own: watch::Receiver<Own>,
        mut generation: watch::Receiver<Generation>,
        stop: &CancellationToken,
    ) -> Ended {
        let mut live = chitchat.with_chitchat(|chitchat| chitchat.live_nodes_watcher()).await;
        let mut dial = tokio::time::interval(DIAL_INTERVAL);
        let ended = chitchat.termination_watcher();
        tokio::pin!(ended);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ended::Requested,
                outcome = &mut ended => {
                    tracing::error!(?outcome, "gossip task ended; restarting it");
                    return Ended::Failed;
                }
                _ = generation.changed() => {
                    tracing::warn!("generation of this node changed; restarting gossip");
                    return Ended::Requested;
                }
                Ok(()) = live.changed() => {
                    let live = live.borrow_and_update().clone();
                    let losses = live.iter().filter_map(|(id, state)| {
                        Some((NodeId::new(&id.node_id).ok()?, reach_losses(state)?))
                    });
                    *self.reach_losses.lock() = losses.collect();
                    let members = live.iter().filter_map(|(id, state)| member(id, state));
                    self.replace_view(|_| members.collect());
                }
                Ok(()) = own.changed() => {
                    let own = published(&own.borrow_and_update());
                    chitchat.with_chitchat(|chitchat| {
                        for (key, value) in &own {
                            chitchat.self_node_state().set(key, value);
                        }
                    }).await;
                }
                _ = dial.tick() => self.dial_members(chitchat),
            }
        }
    }

    /// Dials members that are not connected, and gossips with peers that are not members yet: nodes
    /// at a seed's address, and nodes that dialed us.
    fn dial_members(&self, chitchat: &ChitchatHandle) {
        let view = self.view.borrow().clone();
        for member in view.members() {
            self.mesh.request_dial(member.addr);
        }
        for peer in self.mesh.peers().iter().filter(|peer| view.get(&peer.id).is_none()) {
            let _ = chitchat.gossip(peer.advertise);
        }
    }

    /// Resolves and dials the seeds repeatedly, because their addresses may change. Runs beside
    /// chitchat, because resolving may take long.
    async fn dial_seeds(&self) {
        loop {
            for seed in &self.options.seeds {
                match self.net.resolve(seed).await {
                    Ok(addrs) => {
                        for addr in addrs {
                            self.mesh.request_dial(addr);
                        }
                    }
                    Err(error) => tracing::debug!(%seed, %error, "failed to resolve a seed"),
                }
            }
            tokio::time::sleep(SEED_INTERVAL).await;
        }
    }

    /// Replaces the view: this node by its current metadata, the others by those in `members`.
    fn replace_view(&self, members: impl FnOnce(&View) -> Vec<Member>) {
        let generation = self.incarnation.generation();
        let own = Member { generation, ..self.own.borrow().member.clone() };
        self.view.send_if_modified(|view| {
            let others = members(view).into_iter().filter(|member| member.id != own.id);
            let next = View::new(others.chain([own.clone()]));
            let is_new = next != *view;
            if is_new {
                log_change(view, &next);
                *view = next;
            }
            is_new
        });
    }
}

fn published(own: &Own) -> Vec<(String, String)> {
    key_values(&own.member, own.reach_losses)
}

/// Who is a member is of interest to operators. What members publish of themselves, such as the
/// fingerprint of rules that were reloaded, changes often, at all of them.
fn log_change(before: &View, next: &View) {
    if !next.has_members_of(before) {
        let epoch = format_args!("{:016x}", next.fingerprint());
        tracing::info!(members = next.members().len(), %epoch, "membership changed");
        return;
    }
    for member in next.members().iter().filter(|member| before.get(&member.id) != Some(*member)) {
        let Member { id, rule_book, http, has_lease, .. } = member;
        let rule_book = format_args!("{rule_book:016x}");
        tracing::debug!(%id, %rule_book, ?http, has_lease, "a member published a change");
    }
}

// === transport of chitchat ===

struct MeshTransport(Arc<Gossip>);

struct MeshSocket {
    mesh: Arc<Mesh>,
    inbox: mpsc::Receiver<(SocketAddr, ChitchatMessage)>,
}

#[async_trait]
impl Transport for MeshTransport {
    async fn open(&self, _: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let (deliver, inbox) = mpsc::channel(INBOX_MAX);
        *self.0.inbox.lock() = Some(deliver);
        Ok(Box::new(MeshSocket { mesh: self.0.mesh.clone(), inbox }))
    }
}

#[async_trait]
impl Socket for MeshSocket {
    /// Runs inside the loop of chitchat, so it queues or drops and never waits for a dial.
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        self.mesh.send_gossip(to, message.serialize_to_vec());
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        self.inbox.recv().await.ok_or_else(|| anyhow::anyhow!("the mesh is closed"))
    }
}

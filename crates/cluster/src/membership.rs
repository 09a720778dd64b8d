//! Drives the consensus engine: time, messages, the disk; and the way of a node into the map. A
//! node has one for the map of its region and, with `global.founders`, one for the global map.
//!
//! One task does all that is done in an order: what the engine returns is saved, then sent. A
//! committed map is in force here before it is on the disk of this node, so that a slow disk costs
//! no lease: it is on those of a majority. A voter reports it only afterwards
//! ([`Membership::saved`]), because it must not forget a map that it has reported.
//!
//! The leader proposes what [`Autopilot`] returns and sends committed maps to all members. Members
//! that miss one fetch it, because every ping and its answer name the sender's epoch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_limiter::units::{Monotonic, Span};
use tidegate_ownership::autopilot::{Autopilot, Complaints, JoinRequest, Settings};
use tidegate_ownership::cluster_map::{ClusterId, HomeRegions, MapMember, MapState, Voters};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::{ClusterMap, Epoch, Identity, MemberId};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::consensus::disk::{Disk, Saved};
use crate::consensus::engine::{Engine, Message, Output, TICK_MS, number};
use crate::consensus::founding::{Founders, accepts, first_map, voters_to_found};
use crate::incarnation::Incarnation;
use crate::mesh::wire::{Call, Group, MapCall, Reply};
use crate::mesh::{Mesh, Peer, StreamClass};

#[derive(Clone, Debug)]
pub struct Options {
    pub group: Group,
    /// This run of the node ([`MapMember::start`]).
    pub start: u64,
    pub region: String,
    /// In the global map the region.
    pub zone: String,
    /// Of the first map of a cluster that is founded here.
    pub homes: HomeRegions,
    pub founders: Founders,
    pub autopilot: Settings,
    /// Random: the id of a cluster that is founded here, and the seed of election timeouts.
    pub random: u128,
}

/// The cluster map of this node's region, and the engine that agrees on it.
#[derive(Debug)]
pub struct Membership {
    options: Options,
    me: Identity,
    incarnation: Arc<Incarnation>,
    disk: Arc<dyn Disk>,
    mesh: Arc<Mesh>,
    start: Instant,
    state: Mutex<State>,
    /// The newest map that is in force; epoch 0 before the first.
    map: watch::Sender<Arc<ClusterMap>>,
    /// The newest map that is on the disk.
    saved: watch::Sender<(ClusterId, Epoch)>,
    /// The last attempt to save failed.
    has_failed_to_save: AtomicBool,
    wake: Notify,
}

#[derive(Debug)]
struct State {
    founders: Founders,
    engine: Option<Engine>,
    autopilot: Autopilot,
    /// The term in which this node leads, and `autopilot` was told what it knows.
    leads_in: Option<u64>,
    /// The first map of the cluster that this node takes part in founding.
    founding: Option<ClusterMap>,
    /// A committed map that is not in force yet.
    incoming: Option<ClusterMap>,
    /// Whether the record on the disk is older than this state.
    is_unsaved: bool,
    /// The newest epoch that each voter has reported.
    reports: BTreeMap<Identity, Epoch>,
    /// What is known about the maps of peers.
    peers: BTreeMap<NodeId, PeerMap>,
    leader: Option<NodeId>,
    /// Requests that reached no node that knows the leader. The next goes to another: one that
    /// does not vote may know none, or one that is gone, for ever.
    misses: usize,
    /// How many clusters this process has begun to found.
    foundings: u128,
    /// Since when this node could found, if nothing changes. By an order: since when it intends
    /// to, has begun to, or goes on after it stood still.
    may_found_since: Option<Monotonic>,
    /// How often peers had named another generation of this node when it last looked whether it
    /// founds.
    sightings: u64,
    /// When that was seen to have grown.
    sighted_at: Option<Monotonic>,
    /// When peers were last known that are not any more, for [`ALONE_FOR`].
    lost: BTreeMap<NodeId, Monotonic>,
    /// It has proposed the first members of the cluster that it founds by an order, and gives way
    /// to no other founder any more.
    has_admitted: bool,
    /// The last tick.
    ticked_at: Monotonic,
    /// Since when this node leads a cluster without members.
    lacks_members_since: Option<Monotonic>,
    /// This node may become a member: it has compared its clock.
    may_join: bool,
    /// The first map in which this run of this node was a member.
    admitted_at: Option<Epoch>,
    /// It is about to leave; true once it holds nothing any more.
    is_leaving: Option<bool>,
    /// Clusters of peers that are not this node's, as they were logged.
    foreign: BTreeSet<ClusterId>,
}

/// The map of a peer, by its last ping or answer.
#[derive(Clone, Debug)]
struct PeerMap {
    identity: Identity,
    /// Of its map; without one, of the cluster that it has begun to found, or [`INTENDED`].
    cluster: ClusterId,
    epoch: Epoch,
    at: Monotonic,
    /// When the last ping that it answered was sent.
    asked_at: Monotonic,
}

/// What the answer to a ping says beside the map.
#[derive(Clone, Copy, Debug)]
pub struct PingAnswer {
    /// The newest epoch that the peer reports as a voter.
    pub report: Epoch,
    /// When the ping was sent, by [`Membership::now`].
    pub asked_at: Monotonic,
}

/// Why an order of an operator was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForgetError {
    #[error("{0} is not in the cluster map; `tidegate members` lists who is")]
    Unknown(NodeId),
    #[error(
        "{0} is a member; drain it, or stop it and wait until it is down, which takes a majority of \
         the voters (`tidegate members`)"
    )]
    Present(NodeId),
    #[error(
        "{0} is the only home of global keys: there is no other region to which they could move \
         (`tidegate regions`)"
    )]
    NoOtherHome(String),
    #[error("{0} is no home of global keys; `tidegate regions` lists those that are")]
    NoHome(String),
    #[error("this node does not lead; ask node {0}, which does")]
    NotLeader(NodeId),
    #[error(
        "this node knows no leader: ask one of the voters; if they know none either, no majority \
         of them is there, and the cluster map cannot be changed"
    )]
    NoLeader,
}

/// A call to make, with what its reply is for.
#[derive(Debug)]
enum Request {
    Join(NodeId, JoinRequest),
    Leave(NodeId, MemberId, bool),
    Fetch(NodeId, ClusterId, Epoch),
    Found(NodeId, ClusterMap),
}

/// Interval of [`Engine::tick`]. Ten to twenty of them are an election timeout.
fn tick(group: Group) -> Duration {
    match group {
        Group::Region => Duration::from_millis(TICK_MS),
        Group::Global => Duration::from_millis(5 * TICK_MS),
    }
}

/// What a peer said longer ago does not count: some pings.
fn peer_age_max(group: Group) -> Span {
    match group {
        Group::Region => Span::from_secs(1),
        Group::Global => Span::from_secs(6),
    }
}

fn request_timeout(group: Group) -> Duration {
    match group {
        Group::Region => Duration::from_millis(500),
        Group::Global => Duration::from_secs(2),
    }
}

/// Ticks between two attempts to join, leave or found.
const REQUEST_TICKS: u64 = 2;
/// How long the same nodes have to be there before one of them founds.
const FOUND_AFTER: Span = Span::from_millis(500);
/// How long a node founds nothing after a peer has seen a newer start of it, or after it has lost a
/// peer that does not come back. While another process runs as this node both happen about once a
/// second.
const ALONE_FOR: Span = Span::from_secs(3);
/// How long a node that has begun to found by an order looks for another one that has, before it
/// admits its first members.
const ADMIT_AFTER: Span = Span::from_secs(2);
/// A node whose ticks are so far apart has stood still, and knows nothing of its peers.
const STANDSTILL: Span = Span::from_secs(1);
/// Named in place of a cluster by a node that intends to found one, and has not begun.
const INTENDED: ClusterId = ClusterId(u128::MAX);
/// The pause before a record that could not be saved is tried again.
const SAVE_PAUSE: Duration = Duration::from_millis(250);
/// How long a leader of no members waits until the founders, and all that are there, have asked.
const FIRST_MEMBERS_WAIT: Span = Span::from_secs(2);
/// Foreign clusters that are logged once each.
const FOREIGN_MAX: usize = 16;

impl PeerMap {
    fn is_founding(&self) -> bool {
        self.epoch == Epoch(0) && self.cluster != ClusterId::default()
    }

    fn has_begun(&self) -> bool {
        self.is_founding() && self.cluster != INTENDED
    }
}

impl Membership {
    /// The node of `saved`. Nothing is sent until [`Membership::run`].
    pub fn new(
        options: Options,
        saved: Saved,
        incarnation: Arc<Incarnation>,
        disk: Arc<dyn Disk>,
        mesh: Arc<Mesh>,
    ) -> Arc<Self> {
        let me = saved.identity();
        let seed = seed(&options);
        let engine = saved.engine.as_ref().map(|record| Engine::restart(&me, record, seed));
        // A founder that stopped before the cluster existed goes on founding.
        let founding = match (&saved.map, &engine) {
            (None, Some(engine)) => engine.snapshot_map(),
            _ => None,
        };
        let state = State {
            founders: options.founders.clone(),
            engine,
            autopilot: Autopilot::new(options.autopilot.clone()),
            leads_in: None,
            founding,
            incoming: None,
            is_unsaved: true,
            reports: BTreeMap::new(),
            peers: BTreeMap::new(),
            leader: None,
            misses: 0,
            foundings: 0,
            may_found_since: None,
            sightings: incarnation.sightings(),
            sighted_at: None,
            lost: BTreeMap::new(),
            has_admitted: false,
            ticked_at: Monotonic::default(),
            lacks_members_since: None,
            may_join: false,
            admitted_at: None,
            is_leaving: None,
            foreign: BTreeSet::new(),
        };
        let map = saved.map.unwrap_or_default();
        let saved = watch::channel((map.cluster, map.epoch)).0;
        let map = watch::channel(Arc::new(map)).0;
        let (start, wake) = (Instant::now(), Notify::new());
        let state = Mutex::new(state);
        Arc::new(Self {
            options,
            me,
            incarnation,
            disk,
            mesh,
            start,
            state,
            map,
            saved,
            has_failed_to_save: AtomicBool::new(false),
            wake,
        })
    }

    // === inputs ===

    /// Lets this node found or join a cluster. To be called once it has compared its clock with
    /// those of its peers.
    pub fn seek(&self) {
        self.state.lock().may_join = true;
        self.wake.notify_one();
    }

    /// An operator wants this node to found a cluster of its own.
    ///
    /// # Errors
    ///
    /// It knows a cluster or takes part in founding one, or a peer does.
    pub fn bootstrap(&self) -> Result<(), String> {
        let state = &mut *self.state.lock();
        let map = self.map.borrow().clone();
        if map.epoch > Epoch(0) {
            return Err(format!("this node knows cluster {} already", map.cluster));
        }
        if let Some((id, peer)) = state.peers.iter().find(|(_, peer)| peer.epoch > Epoch(0)) {
            return Err(format!("node {id} knows cluster {}; this node joins it", peer.cluster));
        }
        if state.engine.is_some() {
            return Err(
                "this node takes part in founding a cluster already; start the other founders, or \
                 stop this node, empty its node.data_dir and start it again"
                    .to_owned(),
            );
        }
        if state.founders != Founders::None {
            return Err(
                "cluster.founders or cluster.bootstrap_expect is set: the founders found the \
                 cluster when enough of them are there, and would found another one beside this; \
                 remove the key on all nodes to found by hand"
                    .to_owned(),
            );
        }
        if let Some((id, _)) = state.peers.iter().find(|(_, peer)| peer.is_founding()) {
            return Err(format!("node {id} is founding a cluster; this node joins it"));
        }
        state.founders = Founders::This;
        (state.may_found_since, state.has_admitted) = (Some(self.now()), false);
        self.wake.notify_one();
        Ok(())
    }

    /// Whether this node is to become a member of the global map: it stands for its region, or
    /// votes.
    pub fn stand(&self, stands: bool) {
        self.state.lock().may_join = stands;
    }

    /// `peer` called. Returns the reply to send.
    pub fn call_received(&self, peer: &Peer, call: MapCall) -> Reply {
        match call {
            MapCall::Consensus(message) => self.message_received(*message),
            MapCall::Newer(map) => self.map_received(&map),
            MapCall::Fetch { cluster, epoch } => {
                let newer = self.newer_than(cluster, epoch);
                return Reply::Map(newer.map(|map| Box::new(ClusterMap::clone(&map))));
            }
            MapCall::Join(request) => return self.join_requested(peer, request),
            MapCall::Leave { member, is_empty } => {
                return self.leave_requested(peer, member, is_empty);
            }
            MapCall::Found(map) => self.founding_received(*map),
        }
        Reply::Done
    }

    /// A message of another engine arrived.
    fn message_received(&self, message: Message) {
        let state = &mut *self.state.lock();
        let (has_map, lineage) = {
            let map = self.map.borrow();
            (map.epoch > Epoch(0), map.lineage())
        };
        // A member that is to vote has no engine before the first message.
        if state.engine.is_none() && has_map && lineage == message.cluster {
            state.engine = Some(Engine::join(&self.me, lineage, seed(&self.options)));
        }
        if let Some(engine) = &mut state.engine {
            engine.step(&self.me, message);
            self.wake.notify_one();
        }
    }

    /// A map arrived, pushed or fetched. Ignored unless it is newer than the own one, or the first
    /// one and has this node; every node follows the global map. It is in force at once: a majority
    /// has it, and the disk may still be busy with the one before.
    fn map_received(&self, map: &ClusterMap) {
        let mut locked = self.state.lock();
        let state = &mut *locked;
        let own = self.map.borrow().clone();
        let newest = state.incoming.as_ref().map_or(own.epoch, |map| map.epoch.max(own.epoch));
        let is_own = own.cluster == map.cluster && own.epoch > Epoch(0);
        let is_followed = self.options.group == Group::Global || self.is_in(map);
        let is_first = own.epoch == Epoch(0) && is_followed;
        if map.epoch > newest && (is_own || is_first) {
            // That of before a recovery by hand, or of another founding: it can agree on nothing
            // any more, and another one begins with the first message of the new voters.
            let is_over = |engine: &Engine| engine.cluster() != map.lineage();
            if state.engine.as_ref().is_some_and(is_over) {
                (state.engine, state.founding, state.leader) = (None, None, None);
                state.reports.clear();
            }
            state.is_unsaved = true;
            drop(locked);
            self.put_in_force(map);
            self.wake.notify_one();
        }
    }

    /// The first map of a cluster that a peer proposes to found.
    fn founding_received(&self, map: ClusterMap) {
        let state = &mut *self.state.lock();
        let is_free = self.map.borrow().epoch == Epoch(0)
            && state.engine.as_ref().is_none_or(Engine::is_untouched);
        let is_other = state.founding.as_ref() != Some(&map);
        if is_other && is_free && state.may_join && accepts(&state.founders, &self.me, &map) {
            self.take_part(state, map);
        }
    }

    /// A peer's ping, or the answer to one of this node's, named its map.
    pub fn peer_seen(
        &self,
        peer: &Peer,
        cluster: ClusterId,
        epoch: Epoch,
        answer: Option<PingAnswer>,
    ) {
        if !self.includes(peer) {
            return;
        }
        let now = self.now();
        let state = &mut *self.state.lock();
        let identity = peer.identity.clone();
        let before = state.peers.get(&peer.id).filter(|before| before.identity == identity);
        let asked_before = before.map_or_else(Monotonic::default, |before| before.asked_at);
        let asked_at = answer.map_or(asked_before, |answer| answer.asked_at.max(asked_before));
        let known = PeerMap { identity, cluster, epoch, at: now, asked_at };
        state.peers.insert(peer.id.clone(), known);
        state.lost.remove(&peer.id);
        let own = self.map.borrow().clone();
        if let Some(PingAnswer { report, .. }) = answer
            && cluster == own.cluster
        {
            let reported = state.reports.entry(peer.identity.clone()).or_default();
            *reported = report.max(*reported);
        }
    }

    /// `member` complains about others, or this node does.
    pub fn complained(&self, member: MemberId, complaints: Complaints) {
        self.state.lock().autopilot.complained(self.now(), member, complaints);
    }

    /// What this node reports as a voter.
    pub fn reported(&self, report: Epoch) {
        self.state.lock().reports.insert(self.me.clone(), report);
    }

    /// `peer` asks to join. Returns the reply to send.
    fn join_requested(&self, peer: &Peer, request: JoinRequest) -> Reply {
        let is_own_region = match self.options.group {
            Group::Region => true,
            Group::Global => request.zone == peer.region,
        };
        if request.identity != peer.identity || !self.includes(peer) || !is_own_region {
            return Reply::Malformed;
        }
        self.as_leader(|state| state.autopilot.join_requested(request))
    }

    /// `peer` is going to leave, or has handed everything over. Returns the reply to send.
    fn leave_requested(&self, peer: &Peer, member: MemberId, is_empty: bool) -> Reply {
        let is_own = |map: &ClusterMap| map.get(&peer.id).is_some_and(|one| one.id == member);
        if !is_own(&self.map.borrow()) {
            return Reply::Done;
        }
        let now = self.now();
        self.as_leader(|state| {
            if is_empty {
                state.autopilot.has_left(member);
            } else {
                state.autopilot.drain_requested(now, member);
            }
        })
    }

    /// An operator says that a region is lost: it is no home of global keys any more once it has no
    /// member.
    ///
    /// # Errors
    ///
    /// The region is the only home or none, or this node does not lead.
    pub fn region_lost(&self, region: &str) -> Result<(), ForgetError> {
        let now = self.now();
        match &self.map.borrow().homes.names[..] {
            [] => {}
            homes if homes.iter().all(|home| home != region) => {
                return Err(ForgetError::NoHome(region.to_owned()));
            }
            [_] => return Err(ForgetError::NoOtherHome(region.to_owned())),
            _ => {}
        }
        led(self.as_leader(|state| state.autopilot.region_lost(now, region.to_owned())))
    }

    /// The regions that have copied to another one all counts of the keys that would move there.
    pub fn regions_copied(&self, pairs: BTreeSet<(String, String)>) {
        self.state.lock().autopilot.regions_copied(pairs);
    }

    /// This node is about to leave; `is_empty` once it holds nothing any more.
    pub fn leave(&self, is_empty: bool) {
        self.state.lock().is_leaving = Some(is_empty);
        self.wake.notify_one();
    }

    /// Removes an evicted member from the map before `cluster.forget_after` has passed.
    ///
    /// # Errors
    ///
    /// It is no evicted member, or this node does not lead.
    pub fn forget(&self, node: &NodeId) -> Result<(), ForgetError> {
        let map = self.map.borrow().clone();
        let member = map.get(node).ok_or_else(|| ForgetError::Unknown(node.clone()))?;
        if member.state != MapState::Down {
            return Err(ForgetError::Present(node.clone()));
        }
        let id = member.id;
        led(self.as_leader(|state| state.autopilot.forget_requested(id)))
    }

    // === state ===

    /// The cluster that this node has begun to found, or [`INTENDED`], for peers without a
    /// cluster; 0 if there is none.
    pub fn founding(&self) -> ClusterId {
        let state = self.state.lock();
        match &state.founding {
            _ if self.map.borrow().epoch > Epoch(0) => ClusterId::default(),
            Some(map) => map.cluster,
            None if state.may_found_since.is_some() => INTENDED,
            None => ClusterId::default(),
        }
    }

    /// The map in force; epoch 0 before the first.
    pub fn maps(&self) -> watch::Receiver<Arc<ClusterMap>> {
        self.map.subscribe()
    }

    /// The cluster and the epoch of the newest map that this node will know after a restart.
    pub fn saved(&self) -> watch::Receiver<(ClusterId, Epoch)> {
        self.saved.subscribe()
    }

    /// Whether the last attempt to save the map succeeded: until one does this node cannot vote.
    /// `None` without a disk.
    pub fn is_saving(&self) -> Option<bool> {
        let has_failed = self.has_failed_to_save.load(Ordering::Relaxed);
        self.disk.is_durable().then_some(!has_failed)
    }

    /// The most voters that the map is to have.
    pub fn voters_wanted(&self) -> usize {
        self.options.autopilot.voters
    }

    /// This node, as it votes.
    pub fn identity(&self) -> &Identity {
        &self.me
    }

    /// The newest map, if it is newer than `epoch` of `cluster`, or that is another cluster.
    fn newer_than(&self, cluster: ClusterId, epoch: Epoch) -> Option<Arc<ClusterMap>> {
        let map = self.map.borrow().clone();
        let is_newer = map.epoch > epoch || map.cluster != cluster;
        (map.epoch > Epoch(0) && is_newer).then_some(map)
    }

    /// Whether this node is a member, by the map in force.
    pub fn is_member(&self) -> bool {
        self.is_in(&self.map.borrow())
    }

    /// Whether this node has a map: it has been a member before.
    pub fn has_map(&self) -> bool {
        self.map.borrow().epoch > Epoch(0)
    }

    /// The leader of the engine, if this node votes and knows one.
    pub fn leader(&self) -> Option<NodeId> {
        let state = self.state.lock();
        self.leader_of(&state)
    }

    /// Whether this node leads.
    pub fn is_leader(&self) -> bool {
        self.state.lock().engine.as_ref().is_some_and(Engine::is_leader)
    }

    // === loop ===

    /// Runs until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = self.mesh.ticks.every(tick(self.options.group));
        let mut requests = JoinSet::new();
        let mut tick = 0_u64;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {
                    tick += 1;
                    let due = {
                        let state = &mut *self.state.lock();
                        let before = std::mem::replace(&mut state.ticked_at, self.now());
                        if self.now() > before.plus(STANDSTILL) && state.may_found_since.is_some() {
                            state.may_found_since = Some(self.now());
                        }
                        if let Some(engine) = &mut state.engine {
                            engine.tick();
                        }
                        self.lead(state);
                        if tick.is_multiple_of(REQUEST_TICKS) && requests.is_empty() {
                            self.requests(state)
                        } else {
                            Vec::new()
                        }
                    };
                    for request in due {
                        requests.spawn(self.clone().request(request));
                    }
                }
                () = self.wake.notified() => {}
                Some(_) = requests.join_next() => continue,
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.carry_out() => {}
            }
        }
    }

    /// Puts in force, saves and sends what the engine returned.
    async fn carry_out(&self) {
        let (output, saved, is_elsewhere) = {
            let state = &mut *self.state.lock();
            let is_alone = |engine: &Option<Engine>| engine.as_ref().is_some_and(Engine::is_alone);
            let was_alone = is_alone(&state.engine);
            let output = state.engine.as_mut().map(Engine::take_output).unwrap_or_default();
            let Output { record, messages, committed } = output;
            // What the only voter has committed is nowhere before it is on its disk.
            let is_elsewhere = !was_alone && !is_alone(&state.engine);
            let own = self.map.borrow().clone();
            if let Some(map) = committed
                && map.epoch > own.epoch.max(Epoch(1))
                && state.incoming.as_ref().is_none_or(|incoming| map.epoch > incoming.epoch)
            {
                state.incoming = Some(map);
            }
            state.is_unsaved |= record.is_some() || state.incoming.is_some();
            let is_due = std::mem::take(&mut state.is_unsaved);
            let own = (own.epoch > Epoch(0)).then_some(&*own);
            let map = state.incoming.as_ref().or(own);
            let saved = is_due.then(|| Saved {
                node: self.me.node.clone(),
                birth: self.me.birth,
                map: map.cloned(),
                engine: state.engine.as_ref().map(Engine::record),
            });
            (messages, saved, is_elsewhere)
        };
        if let Some(map) = saved.as_ref().and_then(|saved| saved.map.as_ref())
            && is_elsewhere
        {
            self.put_in_force(map);
        }
        if let Some(saved) = &saved {
            while let Err(error) = saved.save(&*self.disk).await {
                if !self.has_failed_to_save.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        %error,
                        "failed to save the cluster map in node.data_dir; this node cannot vote \
                         until it can be written, which is tried again all the time"
                    );
                }
                tokio::time::sleep(SAVE_PAUSE).await;
            }
            if self.has_failed_to_save.swap(false, Ordering::Relaxed) {
                tracing::info!("the cluster map in node.data_dir is saved again");
            }
        }
        for (to, message) in output {
            self.send(to, message);
        }
        if let Some(map) = saved.and_then(|saved| saved.map) {
            self.put_in_force(&map);
            self.saved.send_replace((map.cluster, map.epoch));
        }
    }

    fn put_in_force(&self, map: &ClusterMap) {
        let map = Arc::new(map.clone());
        let leads = {
            let state = &mut *self.state.lock();
            if state.incoming.as_ref().is_some_and(|incoming| incoming.epoch <= map.epoch) {
                state.incoming = None;
            }
            state.founding = None;
            let is_in = self.is_in(&map);
            if self.options.group == Group::Region {
                self.incarnation.is_in_map(is_in);
            }
            if is_in {
                let first = state.admitted_at.map_or(map.epoch, |first| first.min(map.epoch));
                state.admitted_at = Some(first);
            } else if self.options.group == Group::Region
                // The map of before this run was admitted may be on the disk only now.
                && state.admitted_at.is_some_and(|first| first < map.epoch)
                && let Some(other) = map.get(&self.me.node)
                && other.state != MapState::Down
            {
                self.incarnation.displaced_by(other);
            }
            state.engine.as_ref().is_some_and(Engine::is_leader)
        };
        let is_new = self.map.send_if_modified(|own| {
            let is_new = map.epoch > own.epoch || map.cluster != own.cluster;
            if is_new {
                *own = map.clone();
            }
            is_new
        });
        if !is_new {
            return;
        }
        let (members, voters) = (map.present().count(), map.voters.current.len());
        let epoch = map.epoch;
        if self.options.group == Group::Region {
            tracing::info!(%epoch, members, voters, "cluster map changed");
        } else {
            let homes = map.homes.names.join(" ");
            tracing::info!(%epoch, members, voters, homes, "global map changed");
        }
        if leads {
            for member in map.present().filter(|member| member.identity != self.me) {
                let newer = MapCall::Newer(Box::new(ClusterMap::clone(&map)));
                self.notify(&member.identity.node, newer);
            }
        }
    }

    /// Proposes the next map, if this node leads.
    fn lead(&self, state: &mut State) {
        if !self.leads(state) || !self.may_admit(state) {
            return;
        }
        let is_by_hand = self.founds_by_hand(state);
        let State {
            engine: Some(engine),
            autopilot,
            founding,
            reports,
            incoming,
            peers,
            lacks_members_since,
            has_admitted,
            ..
        } = state
        else {
            return;
        };
        if incoming.is_some() {
            return;
        }
        let in_force = self.map.borrow().clone();
        let map = match founding {
            Some(first) if in_force.epoch == Epoch(0) => first,
            _ => &*in_force,
        };
        if map.lineage() != engine.cluster() {
            return;
        }
        engine.set_voters(map.voters.current.iter().map(number));
        let reported = |voter: &Identity| reports.get(voter).copied().unwrap_or_default();
        if self.options.group == Group::Region && map.present().next().is_none() {
            // The first members are admitted together. One that left a cluster whose voters lost
            // their memory, or was recovered, has counts, and a node takes ranges only with those
            // of all members.
            let since = *lacks_members_since.get_or_insert(self.now());
            let founders = map.voters.current.iter().map(|voter| &voter.node);
            let will_ask = |(_, peer): &(&NodeId, &PeerMap)| {
                peer.epoch == Epoch(0) || peer.cluster == map.cluster
            };
            let others = peers.iter().filter(will_ask).map(|(node, _)| node);
            let mut expected = founders.chain(others);
            if self.now() < since.plus(FIRST_MEMBERS_WAIT)
                && expected.any(|node| !autopilot.is_asked_by(node))
            {
                return;
            }
        } else {
            *lacks_members_since = None;
        }
        if engine.is_ready_to_propose()
            && let Some(next) = autopilot.next(self.now(), map, reported)
        {
            *has_admitted |= is_by_hand;
            engine.propose(&next);
        }
    }

    /// Whether the founding that this node takes part in, or is going to begin, is by an order: of
    /// this run, or of one before that has not ended.
    fn founds_by_hand(&self, state: &State) -> bool {
        let is_alone = |map: &ClusterMap| map.voters.all().eq([&self.me]);
        self.map.borrow().epoch == Epoch(0)
            && self.options.founders == Founders::None
            && (state.founders == Founders::This || state.founding.as_ref().is_some_and(is_alone))
    }

    /// The founder to which this node leaves it, by an order, to found: one that has begun comes
    /// before one that has not, then the order of names decides.
    fn founder_before(&self, state: &State) -> Option<NodeId> {
        let has_begun = state.founding.is_some();
        let is_before = |(id, peer): &(&NodeId, &PeerMap)| {
            if peer.has_begun() == has_begun { **id < self.me.node } else { peer.has_begun() }
        };
        let founding = state.peers.iter().filter(|(_, peer)| peer.is_founding());
        founding.filter(is_before).map(|(id, _)| id.clone()).next()
    }

    /// Whether every peer has answered since `since`: one that knows a cluster, or has the same
    /// order to found, has said so.
    fn all_have_answered(state: &State, since: Monotonic) -> bool {
        state.peers.values().all(|peer| peer.asked_at >= since)
    }

    /// Whether the first members of a cluster that this node founds by an order may be admitted:
    /// from then on it gives way to no other founder.
    fn may_admit(&self, state: &State) -> bool {
        if !self.founds_by_hand(state) || state.has_admitted {
            return true;
        }
        state.may_found_since.is_some_and(|since| {
            self.now() >= since.plus(ADMIT_AFTER)
                && Self::all_have_answered(state, since)
                && self.founder_before(state).is_none()
        })
    }

    /// Whether this node leads. What it was told when it led before is forgotten: nodes that asked
    /// to join may have ended since, and it may have led and stopped between two ticks.
    fn leads(&self, state: &mut State) -> bool {
        let leads_in = state.engine.as_ref().and_then(Engine::leads_in);
        let before = std::mem::replace(&mut state.leads_in, leads_in);
        if before != leads_in {
            state.lacks_members_since = None;
        }
        if before.is_some() && before != leads_in {
            state.autopilot = Autopilot::new(self.options.autopilot.clone());
        }
        let leads = leads_in.is_some();
        if leads != before.is_some() {
            let group = self.options.group;
            tracing::info!(?group, leads, "leader of the cluster map changed");
        }
        leads
    }

    fn send(&self, to: u64, message: Message) {
        let name = {
            let state = self.state.lock();
            let map = self.map.borrow();
            let founding = state.founding.iter().flat_map(|map| map.voters.all());
            let members = map.members.iter().map(|member: &MapMember| &member.identity);
            let mut known = map.voters.all().chain(members).chain(founding);
            known.find(|identity| number(identity) == to).map(|identity| identity.node.clone())
        };
        if let Some(name) = name {
            self.notify(&name, MapCall::Consensus(Box::new(message)));
        }
    }

    fn notify(&self, to: &NodeId, call: MapCall) {
        self.mesh.notify(to, StreamClass::Control, Call::Map(self.options.group, call));
    }

    // === the way into the map, and out of it ===

    /// What this node has to ask its peers for.
    fn requests(&self, state: &mut State) -> Vec<Request> {
        let now = self.now();
        let age_max = peer_age_max(self.options.group);
        state.lost.retain(|_, at| now < at.plus(ALONE_FOR));
        state.peers.retain(|id, peer| {
            let is_heard = now < peer.at.plus(age_max);
            if !is_heard {
                state.lost.insert(id.clone(), now);
            }
            is_heard
        });
        let own = self.map.borrow().clone();
        let newer = state.peers.iter().find(|(_, peer)| {
            peer.cluster == own.cluster && own.epoch > Epoch(0) && peer.epoch > own.epoch
        });
        if let Some((node, _)) = newer {
            return vec![Request::Fetch(node.clone(), own.cluster, own.epoch)];
        }
        // An order to found a cluster does not outlast the first that there is.
        let knows_cluster =
            own.epoch > Epoch(0) || state.peers.values().any(|peer| peer.epoch > Epoch(0));
        if state.founders == Founders::This && knows_cluster {
            state.founders = Founders::None;
        }
        // By the newest map that there is: in an older one voters may be missing that were replaced
        // since.
        self.check_cluster(state, &own);
        if self.is_in(&own) {
            return self.leaving(state, &own);
        }
        let is_seeking = state.may_join && state.is_leaving.is_none();
        if !is_seeking && self.options.group == Group::Region {
            return Vec::new();
        }
        let is_established = |(_, peer): &(&NodeId, &PeerMap)| {
            let is_same = own.epoch == Epoch(0) || peer.cluster == own.cluster;
            peer.epoch > Epoch(0) && is_same
        };
        let established = state.peers.iter().filter(is_established);
        let chosen = nth_in_turn(established, state.misses);
        let Some((node, peer)) = chosen.map(|(node, peer)| (node.clone(), peer.clone())) else {
            return match own.epoch {
                _ if !is_seeking => Vec::new(),
                Epoch(0) => self.found(state),
                // Alone, or together with others that were not admitted yet: one of them may lead.
                _ => self.ask_to_join(state, None),
            };
        };
        // Another founding has succeeded; this one has no majority any more.
        let is_other = |engine: &Engine| engine.cluster() != peer.cluster;
        if own.epoch == Epoch(0) && state.engine.as_ref().is_some_and(is_other) {
            (state.engine, state.founding) = (None, None);
        }
        if own.epoch == Epoch(0) && self.options.group == Group::Global {
            return vec![Request::Fetch(node, peer.cluster, Epoch(0))];
        }
        if is_seeking { self.ask_to_join(state, Some(node)) } else { Vec::new() }
    }

    fn ask_to_join(&self, state: &mut State, known: Option<NodeId>) -> Vec<Request> {
        let request = JoinRequest {
            identity: self.me.clone(),
            start: self.options.start,
            generation: self.incarnation.generation(),
            addr: self.mesh.advertise,
            zone: self.options.zone.clone(),
            versions: self.mesh.versions,
        };
        if self.leads(state) {
            state.autopilot.join_requested(request);
            return Vec::new();
        }
        let leader = self.leader_of(state).or(known);
        leader.map(|leader| Request::Join(leader, request)).into_iter().collect()
    }

    fn leaving(&self, state: &mut State, own: &ClusterMap) -> Vec<Request> {
        let (Some(is_empty), Some(member)) = (state.is_leaving, own.get(&self.me.node)) else {
            return Vec::new();
        };
        if member.state == MapState::Draining && !is_empty {
            return Vec::new();
        }
        if self.leads(state) {
            if is_empty {
                state.autopilot.has_left(member.id);
            }
            state.autopilot.drain_requested(self.now(), member.id);
            return Vec::new();
        }
        let others = || own.present().filter(|one| one.identity != self.me);
        let any = || nth_in_turn(others(), state.misses).map(|one| one.identity.node.clone());
        let leader = self.leader_of(state).or_else(any);
        leader.map(|to| Request::Leave(to, member.id, is_empty)).into_iter().collect()
    }

    /// Founds a cluster when it is this node's turn, and repeats a founding to those that were not
    /// there. Not while another process runs as this node: it may be a member of a cluster.
    fn found(&self, state: &mut State) -> Vec<Request> {
        let now = self.now();
        let sightings = self.incarnation.sightings();
        if std::mem::replace(&mut state.sightings, sightings) != sightings {
            state.sighted_at = Some(now);
        }
        let fresh: BTreeMap<NodeId, Identity> =
            state.peers.iter().map(|(id, peer)| (id.clone(), peer.identity.clone())).collect();
        if self.founds_by_hand(state) && !state.has_admitted {
            state.may_found_since.get_or_insert(now);
            if let Some(first) = self.founder_before(state) {
                tracing::warn!(
                    node = %first,
                    "that node is founding a cluster as well; this one joins it, and founds none"
                );
                state.founders = Founders::None;
                Self::give_up_agreement(state);
            }
        }
        if state.founding.is_none() && state.engine.is_none() {
            let mut before_me = state.peers.range(..&self.me.node);
            let first = before_me.find(|(_, peer)| peer.is_founding());
            let voters = voters_to_found(&state.founders, &self.me, &fresh);
            let Some(voters) = voters.filter(|_| first.is_none()) else {
                state.may_found_since = None;
                // Another one may found, and then waits for this one (`FIRST_MEMBERS_WAIT`).
                let is_region = self.options.group == Group::Region;
                let asked = nth_in_turn(fresh.into_keys(), state.misses).filter(|_| is_region);
                return self.ask_to_join(state, asked);
            };
            let since = *state.may_found_since.get_or_insert(now);
            // A peer that knows a cluster needs time to say so.
            if now < since.plus(FOUND_AFTER) || !Self::all_have_answered(state, since) {
                return Vec::new();
            }
            // A process of this node that is a member of one takes its connections in turn.
            let is_sighted = state.sighted_at.is_some_and(|at| now < at.plus(ALONE_FOR));
            if is_sighted || !state.lost.is_empty() {
                return Vec::new();
            }
            // Another one each time: a map of the cluster before would be taken for a newer one.
            let number = self.options.random.wrapping_add(state.foundings);
            let cluster = ClusterId(number.clamp(1, INTENDED.0 - 1));
            state.foundings += 1;
            let map = first_map(cluster, voters, self.options.homes.clone());
            tracing::info!(%cluster, voters = ?map.voters.current, "founding a cluster");
            self.take_part(state, map);
            state.may_found_since = Some(now);
        }
        if state.engine.as_ref().is_some_and(Engine::is_leader) {
            return self.ask_to_join(state, None);
        }
        let Some(map) = &state.founding else { return Vec::new() };
        let mut requests: Vec<Request> = map
            .voters
            .current
            .iter()
            .filter(|voter| fresh.get(&voter.node) == Some(voter))
            .map(|voter| Request::Found(voter.node.clone(), map.clone()))
            .collect();
        requests.extend(self.ask_to_join(state, None));
        requests
    }

    fn take_part(&self, state: &mut State, map: ClusterMap) {
        state.engine = Some(Engine::found(&self.me, &map, seed(&self.options)));
        state.founding = Some(map);
        self.wake.notify_one();
    }

    /// Logs peers of another cluster, and gives up a map, or a founding, that a majority can never
    /// agree on again.
    fn check_cluster(&self, state: &mut State, own: &ClusterMap) {
        for (id, peer) in &state.peers {
            let is_foreign =
                own.epoch > Epoch(0) && peer.epoch > Epoch(0) && peer.cluster != own.cluster;
            if is_foreign && state.foreign.len() < FOREIGN_MAX && state.foreign.insert(peer.cluster)
            {
                tracing::error!(
                    peer = %id, theirs = %peer.cluster, own = %own.cluster,
                    "peer belongs to another cluster; to move this node there, stop it and empty \
                     its node.data_dir"
                );
            }
        }
        let voters = match &state.founding {
            Some(first) if own.epoch == Epoch(0) => &first.voters,
            _ => &own.voters,
        };
        if voters.current.is_empty() || self.may_agree(state, voters) {
            return;
        }
        if own.epoch == Epoch(0) {
            tracing::warn!("founders restarted before the cluster existed; founding it anew");
        } else if self.disk.is_durable() {
            return;
        } else {
            tracing::warn!(
                cluster = %own.cluster,
                "a majority of the voters has restarted without its memory; leaving that cluster"
            );
            state.reports.clear();
            self.map.send_replace(Arc::default());
            if self.options.group == Group::Region {
                self.incarnation.is_in_map(false);
            }
        }
        Self::give_up_agreement(state);
    }

    /// Forgets the engine, and what it has agreed on or was to agree on.
    fn give_up_agreement(state: &mut State) {
        (state.engine, state.founding, state.incoming) = (None, None, None);
        (state.leader, state.may_found_since, state.is_unsaved) = (None, None, true);
        (state.lacks_members_since, state.has_admitted) = (None, false);
    }

    /// Whether a majority of `voters` may still live. One that is there with another birth has lost
    /// its memory, and a founder that was not seen never votes under the birth that stands for it.
    fn may_agree(&self, state: &State, voters: &Voters) -> bool {
        let is_gone = |voter: &Identity| {
            let peer = state.peers.get(&voter.node).map(|peer| &peer.identity);
            let now = if voter.node == self.me.node { Some(&self.me) } else { peer };
            voter.birth == Identity::UNKNOWN_BIRTH || now.is_some_and(|now| now != voter)
        };
        voters.is_majority(|voter| !is_gone(voter))
    }

    async fn request(self: Arc<Self>, request: Request) {
        let (to, call) = match request {
            Request::Join(to, request) => (to, MapCall::Join(request)),
            Request::Leave(to, member, is_empty) => (to, MapCall::Leave { member, is_empty }),
            Request::Fetch(to, cluster, epoch) => (to, MapCall::Fetch { cluster, epoch }),
            Request::Found(to, map) => (to, MapCall::Found(Box::new(map))),
        };
        let group = self.options.group;
        let call = Call::Map(group, call);
        let timeout = request_timeout(group);
        let reply = self.mesh.call(&to, StreamClass::Control, call, timeout).await;
        match reply {
            Ok(Reply::Map(Some(map))) => self.map_received(&map),
            Ok(Reply::NotLeader(Some(leader))) => self.state.lock().leader = Some(leader),
            Ok(Reply::NotLeader(None)) | Err(_) => {
                let state = &mut *self.state.lock();
                state.leader = None;
                state.misses = state.misses.wrapping_add(1);
            }
            Ok(_) => {}
        }
    }

    // === state of both ===

    fn as_leader(&self, act: impl FnOnce(&mut State)) -> Reply {
        let state = &mut *self.state.lock();
        if self.leads(state) {
            act(state);
            self.wake.notify_one();
            return Reply::Done;
        }
        Reply::NotLeader(self.leader_of(state))
    }

    /// Whether `peer` may be a member of this map.
    fn includes(&self, peer: &Peer) -> bool {
        self.options.group == Group::Global || peer.region == self.options.region
    }

    /// By the own engine, if this node votes, or as a peer answered. The engine of a node that does
    /// not vote any more gets no messages, and would name the last leader that it knew for ever.
    fn leader_of(&self, state: &State) -> Option<NodeId> {
        let map = self.map.borrow();
        let founding = state.founding.iter().flat_map(|map| map.voters.all());
        let voters: Vec<&Identity> = map.voters.all().chain(founding).collect();
        let engine = state.engine.as_ref().filter(|_| voters.contains(&&self.me));
        let Some(leader) = engine.and_then(Engine::leader) else {
            return state.leader.clone();
        };
        let leader = voters.into_iter().find(|voter| number(voter) == leader);
        leader.map(|voter| voter.node.clone()).filter(|node| *node != self.me.node)
    }

    /// Whether this run of this node is a member by `map`.
    pub fn is_in(&self, map: &ClusterMap) -> bool {
        map.get(&self.me.node).is_some_and(|member| {
            member.identity == self.me
                && member.start == self.options.start
                && member.state != MapState::Down
        })
    }

    /// The time since this node began, by the clock of this module.
    pub fn now(&self) -> Monotonic {
        let since = self.start.elapsed();
        Monotonic::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Whether the leader has done it, as an operator wanted.
fn led(reply: Reply) -> Result<(), ForgetError> {
    match reply {
        Reply::Done => Ok(()),
        Reply::NotLeader(Some(leader)) => Err(ForgetError::NotLeader(leader)),
        _ => Err(ForgetError::NoLeader),
    }
}

/// One of `all`, the next one for each number that follows.
fn nth_in_turn<T>(all: impl Iterator<Item = T>, number: usize) -> Option<T> {
    let mut all: Vec<T> = all.collect();
    let at = number.checked_rem(all.len())?;
    Some(all.swap_remove(at))
}

fn seed(options: &Options) -> u64 {
    let bytes = options.random.to_le_bytes();
    let (low, _) = bytes.split_at(8);
    low.iter().fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}

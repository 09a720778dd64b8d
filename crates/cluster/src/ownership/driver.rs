//! Drives the ownership state machines: reports maps, pings, messages and time to them, carries out
//! the transfer steps they return, and publishes the result, to decisions as [`Ownership`] and to
//! everything else as a [`Topology`].
//!
//! One lock guards all state machines. It is held for a computation, never across I/O. Every change
//! of the held ranges ends in `Driver::publish` under the same lock, so decisions never see
//! ranges that the state machines have frozen or released.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_limiter::store::{Cursor, KeyHash, Store};
use tidegate_limiter::units::{Monotonic, Span};
use tidegate_ownership::autopilot::{COMPLAINTS_MAX, Complaints};
use tidegate_ownership::cluster_map::{ClusterId, MapState};
use tidegate_ownership::grants::Grants;
use tidegate_ownership::homes::Homes;
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::membership::View;
use tidegate_ownership::region_right::RegionRight;
use tidegate_ownership::ring::Ring;
use tidegate_ownership::route::{Admission, Topology};
use tidegate_ownership::standstill::ClockReading;
use tidegate_ownership::{
    ClusterMap, Epoch, HandoffReply, Identity, MemberId, QuorumRule, RingMembers, RingOwnership,
    TransferStep,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::counters::Counters;
use super::handle::{Leases, OwnedRanges, Ownership};
use super::takeover::Takeover;
use super::topology::{Known, homes};
use crate::count;
use crate::mesh::wire::{Call, GlobalPong, Handoff, HandoffStep, PingStatus, PongStatus, Reply};
use crate::mesh::{Mesh, PING_INTERVAL, Peer, StreamClass, running};
use crate::replication::Replicator;

/// All but the identity must be the same on every node of the region.
#[derive(Clone, Debug)]
pub struct Options {
    pub me: Identity,
    /// This run of the node, as its entry in the map names it.
    pub start: u64,
    pub region: String,
    /// Virtual nodes per member.
    pub vnodes: u32,
    /// How long a vote grant is valid.
    pub lease: Span,
    pub quorum: QuorumRule,
    /// How long a member may be silent before this node, as a voter, says so.
    pub down_after: Span,
    /// How long a grant of a global voter is valid; `None` without a global map: then the homes are
    /// those of the configuration.
    pub global_lease: Option<Span>,
    /// All regions that may be homes of global keys.
    pub home_regions: Vec<String>,
}

/// Keeps what this node owns.
#[derive(Debug)]
pub struct Driver {
    options: Options,
    ownership: Ownership,
    topology: Arc<ArcSwap<Topology>>,
    store: Arc<Store>,
    machines: Mutex<Machines>,
    /// Wakes [`Driver::run`] to look for steps.
    wake: Notify,
    pub counters: Counters,
}

#[derive(Debug)]
struct Machines {
    ring: RingOwnership,
    /// `None` without a global map.
    region_right: Option<RegionRight>,
    grants: Grants,
    /// The newest map; epoch 0 before the first.
    map: Arc<ClusterMap>,
    /// The newest epoch of its cluster that is on the disk.
    saved: Epoch,
    /// The live members according to gossip.
    view: View,
    /// About how many edges the region has.
    edges: u32,
    /// When each member was heard last; members that were never heard since they were admitted.
    heard: BTreeMap<MemberId, Monotonic>,
    /// The last tick; a long pause before this one means that this node did not run.
    ticked: Monotonic,
    /// Pings sent to each peer since its last answer.
    unanswered: BTreeMap<NodeId, (Generation, u32)>,
    /// The last reading of each peer's clock.
    readings: BTreeMap<NodeId, (Generation, ClockReading)>,
    /// Members for which a step is in progress.
    busy: BTreeSet<NodeId>,
    /// Members that refused states in a transfer of this epoch.
    rejections: BTreeMap<NodeId, Rejection>,
    /// Ranges of evicted members that are to be claimed.
    takeovers: Vec<Takeover>,
    /// Members that are subscribed to the changes of ranges they are going to hold.
    subscribed: BTreeSet<NodeId>,
    published: OwnedRanges,
    /// As it was logged last.
    has_lease: bool,
    /// See [`Driver::clock_is_right`].
    clock_is_right: bool,
    /// What [`Counters::copied`] was when it grew last, and when.
    copied: u64,
    copied_at: Monotonic,
}

/// Refused states of one epoch; a new epoch does not wait for those of the old one.
#[derive(Clone, Copy, Debug)]
struct Rejection {
    epoch: Epoch,
    count: u32,
    retry_at: Monotonic,
}

/// How a transfer step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepOutcome {
    Done,
    Failed,
    /// The peer did not merge some states of ranges that this node decides.
    Refused,
}

impl StepOutcome {
    fn succeeded(is_done: bool) -> Self {
        if is_done { Self::Done } else { Self::Failed }
    }
}

/// The least standstill of the clock after which the lease begins anew: half of what a voter waits
/// after its grant has expired for this node ([`Grants::report`]).
fn standstill_max(lease: Span) -> Span {
    Span::from_nanos(lease.as_nanos() / 8)
}

/// Pings of peers that neither vote nor are in use: never more often than the first, and often
/// enough for the comparison of clocks.
const IDLE_PING_INTERVAL_MIN: Duration = Duration::from_secs(1);
const IDLE_PING_INTERVAL_MAX: Duration = Duration::from_secs(60);
/// How often the state machines are ticked when there are no events.
const TICK: Duration = Duration::from_millis(20);
/// Consecutive pings without an answer after which their sender, if it has no lease, gets no grant.
const WITHHOLD_AFTER_PINGS: u32 = 4;
/// Consecutive unanswered pings after which it counts as silent: one second.
const PARTITIONED_AFTER_PINGS: u32 = 10;
/// After a longer pause between two ticks this node was stopped, and has missed the pings of
/// others.
const STALL_MIN: Span = Span::from_millis(250);
/// How long after the last copied count a node counts as copying.
const COPYING_FOR: Span = Span::from_secs(2);
/// The pause after a failed step.
const STEP_PAUSE: Duration = Duration::from_millis(10);
/// The pause after states were refused: the cause lasts, and all of them are sent again.
const REFUSED_PAUSE: Span = Span::from_secs(1);
/// How often a transfer waits because states were refused. Then it goes on without them: a member
/// that waits for ranges decides none of its own, and a store may stay full for as long as a flood.
const REFUSALS_MAX: u32 = 3;
/// Timeout of a transfer message; then it is sent again.
const MESSAGE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long ranges may stay frozen while their last changes are sent; then the transfer restarts.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

impl Driver {
    /// A node without a map. The driver is the only writer of `ownership` and `topology` from now
    /// on.
    pub fn new(
        options: Options,
        ownership: Ownership,
        topology: Arc<ArcSwap<Topology>>,
        store: Arc<Store>,
    ) -> Arc<Self> {
        let now = ownership.monotonic();
        let Options { me, start, lease, quorum, .. } = &options;
        let machines = Machines {
            ring: RingOwnership::new(me.clone(), *start, *lease, *quorum),
            region_right: options
                .global_lease
                .map(|lease| RegionRight::new(me.clone(), options.region.clone(), lease)),
            grants: Grants::new(now, *lease),
            map: Arc::default(),
            saved: Epoch(0),
            view: View::default(),
            edges: 0,
            heard: BTreeMap::new(),
            ticked: now,
            unanswered: BTreeMap::new(),
            readings: BTreeMap::new(),
            busy: BTreeSet::new(),
            rejections: BTreeMap::new(),
            takeovers: Vec::new(),
            subscribed: BTreeSet::new(),
            published: OwnedRanges::default(),
            has_lease: false,
            copied: 0,
            copied_at: Monotonic::START,
            clock_is_right: false,
        };
        Arc::new(Self {
            options,
            ownership,
            topology,
            store,
            machines: Mutex::new(machines),
            wake: Notify::new(),
            counters: Counters::default(),
        })
    }

    // === inputs ===

    /// Gossip reported other metadata, or members of other regions.
    pub fn view_changed(&self, view: &View) {
        let machines = &mut *self.machines.lock();
        machines.view = view.clone();
        self.update_topology(machines);
    }

    /// About how many edges the region has.
    pub fn edges_changed(&self, edges: u32) {
        let machines = &mut *self.machines.lock();
        if machines.edges != edges {
            machines.edges = edges;
            self.update_topology(machines);
        }
    }

    /// The newest map, without what it grants: what an edge learns of a pong.
    pub fn pong_to_edge(&self) -> PongStatus {
        let running = running(self.ownership.monotonic());
        let map = self.map();
        PongStatus { cluster: map.cluster, epoch: map.epoch, running, ..PongStatus::default() }
    }

    /// A newer map is committed. It need not be on the disk of this node.
    pub fn map_changed(&self, map: &Arc<ClusterMap>) {
        let now = self.ownership.monotonic();
        let machines = &mut *self.machines.lock();
        if map.cluster == machines.map.cluster && map.epoch <= machines.map.epoch {
            return;
        }
        if map.cluster != machines.map.cluster && machines.map.epoch > Epoch(0) {
            self.forget_cluster(machines, now);
        }
        let (last_map, last_topology) =
            (std::mem::replace(&mut machines.map, map.clone()), self.topology.load_full());
        let heard = machines.heard.clone();
        machines.heard.retain(|id, _| map.has(*id));
        machines.unanswered.retain(|id, _| map.get(id).is_some());
        machines.readings.retain(|id, _| map.get(id).is_some());
        for member in map.present() {
            machines.heard.entry(member.id).or_insert(now);
        }
        let had_ranges = !machines.ring.held().is_empty();
        let before = machines.ring.own_id();
        self.update_topology(machines);
        let topology = self.topology.load();
        let ring = topology.ring();
        let arcs = ring.map(Ring::all_arcs).unwrap_or_default();
        let arcs_of = |node: &NodeId| arcs.get(node).cloned().unwrap_or_default();
        machines.ring.follow(RingMembers::new(map.clone(), arcs_of));
        self.expect_takeovers(machines, &last_map, &last_topology, &heard);
        // The last member that leaves has no other to hand over to.
        let me = &self.options.me.node;
        let was_leaving = last_map.get(me).is_some_and(|member| member.state == MapState::Draining);
        let has_left = was_leaving && map.get(me).is_none();
        if had_ranges && machines.ring.own_id() != before && !has_left {
            count(&self.counters.evictions, 1);
            tracing::warn!(
                epoch = %map.epoch,
                "this node was evicted from the cluster map; dropped all owned ranges"
            );
        }
        self.tick(machines);
        self.wake.notify_one();
    }

    /// The maps of `cluster` up to `epoch` are on the disk of this node, or it has none.
    pub fn map_saved(&self, cluster: ClusterId, epoch: Epoch) {
        let machines = &mut *self.machines.lock();
        if cluster == machines.map.cluster && epoch > machines.saved {
            machines.saved = epoch;
            self.tick(machines);
            self.wake.notify_one();
        }
    }

    /// A newer global map is committed. It need not be on the disk of this node.
    pub fn global_map_changed(&self, map: &Arc<ClusterMap>) {
        let machines = &mut *self.machines.lock();
        let Some(right) = &mut machines.region_right else { return };
        right.follow(map);
        self.update_topology(machines);
        self.publish(machines);
    }

    /// The global voter `voter` answered the ping that was sent at `ping_sent`, with the epoch of
    /// `cluster` that it reports, and the one under which it grants this region a lease.
    pub fn global_pong_received(&self, voter: &Identity, ping_sent: Monotonic, pong: GlobalPong) {
        let machines = &mut *self.machines.lock();
        let Some(right) = &mut machines.region_right else { return };
        if pong.cluster == right.map().cluster {
            right.pong_received(voter, ping_sent, pong.report, pong.granted);
            self.publish(machines);
        }
    }

    /// This node, as a global voter, reports `epoch` of the newest global map that it follows.
    pub fn global_reported(&self, epoch: Epoch) {
        let machines = &mut *self.machines.lock();
        let Some(right) = &mut machines.region_right else { return };
        right.report_received(&self.options.me, epoch);
        self.publish(machines);
    }

    /// How often to ping `peer` while it is not in use. Voters grant leases and watch the members,
    /// so a member pings every voter once in a [`PING_INTERVAL`]: the voter hears it by that, and
    /// need not ping it. Of the other peers, whose clocks are compared, one is pinged in each of
    /// these intervals, however many there are. A node that is no member looks for one among all.
    pub fn ping_interval(&self, peer: &Peer) -> Duration {
        let machines = self.machines.lock();
        if machines.map.voters.contains(&peer.identity) || machines.ring.own_id().is_none() {
            return PING_INTERVAL;
        }
        let others = u32::try_from(machines.view.members().len()).unwrap_or(u32::MAX);
        PING_INTERVAL.saturating_mul(others).clamp(IDLE_PING_INTERVAL_MIN, IDLE_PING_INTERVAL_MAX)
    }

    /// The status for a ping to `peer`, which is counted as unanswered from now on.
    pub fn ping_status(&self, peer: &Peer) -> PingStatus {
        let machines = &mut *self.machines.lock();
        let none = (peer.generation, 0);
        let (of, unanswered) = machines.unanswered.entry(peer.id.clone()).or_insert(none);
        // Pings that a crashed incarnation did not answer do not count for its successor.
        if *of < peer.generation {
            (*of, *unanswered) = none;
        }
        let before = if *of == peer.generation { *unanswered } else { 0 };
        if *of == peer.generation {
            *unanswered = unanswered.saturating_add(1);
        }
        PingStatus {
            cluster: machines.map.cluster,
            epoch: machines.map.epoch,
            member: machines.ring.own_id(),
            has_lease: self.ownership.has_lease(),
            unanswered: before,
            complaints: self.complaints(machines),
        }
    }

    /// `peer` sent a ping with its status. Returns what this node answers as a voter, and the
    /// sender's admission, if it is the one that it claims.
    pub fn ping_received(
        &self,
        peer: &Peer,
        status: &PingStatus,
    ) -> (PongStatus, Option<MemberId>) {
        let now = self.ownership.monotonic();
        let machines = &mut *self.machines.lock();
        let is_one_way = |pings: u32| !status.has_lease && status.unanswered >= pings;
        // A peer that has no lease and gets no answers is behind a one-way partition. Grants do not
        // reach it; they would only delay its eviction.
        let may_grant = !is_one_way(WITHHOLD_AFTER_PINGS);
        let is_silent = is_one_way(PARTITIONED_AFTER_PINGS);
        let same_cluster = status.cluster == machines.map.cluster;
        let member = status.member.filter(|id| {
            let member = machines.map.get(&peer.id);
            same_cluster && member.is_some_and(|one| one.id == *id && one.identity == peer.identity)
        });
        let Machines { ring, grants, map, saved, heard, .. } = machines;
        if let Some(id) = member
            && !is_silent
        {
            heard.insert(id, now);
        }
        if let Some(id) = member
            && status.complaints.waits_for.is_empty()
        {
            ring.peer_waits_for_none(&peer.id, id, status.epoch);
        }
        let grant = member.filter(|_| may_grant).and_then(|id| grants.grant(now, id, map));
        let report = grants.report(now, map, *saved);
        let running = running(now);
        (PongStatus { cluster: map.cluster, epoch: map.epoch, report, grant, running }, member)
    }

    /// `peer` answered a ping.
    pub fn pong_received(&self, peer: &Peer, reading: ClockReading, status: PongStatus) {
        let sent = reading.sent;
        let machines = &mut *self.machines.lock();
        // Kept over connections: a machine that was stopped for long finds them closed.
        let before = machines.readings.insert(peer.id.clone(), (peer.generation, reading));
        let before = before.filter(|(generation, _)| *generation == peer.generation);
        let stood_still = before.map_or(Span::ZERO, |(_, before)| before.lost_until(reading));
        if stood_still > standstill_max(self.options.lease) {
            count(&self.counters.standstills, 1);
            tracing::warn!(
                peer = %peer.id, for_ms = stood_still.as_nanos() / 1_000_000,
                "this node's clock stood still, as when a virtual machine is stopped: the lease \
                 begins anew"
            );
            let now = self.ownership.monotonic();
            machines.ring.clock_stood_still(now);
            if let Some(right) = &mut machines.region_right {
                right.clock_stood_still(now);
            }
            self.publish(machines);
        }
        machines.unanswered.insert(peer.id.clone(), (peer.generation, 0));
        if status.cluster != machines.map.cluster || status.epoch == Epoch(0) {
            return;
        }
        let PongStatus { report, grant, .. } = status;
        // Every voter answers ten times a second, so what can wait for the next tick does.
        if machines.ring.pong_received(&peer.identity, sent, report, grant) {
            self.tick(machines);
            self.wake.notify_one();
        }
    }

    /// `peer` sent a step of a range transfer to this node. Returns the reply.
    pub fn handoff_received(&self, peer: &Peer, handoff: Handoff) -> HandoffReply {
        let machines = &mut *self.machines.lock();
        let (ring, counters) = (&mut machines.ring, &self.counters);
        let reply = match handoff.step {
            HandoffStep::Offer => ring.offer_received(&peer.id, handoff.epoch),
            HandoffStep::Release { number, ranges } => {
                let Handoff { member, epoch, .. } = handoff;
                let reply = ring.release_received(&peer.id, member, epoch, number, &ranges);
                if reply == HandoffReply::Accepted {
                    count(&counters.taken_over, ranges.iter().len() as u64);
                } else {
                    count(&counters.refused, 1);
                }
                reply
            }
        };
        if reply == HandoffReply::Accepted {
            self.tick(machines);
            self.wake.notify_one();
        }
        reply
    }

    // === state ===

    /// Whether this node has handed over everything it held, or there is no member to take it.
    pub fn has_transferred_all(&self) -> bool {
        let machines = self.machines.lock();
        let ring = &machines.ring;
        // An evicted node has nothing to hand over any more.
        ring.own_id().is_none() || ring.has_transferred_all() || ring.members().own_nothing()
    }

    /// Whether this node holds all ranges it owns and every transfer is complete.
    pub fn is_settled(&self) -> bool {
        let Machines { ring, clock_is_right, .. } = &*self.machines.lock();
        *clock_is_right && ring.own_id().is_some() && ring.is_settled()
    }

    /// The epoch of the map in force if every member decides what it owns by it, as this node was
    /// told under a lease; `None` while ranges are in transfer or may be.
    pub fn settled_epoch(&self) -> Option<Epoch> {
        let machines = self.machines.lock();
        let ring = &machines.ring;
        let is_up = machines.clock_is_right && machines.is_up(&self.options.me.node);
        let has_lease = self.ownership.monotonic() < ring.lease_until();
        (is_up && has_lease && ring.are_all_settled()).then(|| ring.epoch())
    }

    /// Whether a majority of the voters grants this node a lease. It decides by it only once its
    /// clock is right.
    pub fn holds_lease(&self) -> bool {
        self.ownership.monotonic() < self.machines.lock().ring.lease_until()
    }

    /// Whether [`Driver::clock_is_right`] was called.
    pub fn is_clock_right(&self) -> bool {
        self.machines.lock().clock_is_right
    }

    /// The clock of this node was compared with those of others: from now on it decides what it
    /// owns while it has a lease. Called once.
    pub fn clock_is_right(&self) {
        let machines = &mut *self.machines.lock();
        machines.clock_is_right = true;
        self.publish(machines);
    }

    /// Members to which ranges, or the confirmation that there are none, are being transferred.
    pub fn transferring_to(&self) -> Vec<NodeId> {
        self.machines.lock().busy.iter().cloned().collect()
    }

    /// Whether a change of the voters is in progress.
    pub fn is_joint(&self) -> bool {
        self.machines.lock().map.voters.are_joint()
    }

    /// Whether this node is a member that owns keys, by the map in force.
    pub fn is_up(&self) -> bool {
        self.machines.lock().is_up(&self.options.me.node)
    }

    /// The rings in force.
    pub fn topology(&self) -> Arc<Topology> {
        self.topology.load_full()
    }

    /// The newest map that is in force here.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.machines.lock().map.clone()
    }

    /// This node's admission to the map in force.
    pub fn own_id(&self) -> Option<MemberId> {
        self.machines.lock().ring.own_id()
    }

    /// What this node has to say about other members, as the leader needs it.
    pub fn own_complaints(&self) -> Option<(MemberId, Complaints)> {
        let machines = self.machines.lock();
        let id = machines.ring.own_id()?;
        Some((id, self.complaints(&machines)))
    }

    /// The epoch that this node reports as a voter.
    pub fn own_report(&self) -> Epoch {
        self.machines.lock().grants.reported()
    }

    /// Voters that are no members.
    pub fn lost_voters(&self) -> BTreeSet<NodeId> {
        let machines = self.machines.lock();
        let map = &machines.map;
        let is_present = |voter: &Identity| map.present().any(|member| member.identity == *voter);
        let absent = map.voters.current.iter().filter(|voter| !is_present(voter));
        absent.map(|voter| voter.node.clone()).collect()
    }

    /// How long ago each other member of the map in force was heard last, or admitted if it has not
    /// been heard since.
    pub fn heard(&self) -> BTreeMap<MemberId, Span> {
        let now = self.ownership.monotonic();
        let machines = self.machines.lock();
        let own = machines.ring.own_id();
        let others = machines.heard.iter().filter(|(id, _)| Some(**id) != own);
        others.map(|(id, heard)| (*id, now.since(*heard))).collect()
    }

    fn complaints(&self, machines: &Machines) -> Complaints {
        let now = self.ownership.monotonic();
        let own = machines.ring.own_id();
        // The others ping voters only, and are silent to each other.
        let votes = machines.map.voters.contains(&self.options.me);
        let paused = pause(machines.ticked, now, STALL_MIN);
        let silent = silent(&machines.heard, paused, now, self.options.down_after);
        let silent = silent.filter(|id| votes && Some(*id) != own);
        let is_copying = now < machines.copied_at.plus(COPYING_FOR);
        // A member that waits for this node may not reach the leader, as this node does. While
        // counts are copied, it is this node that takes its time.
        let waits_for: BTreeSet<MemberId> = if is_copying {
            machines.ring.waits_for().collect()
        } else {
            machines.ring.waits_for().chain(machines.ring.cannot_release_to(now)).collect()
        };
        Complaints {
            silent: silent.take(COMPLAINTS_MAX).collect(),
            waits_for: waits_for.into_iter().take(COMPLAINTS_MAX).collect(),
            is_copying,
            // Known to the synchroniser.
            pushed: Epoch(0),
        }
    }

    // === loop ===

    /// Ticks the state machines and carries out transfer steps until `stop`, which also aborts the
    /// steps in progress.
    pub async fn run(
        self: &Arc<Self>,
        mesh: Arc<Mesh>,
        replicator: Arc<Replicator>,
        stop: CancellationToken,
    ) {
        let mut ticks = mesh.ticks.every(TICK);
        let mut steps = JoinSet::new();
        let mut pinged = Epoch::default();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
                () = self.wake.notified() => {}
                Some(ended) = steps.join_next() => match ended {
                    // The state machine would wait forever for the outcome of the step.
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    _ => {}
                },
            }
            let (due, epoch, gone, taken) = {
                let machines = &mut *self.machines.lock();
                self.tick(machines);
                let (epoch, taken) = (machines.ring.epoch(), machines.take_claimed());
                (self.take_steps(machines), epoch, machines.take_unsubscribed(), taken)
            };
            for takeover in taken {
                let (this, replicator) = (self.clone(), replicator.clone());
                let now = self.ownership.monotonic();
                steps.spawn(async move { takeover.report(now, &replicator, &this.counters).await });
            }
            for peer in gone {
                replicator.unsubscribe(&peer);
            }
            if epoch != pinged {
                // Claims depend on the voters' reports; the next regular ping would delay them.
                pinged = epoch;
                mesh.ping_now();
            }
            for (peer, member, epoch, step) in due {
                let (this, mesh, replicator) = (self.clone(), mesh.clone(), replicator.clone());
                steps.spawn(async move {
                    let outcome =
                        this.carry_out(&peer, member, epoch, step, &mesh, &replicator).await;
                    match outcome {
                        StepOutcome::Done => {}
                        StepOutcome::Failed => {
                            count(&this.counters.failed, 1);
                            tokio::time::sleep(STEP_PAUSE).await;
                        }
                        StepOutcome::Refused => count(&this.counters.rejected, 1),
                    }
                    this.machines.lock().busy.remove(&peer);
                });
            }
        }
    }

    /// The next step for each member without a step in progress, with this node's admission.
    fn take_steps(&self, machines: &mut Machines) -> Vec<(NodeId, MemberId, Epoch, TransferStep)> {
        let mut due = Vec::new();
        let Some(own) = machines.ring.own_id() else { return due };
        let now = self.ownership.monotonic();
        let peers: Vec<NodeId> = machines.ring.members().names().cloned().collect();
        let epoch = machines.ring.epoch();
        for peer in peers {
            let is_waiting = machines
                .rejections
                .get(&peer)
                .is_some_and(|rejection| rejection.epoch == epoch && now < rejection.retry_at);
            if is_waiting || machines.busy.contains(&peer) {
                continue;
            }
            if let Some(step) = machines.ring.next_step(&peer, now) {
                machines.busy.insert(peer.clone());
                due.push((peer, own, epoch, step));
            }
        }
        // A step may have frozen ranges.
        self.publish(machines);
        due
    }

    /// `peer` refused states of ranges that this node decides. Returns whether the transfer of this
    /// epoch waits for it once more.
    fn waits_for_room(&self, peer: &NodeId, epoch: Epoch) -> bool {
        let now = self.ownership.monotonic();
        let count = {
            let machines = &mut *self.machines.lock();
            let Machines { ring, rejections, .. } = machines;
            rejections.retain(|_, rejection| rejection.epoch == ring.epoch());
            let first = Rejection { epoch, count: 0, retry_at: now };
            let rejection = rejections.entry(peer.clone()).or_insert(first);
            rejection.count += 1;
            if rejection.count <= REFUSALS_MAX {
                rejection.retry_at = now.plus(REFUSED_PAUSE);
            }
            rejection.count
        };
        if count <= REFUSALS_MAX {
            tracing::warn!(
                %peer,
                "peer did not accept all counts of the ranges that it is to own (its store, or a \
                 domain, is full, or its clock is behind); sending them again in a second"
            );
        } else if count == REFUSALS_MAX + 1 {
            self.counters.given_up.fetch_add(1, Ordering::Relaxed);
            tracing::error!(
                %peer,
                "handing keys over without the counts that the next owner refuses: these keys are \
                 counted anew; see tidegate_store_keys, limits.domain_keys_max and \
                 tidegate_clock_skewed of the peer"
            );
        }
        count <= REFUSALS_MAX
    }

    /// Carries out one step and reports its outcome.
    async fn carry_out(
        &self,
        peer: &NodeId,
        member: MemberId,
        epoch: Epoch,
        step: TransferStep,
        mesh: &Mesh,
        replicator: &Replicator,
    ) -> StepOutcome {
        let send = async |epoch, step| {
            let call = Call::Handoff(Handoff { member, epoch, step });
            match mesh.call(peer, StreamClass::Control, call, MESSAGE_TIMEOUT).await {
                Ok(Reply::Handoff(reply)) => Some(reply),
                Ok(_) | Err(_) => None,
            }
        };
        match step {
            TransferStep::Offer(epoch) => {
                let Some(reply) = send(epoch, HandoffStep::Offer).await else {
                    return StepOutcome::Failed;
                };
                self.report(|ring| ring.offer_replied(peer, epoch, reply));
                StepOutcome::succeeded(reply == HandoffReply::Ready)
            }
            TransferStep::Copy { follows, copies } => {
                self.machines.lock().subscribed.insert(peer.clone());
                replicator.subscribe(peer.clone(), follows.clone());
                let ranges = follows.with(&copies);
                let is_included = |key: KeyHash| key.is_owned() && ranges.contains(key.token);
                if !ranges.is_empty() {
                    let copied = &self.counters.copied;
                    if replicator.copy(peer, is_included, copied).await.is_err() {
                        return StepOutcome::Failed;
                    }
                }
                // Only ranges that this node decides are subscribed to, so only they wait. Copies
                // of other ranges do not: this node may be the only one that has them.
                if replicator.has_refused(peer) && self.waits_for_room(peer, epoch) {
                    return StepOutcome::Refused;
                }
                self.report(|ring| ring.copied(peer, epoch));
                StepOutcome::Done
            }
            TransferStep::Flush => {
                // After the barrier every decision made before the freeze is in the send queue.
                self.store.barrier();
                let flushed = tokio::time::timeout(FLUSH_TIMEOUT, replicator.flush(peer)).await;
                let is_flushed = matches!(flushed, Ok(Ok(())));
                let is_refused = replicator.has_refused(peer) && self.waits_for_room(peer, epoch);
                let is_done = is_flushed && !is_refused;
                self.report(|ring| ring.flushed(peer, epoch, is_done));
                if is_refused { StepOutcome::Refused } else { StepOutcome::succeeded(is_flushed) }
            }
            TransferStep::Release { epoch, number, ranges } => {
                let range_count = ranges.iter().len() as u64;
                let released = ranges.clone();
                let release = HandoffStep::Release { number, ranges };
                let Some(reply) = send(epoch, release).await else { return StepOutcome::Failed };
                let is_accepted = reply == HandoffReply::Accepted;
                self.report(|ring| ring.release_replied(peer, number, reply));
                if is_accepted {
                    replicator.unsubscribe(peer);
                    self.machines.lock().subscribed.remove(peer);
                    count(&self.counters.handed_over, range_count);
                    self.end_credits(|key| released.contains(key.token)).await;
                }
                StepOutcome::succeeded(is_accepted)
            }
        }
    }

    /// Ends the credit of counters that another node decides.
    async fn end_credits(&self, is_included: impl Fn(KeyHash) -> bool + Send) {
        let mut from = Some(Cursor::default());
        while let Some(cursor) = from {
            from = self.store.end_credits(cursor, &is_included);
            tokio::task::yield_now().await;
        }
    }

    fn report(&self, outcome: impl FnOnce(&mut RingOwnership)) {
        let machines = &mut *self.machines.lock();
        outcome(&mut machines.ring);
        self.publish(machines);
        self.wake.notify_one();
    }

    // === updates ===

    /// Notes which ranges of members that are not in the map any more this node is to claim.
    fn expect_takeovers(
        &self,
        machines: &mut Machines,
        before: &ClusterMap,
        topology: &Arc<Topology>,
        heard: &BTreeMap<MemberId, Monotonic>,
    ) {
        let Machines { ring, map, takeovers, .. } = machines;
        if before.cluster != map.cluster {
            takeovers.clear();
            return;
        }
        let claims = ring.members().arcs(&self.options.me.node).without(ring.held());
        for takeover in takeovers.iter_mut() {
            takeover.ranges = takeover.ranges.shared_with(&claims);
        }
        takeovers.retain(|takeover| !takeover.ranges.is_empty());
        let others = before.present().filter(|member| member.identity != self.options.me);
        for gone in others.filter(|member| !map.has(member.id)) {
            let (node, heard) = (&gone.identity.node, heard.get(&gone.id).copied());
            takeovers.extend(Takeover::of(node, heard, topology, map, &claims));
        }
    }

    /// Begins anew in another cluster, whose epochs and member ids are not comparable. What was
    /// granted in the old one may still be in use for a hold.
    fn forget_cluster(&self, machines: &mut Machines, now: Monotonic) {
        let Options { me, start, lease, quorum, .. } = &self.options;
        machines.ring = RingOwnership::new(me.clone(), *start, *lease, *quorum);
        machines.grants = Grants::new(now, *lease);
        machines.saved = Epoch(0);
        machines.heard.clear();
        machines.rejections.clear();
    }

    fn update_topology(&self, machines: &Machines) {
        let Options { me, region, vnodes, .. } = &self.options;
        let Machines { map, view, edges, .. } = machines;
        let homes = machines.homes(region, &self.options.home_regions);
        let (me, vnodes, edges) = (&me.node, *vnodes, *edges);
        let topology = Known { me, region, vnodes, map, view, homes, edges }.topology();
        let topology = topology.admitted(self.admission(map)).after(&self.topology.load());
        self.topology.store(Arc::new(topology));
    }

    /// This run of this node as a member by `map`.
    fn admission(&self, map: &ClusterMap) -> Option<Admission> {
        let Options { me, start, .. } = &self.options;
        let mut present = map.present();
        let own = present.find(|member| member.identity == *me && member.start == *start)?;
        let (cluster, generation) = (map.cluster, own.generation);
        Some(Admission { cluster, generation, collection: map.collection })
    }

    /// Renews or loses the lease, and claims ranges.
    fn tick(&self, machines: &mut Machines) {
        let now = self.ownership.monotonic();
        skip_pause(&mut machines.heard, now, pause(machines.ticked, now, STALL_MIN));
        machines.ticked = now;
        let copied = self.counters.copied.load(Ordering::Relaxed);
        if copied != machines.copied {
            (machines.copied, machines.copied_at) = (copied, now);
        }
        let report = machines.grants.report(now, &machines.map, machines.saved);
        machines.ring.report_received(&self.options.me, report);
        machines.ring.tick(now);
        let is_over = machines.ring.lease_until() <= now;
        if is_over && machines.has_lease {
            machines.has_lease = false;
            if machines.is_up(&self.options.me.node) {
                count(&self.counters.leases_lost, 1);
                tracing::warn!("lease lost: no majority of the voters grants this node a lease");
            } else {
                tracing::info!("lease ended: this node is no member any more");
            }
        } else if !is_over && !machines.has_lease {
            machines.has_lease = true;
            tracing::info!("lease acquired: a majority of the voters grants it");
        }
        self.publish(machines);
    }

    /// Publishes the lease and the ranges to the decisions.
    fn publish(&self, machines: &mut Machines) {
        let ring = &machines.ring;
        let transferred = ring.transferred().iter();
        let owned_ranges = OwnedRanges {
            epoch: ring.epoch(),
            decides: ring.decides(),
            member: ring.own_id(),
            transferred: transferred.map(|(to, ranges)| (ranges.clone(), to.clone())).collect(),
            homes: machines.homes(&self.options.region, &self.options.home_regions),
        };
        let region = machines.region_right.as_ref().map(RegionRight::lease_until);
        let region = region.unwrap_or(Monotonic::NEVER);
        let own = if machines.clock_is_right { ring.lease_until() } else { Monotonic::START };
        let leases = Leases { own, region };
        if machines.published == owned_ranges {
            self.ownership.renew(leases);
        } else {
            machines.published = owned_ranges.clone();
            self.ownership.publish(leases, owned_ranges);
        }
    }
}

/// How long a node that ticked last at `ticked` has stood still until `now`: zero if it ticks as
/// it should, at least once in `stall_min`.
pub(crate) fn pause(ticked: Monotonic, now: Monotonic, stall_min: Span) -> Span {
    let paused = now.since(ticked);
    if paused > stall_min { paused } else { Span::ZERO }
}

/// The members that were not heard for `down_after`, a pause of this node apart: this may be asked
/// before the first tick after it.
pub(crate) fn silent(
    heard: &BTreeMap<MemberId, Monotonic>,
    paused: Span,
    now: Monotonic,
    down_after: Span,
) -> impl Iterator<Item = MemberId> {
    let is_silent =
        move |(_, heard): &(&MemberId, &Monotonic)| now >= heard.plus(paused).plus(down_after);
    heard.iter().filter(is_silent).map(|(id, _)| *id)
}

/// What members sent in a pause of this node before `now` was not read, so the pause does not count
/// as their silence. The time before it does: a node that stalls repeatedly notices a dead one too.
pub(crate) fn skip_pause(heard: &mut BTreeMap<MemberId, Monotonic>, now: Monotonic, paused: Span) {
    if paused.is_zero() {
        return;
    }
    for heard in heard.values_mut() {
        *heard = heard.plus(paused).min(now);
    }
}

impl Machines {
    fn homes(&self, region: &str, all: &[String]) -> Homes {
        homes(self.region_right.as_ref(), &self.map, region, all)
    }

    /// Whether `me` is a member that owns keys, by the map in force.
    fn is_up(&self, me: &NodeId) -> bool {
        let own = self.map.get(me);
        self.ring.own_id().is_some() && own.is_some_and(|own| own.state == MapState::Up)
    }

    /// Removes the takeovers whose ranges this node holds now.
    fn take_claimed(&mut self) -> Vec<Takeover> {
        let Self { ring, takeovers, .. } = self;
        let held = ring.held();
        takeovers.extract_if(.., |takeover| takeover.ranges.without(held).is_empty()).collect()
    }

    /// Removes subscribed members that are no members any more: their transfers never complete.
    fn take_unsubscribed(&mut self) -> Vec<NodeId> {
        let Self { ring, subscribed, .. } = self;
        let gone: Vec<NodeId> =
            subscribed.iter().filter(|id| !ring.members().contains(id)).cloned().collect();
        subscribed.retain(|id| !gone.contains(id));
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first that asks after a pause need not be the tick.
    #[test]
    fn a_pause_of_this_node_is_no_silence_of_others_before_its_next_tick() {
        let at = |millis| Monotonic::START.plus(Span::from_millis(millis));
        let (live, dead) = (MemberId(1), MemberId(2));
        let mut heard = BTreeMap::from([(live, at(9_980)), (dead, at(9_100))]);
        let ticked = at(10_000);
        let silent = |heard: &BTreeMap<MemberId, Monotonic>, paused, now| -> Vec<MemberId> {
            silent(heard, paused, now, Span::from_secs(1)).collect()
        };
        // It stood still for 2.5 s, and goes on. The pings of before the pause count.
        let resumed = at(12_500);
        let paused = pause(ticked, resumed, STALL_MIN);
        assert_eq!(silent(&heard, paused, resumed), []);
        let later = at(12_600);
        assert_eq!(silent(&heard, pause(ticked, later, STALL_MIN), later), []);
        skip_pause(&mut heard, later, pause(ticked, later, STALL_MIN));
        let (ticked, next) = (later, at(12_700));
        assert_eq!(silent(&heard, pause(ticked, next, STALL_MIN), next), [dead]);
    }
}

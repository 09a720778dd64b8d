//! Drives the ownership state machines: reports gossip, pings, messages and time to them, carries
//! out the transfer steps they return, and publishes the result, to decisions as [`Ownership`] and
//! to everything else as a [`Topology`].
//!
//! One lock guards all state machines. It is held for a computation, never across I/O. Every change
//! of the held ranges ends in `Driver::publish` under the same lock, so decisions never see
//! ranges that the state machines have frozen or released.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::{KeyHash, Store};
use tidegate_limiter::units::{Monotonic, Span};
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::membership::{KnownMembers, Member, MemberState, View};
use tidegate_ownership::membership_table::TableEntry;
use tidegate_ownership::route::Topology;
use tidegate_ownership::{
    EntryId, Epoch, Epochs, HandoffReply, LeaseState, LiveMember, MembershipTable, OwnershipStatus,
    Quorum, QuorumRule, RingMember, RingMembers, RingOwnership, TransferStep, VoterSet, Voters,
};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::handle::{OwnedRanges, Ownership};
use crate::count;
use crate::environment::Clock;
use crate::incarnation::Incarnation;
use crate::mesh::wire::{Call, Handoff, HandoffStep, Reply};
use crate::mesh::{Mesh, Peer, StreamClass};
use crate::replication::Replicator;

/// All but the region must be the same on every node.
#[derive(Clone, Debug)]
pub struct Options {
    /// The region of this node.
    pub region: String,
    /// Virtual nodes per member.
    pub vnodes: u32,
    /// How long a lease grant is valid.
    pub lease: Span,
    pub quorum: QuorumRule,
    /// The voters of each ring, by [`Scope`]. Where there are none, the members of the ring vote.
    pub pinned_voters: [BTreeSet<NodeId>; 2],
    /// How long a lost member remains a voter.
    pub forget_after: Span,
}

/// Events since the start, for the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Times that no quorum recognised this node any more.
    pub leases_lost: AtomicU64,
    /// Times that a lease was regained after an interruption, so that all held ranges were
    /// dropped.
    pub leases_interrupted: AtomicU64,
    /// Ranges handed over to another node.
    pub handed_over: AtomicU64,
    /// Ranges accepted from another node.
    pub taken_over: AtomicU64,
    /// States copied to their owners before a handoff.
    pub copied: AtomicU64,
    /// Transfer steps that failed and were retried.
    pub failed: AtomicU64,
    /// Transfer steps after which the ranges stayed, because the peer refused some of their states.
    pub rejected: AtomicU64,
    /// Releases of other nodes that were not accepted.
    pub refused: AtomicU64,
}

/// Keeps what this node owns.
#[derive(Debug)]
pub struct Driver {
    options: Options,
    incarnation: Arc<Incarnation>,
    ownership: Ownership,
    topology: Arc<ArcSwap<Topology>>,
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    machines: Mutex<Machines>,
    /// Wakes [`Driver::run`] to look for steps.
    wake: Notify,
    voter_set: watch::Sender<VoterSet>,
    pub counters: Counters,
}

#[derive(Debug)]
struct Machines {
    table: MembershipTable,
    voters: Voters,
    /// By [`Scope`].
    rings: [RingState; 2],
    /// The live members according to gossip.
    view: View,
    /// The members of the table, also those that gossip has given up.
    recognised: View,
    /// Before this node is active it reports no epoch and claims nothing.
    is_active: bool,
    /// One-way partitioned peers: this node receives their packets, they do not receive its own.
    partitioned: BTreeSet<(NodeId, Generation)>,
    /// Pings sent to each peer since its last answer.
    unanswered: BTreeMap<NodeId, (Generation, u32)>,
}

#[derive(Debug)]
struct RingState {
    machine: RingOwnership,
    /// Members for which a step is in progress.
    busy: BTreeSet<NodeId>,
    /// Members that refused states in a transfer of this epoch.
    rejections: BTreeMap<NodeId, Rejection>,
    /// Members that are subscribed to the changes of ranges they are going to hold.
    subscribed: BTreeSet<NodeId>,
    published: OwnedRanges,
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

const RINGS: [Scope; 2] = [Scope::Region, Scope::Global];

/// How often the state machines are ticked when there are no events.
const TICK: Duration = Duration::from_millis(20);
/// Consecutive unanswered pings after which a peer without a lease gets no grant.
const WITHHOLD_AFTER_PINGS: u32 = 4;
/// Consecutive unanswered pings after which it is treated as failed: one second.
const PARTITIONED_AFTER_PINGS: u32 = 10;
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
    /// A node that recognises only itself. The driver is the only writer of `ownership` and
    /// `topology` from now on.
    pub fn new(
        options: Options,
        incarnation: Arc<Incarnation>,
        ownership: Ownership,
        topology: Arc<ArcSwap<Topology>>,
        store: Arc<Store>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let me = incarnation.node().clone();
        let ring = || RingState {
            machine: RingOwnership::new(me.clone(), options.lease),
            busy: BTreeSet::new(),
            rejections: BTreeMap::new(),
            subscribed: BTreeSet::new(),
            published: OwnedRanges::default(),
        };
        let machines = Machines {
            table: MembershipTable::new(me.clone(), options.lease),
            voters: Voters::default(),
            rings: [ring(), ring()],
            view: View::default(),
            recognised: View::default(),
            is_active: false,
            partitioned: BTreeSet::new(),
            unanswered: BTreeMap::new(),
        };
        Arc::new(Self {
            options,
            incarnation,
            ownership,
            topology,
            store,
            clock,
            machines: Mutex::new(machines),
            wake: Notify::new(),
            voter_set: watch::channel(VoterSet::default()).0,
            counters: Counters::default(),
        })
    }

    // === inputs ===

    /// Gossip reported new live members or metadata.
    pub fn view_changed(&self, view: &View) {
        let machines = &mut *self.machines.lock();
        machines.view = view.clone();
        self.update_table(machines);
        self.update_rings(machines);
    }

    /// Lets this node report its epochs and claim ranges. To be called once it has learned the
    /// other members.
    pub fn activate(&self) {
        let machines = &mut *self.machines.lock();
        machines.is_active = true;
        machines.voters.bootstrap(&self.options.region);
        self.update_rings(machines);
    }

    /// The ownership status for a ping to `peer`, which is counted as unanswered from now on.
    pub fn ownership_status(&self, peer: &Peer) -> OwnershipStatus {
        let machines = &mut *self.machines.lock();
        let none = (peer.generation, 0);
        let (of, unanswered) = machines.unanswered.entry(peer.id.clone()).or_insert(none);
        // Pings that a crashed incarnation did not answer do not count for its successor.
        if *of < peer.generation {
            (*of, *unanswered) = none;
        }
        if *of == peer.generation {
            *unanswered = unanswered.saturating_add(1);
        }
        let has_lease = self.ownership.has_lease(Scope::Region);
        OwnershipStatus { epochs: machines.epochs(), has_lease }
    }

    /// `peer` sent a ping with its status. Returns this node's epochs and the lease grant for
    /// `peer`.
    pub fn ping_received(
        &self,
        peer: &Peer,
        status: OwnershipStatus,
    ) -> (Option<Epochs>, Option<u64>) {
        let now = self.ownership.monotonic();
        let machines = &mut *self.machines.lock();
        let [region, global] = &mut machines.rings;
        region.machine.observe_epoch(status.epochs.region);
        global.machine.observe_epoch(status.epochs.global);
        // A peer that has no lease and answers no ping is behind a one-way partition. Grants do not
        // reach it; they would only keep it in the membership table.
        let unanswered = match machines.unanswered.get(&peer.id) {
            Some((of, unanswered)) if *of == peer.generation && !status.has_lease => *unanswered,
            _ => 0,
        };
        let incarnation = (peer.id.clone(), peer.generation);
        if unanswered >= PARTITIONED_AFTER_PINGS && machines.partitioned.insert(incarnation) {
            tracing::warn!(
                peer = %peer.id,
                "one-way partition: peer does not receive our packets; treating it as failed"
            );
            self.update_table(machines);
            self.update_rings(machines);
        }
        let grant = if unanswered < WITHHOLD_AFTER_PINGS {
            machines.table.grant(now, &peer.id, peer.generation)
        } else {
            None
        };
        // Grants of this node's previous incarnation may still be valid.
        let is_settled = now.since(Monotonic::START) >= self.options.lease;
        let epochs = (machines.is_active && is_settled).then(|| machines.epochs());
        (epochs, grant)
    }

    /// `peer` answered the ping that was sent at `sent`.
    pub fn pong_received(
        &self,
        peer: &Peer,
        sent: Instant,
        epochs: Option<Epochs>,
        grant: Option<u64>,
    ) {
        let sent = self.ownership.monotonic_at(sent);
        let machines = &mut *self.machines.lock();
        let grant = grant.map(|serial| EntryId { generation: peer.generation, serial });
        machines.unanswered.insert(peer.id.clone(), (peer.generation, 0));
        if machines.partitioned.remove(&(peer.id.clone(), peer.generation)) {
            self.update_table(machines);
            self.update_rings(machines);
        }
        let before = machines.epochs();
        let [region, global] = &mut machines.rings;
        let (of_region, of_all) = (epochs.map(|epochs| epochs.region), epochs.map(|e| e.global));
        let is_urgent = region.machine.pong_received(&peer.id, sent, of_region, grant)
            | global.machine.pong_received(&peer.id, sent, of_all, grant);
        // Every peer answers ten times a second, so what can wait for the next tick does.
        if is_urgent {
            self.tick(machines);
        }
        if machines.epochs() != before {
            self.wake.notify_one();
        }
    }

    /// `peer` sent a step of a range transfer to this node. Returns the reply.
    pub fn handoff_received(&self, peer: &Peer, handoff: Handoff) -> HandoffReply {
        let machines = &mut *self.machines.lock();
        if !machines.is_active {
            return HandoffReply::Later;
        }
        let ring = &mut machines.rings[handoff.scope as usize].machine;
        let (before, counters) = (ring.epoch(), &self.counters);
        let reply = match handoff.step {
            HandoffStep::Offer => ring.offer_received(&peer.id, handoff.epoch),
            HandoffStep::Release { number, ranges } => {
                let (generation, epoch) = (peer.generation, handoff.epoch);
                let reply = ring.release_received(&peer.id, generation, epoch, number, &ranges);
                if reply == HandoffReply::Accepted {
                    count(&counters.taken_over, ranges.iter().len() as u64);
                } else {
                    count(&counters.refused, 1);
                }
                reply
            }
        };
        if ring.epoch() != before || reply == HandoffReply::Accepted {
            self.tick(machines);
            self.wake.notify_one();
        }
        reply
    }

    // === state ===

    /// The voter set for gossip.
    pub fn voter_set(&self) -> watch::Receiver<VoterSet> {
        self.voter_set.subscribe()
    }

    /// Whether this node has handed over everything it held, or there is no member to take it.
    pub fn has_transferred_all(&self) -> bool {
        let machines = self.machines.lock();
        machines.rings.iter().all(|RingState { machine: ring, .. }| {
            let mut members = ring.members().entries.values();
            ring.has_transferred_all() || members.all(|member| member.arcs.is_empty())
        })
    }

    /// Whether this node holds all ranges it owns and every transfer is complete.
    pub fn is_settled(&self) -> bool {
        let machines = self.machines.lock();
        machines.rings.iter().all(|ring| ring.machine.is_settled())
    }

    /// Voters that are no members: lost without leaving, or pinned and not there.
    pub fn lost_voters(&self) -> BTreeSet<NodeId> {
        let machines = self.machines.lock();
        let voters = machines.voters.voter_set().voters;
        let lost = voters.into_iter().filter(|voter| voter.lost_at.is_some());
        let is_absent = |id: &&NodeId| !machines.table.entries().contains_key(*id);
        let absent = self.options.pinned_voters.iter().flatten().filter(is_absent).cloned();
        lost.map(|voter| voter.id).chain(absent).collect()
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
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut steps = JoinSet::new();
        let mut pinged_epochs = Epochs::default();
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
            let (due, epochs, gone) = {
                let machines = &mut *self.machines.lock();
                if machines.table.evict(self.ownership.monotonic()) {
                    self.update_rings(machines);
                }
                self.tick(machines);
                (self.take_steps(machines), machines.epochs(), machines.take_unsubscribed())
            };
            for (scope, peer) in gone {
                replicator.unsubscribe(scope, &peer);
            }
            if epochs != pinged_epochs {
                // Claims depend on the peers' epochs; the next regular ping would delay them.
                pinged_epochs = epochs;
                mesh.ping_now();
            }
            for (scope, peer, epoch, step) in due {
                let (this, mesh, replicator) = (self.clone(), mesh.clone(), replicator.clone());
                steps.spawn(async move {
                    let outcome =
                        this.carry_out(scope, &peer, epoch, step, &mesh, &replicator).await;
                    match outcome {
                        StepOutcome::Done => {}
                        StepOutcome::Failed => {
                            count(&this.counters.failed, 1);
                            tokio::time::sleep(STEP_PAUSE).await;
                        }
                        StepOutcome::Refused => count(&this.counters.rejected, 1),
                    }
                    this.machines.lock().rings[scope as usize].busy.remove(&peer);
                });
            }
        }
    }

    /// The next step for each member without a step in progress.
    fn take_steps(&self, machines: &mut Machines) -> Vec<(Scope, NodeId, Epoch, TransferStep)> {
        let mut due = Vec::new();
        if !machines.is_active {
            return due;
        }
        let now = self.ownership.monotonic();
        for scope in RINGS {
            let ring = &mut machines.rings[scope as usize];
            let peers: Vec<NodeId> = ring.machine.members().entries.keys().cloned().collect();
            for peer in peers {
                let is_waiting = ring.rejections.get(&peer).is_some_and(|rejection| {
                    rejection.epoch == ring.machine.epoch() && now < rejection.retry_at
                });
                if is_waiting || ring.busy.contains(&peer) {
                    continue;
                }
                if let Some(step) = ring.machine.next_step(&peer, now) {
                    ring.busy.insert(peer.clone());
                    due.push((scope, peer, ring.machine.epoch(), step));
                }
            }
        }
        // A step may have frozen ranges.
        self.publish(machines);
        due
    }

    /// `peer` refused states of ranges that this node decides. Returns whether the transfer of this
    /// epoch waits for it once more.
    fn waits_for_room(&self, scope: Scope, peer: &NodeId, epoch: Epoch) -> bool {
        let now = self.ownership.monotonic();
        let count = {
            let machines = &mut *self.machines.lock();
            let RingState { machine, rejections, .. } = &mut machines.rings[scope as usize];
            rejections.retain(|_, rejection| rejection.epoch == machine.epoch());
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
                %peer, ?scope,
                "peer did not accept all counts of the ranges that it is to own (its store is \
                 full, or its clock is behind); sending them again in a second"
            );
        } else if count == REFUSALS_MAX + 1 {
            tracing::error!(
                %peer, ?scope,
                "handing keys over without the counts that the next owner refuses: these keys are \
                 counted anew; see tidegate_store_full_total and tidegate_clock_skewed of the peer"
            );
        }
        count <= REFUSALS_MAX
    }

    /// Carries out one step and reports its outcome.
    async fn carry_out(
        &self,
        scope: Scope,
        peer: &NodeId,
        epoch: Epoch,
        step: TransferStep,
        mesh: &Mesh,
        replicator: &Replicator,
    ) -> StepOutcome {
        let send = async |epoch, step| {
            let call = Call::Handoff(Handoff { scope, epoch, step });
            match mesh.call(peer, StreamClass::Bulk, call, MESSAGE_TIMEOUT).await {
                Ok(Reply::Handoff(reply)) => Some(reply),
                Ok(_) | Err(_) => None,
            }
        };
        match step {
            TransferStep::Offer(epoch) => {
                let Some(reply) = send(epoch, HandoffStep::Offer).await else {
                    return StepOutcome::Failed;
                };
                self.report(scope, |ring| ring.machine.offer_replied(peer, epoch, reply));
                StepOutcome::succeeded(reply == HandoffReply::Ready)
            }
            TransferStep::Copy { follows, copies } => {
                self.machines.lock().rings[scope as usize].subscribed.insert(peer.clone());
                replicator.subscribe(scope, peer.clone(), follows.clone());
                let ranges = follows.with(&copies);
                let is_included = |key: KeyHash| {
                    key.is_owned() && key.scope() == scope && ranges.contains(key.token)
                };
                if !ranges.is_empty() {
                    let copied = &self.counters.copied;
                    if replicator.copy(peer, is_included, copied).await.is_err() {
                        return StepOutcome::Failed;
                    }
                }
                // Only ranges that this node decides are subscribed to, so only they wait. Copies
                // of other ranges do not: this node may be the only one that has them.
                if replicator.has_refused(scope, peer) && self.waits_for_room(scope, peer, epoch) {
                    return StepOutcome::Refused;
                }
                self.report(scope, |ring| ring.machine.copied(peer, epoch));
                StepOutcome::Done
            }
            TransferStep::Flush => {
                // After the barrier every decision made before the freeze is in the send queue.
                self.store.barrier();
                let flushed = tokio::time::timeout(FLUSH_TIMEOUT, replicator.flush(peer)).await;
                let is_flushed = matches!(flushed, Ok(Ok(())));
                let is_refused =
                    replicator.has_refused(scope, peer) && self.waits_for_room(scope, peer, epoch);
                let is_done = is_flushed && !is_refused;
                self.report(scope, |ring| ring.machine.flushed(peer, epoch, is_done));
                if is_refused { StepOutcome::Refused } else { StepOutcome::succeeded(is_flushed) }
            }
            TransferStep::Release { epoch, number, ranges } => {
                let range_count = ranges.iter().len() as u64;
                let release = HandoffStep::Release { number, ranges };
                let Some(reply) = send(epoch, release).await else { return StepOutcome::Failed };
                let is_accepted = reply == HandoffReply::Accepted;
                self.report(scope, |ring| ring.machine.release_replied(peer, number, reply));
                if is_accepted {
                    replicator.unsubscribe(scope, peer);
                    self.machines.lock().rings[scope as usize].subscribed.remove(peer);
                    count(&self.counters.handed_over, range_count);
                }
                StepOutcome::succeeded(is_accepted)
            }
        }
    }

    fn report(&self, scope: Scope, outcome: impl FnOnce(&mut RingState)) {
        let machines = &mut *self.machines.lock();
        outcome(&mut machines.rings[scope as usize]);
        self.publish(machines);
        self.wake.notify_one();
    }

    // === updates ===

    /// Applies the view to the membership table, without one-way partitioned peers.
    fn update_table(&self, machines: &mut Machines) {
        let incarnation = |member: &Member| (member.id.clone(), member.generation);
        let is_alive = |member: &&Member| !machines.partitioned.contains(&incarnation(member));
        let live = |member: &Member| LiveMember {
            id: member.id.clone(),
            generation: member.generation,
            is_up: member.state == MemberState::Up,
        };
        let live: Vec<LiveMember> =
            machines.view.members().iter().filter(is_alive).map(live).collect();
        machines.table.update(self.ownership.monotonic(), &live);
    }

    /// Applies the membership table and the voters to the rings and the topology.
    fn update_rings(&self, machines: &mut Machines) {
        let Options { region, vnodes, forget_after, .. } = &self.options;
        let (table, view) = (&machines.table, &machines.view);
        machines.voters.update(table, view, self.clock.system(), *forget_after);
        let metadata = |(id, entry): (&NodeId, &TableEntry)| {
            // Gossip drops members that the table still recognises.
            let member = view.get(id).or_else(|| machines.recognised.get(id))?;
            (member.generation == entry.generation).then(|| member.clone())
        };
        let recognised = View::new(table.entries().iter().filter_map(metadata));
        machines
            .unanswered
            .retain(|id, _| table.entries().contains_key(id) || view.get(id).is_some());
        machines.partitioned.retain(|(id, _)| view.get(id).is_some());
        let voters = machines.voters.known_members();
        let pinned = &self.options.pinned_voters[Scope::Region as usize];
        let pinned = pinned.iter().map(|id| (id.clone(), region.clone()));
        let known = voters.clone().with(KnownMembers::new(pinned));
        let me = self.incarnation.node().clone();
        let topology = Topology::new(me, region.clone(), recognised.clone(), *vnodes)
            .with_known(known)
            .after(&self.topology.load());
        for scope in RINGS {
            let members = self.ring_members(scope, &topology, &voters);
            machines.rings[scope as usize].machine.follow(members);
        }
        let voter_set = machines.voters.voter_set();
        self.voter_set.send_if_modified(|published| {
            let is_new = *published != voter_set;
            *published = voter_set;
            is_new
        });
        machines.recognised = recognised;
        self.topology.store(Arc::new(topology));
        self.publish(machines);
        self.wake.notify_one();
    }

    fn ring_members(&self, scope: Scope, topology: &Topology, known: &KnownMembers) -> RingMembers {
        let is_on_ring = |region: &str| scope == Scope::Global || region == self.options.region;
        let ring = topology.ring(scope);
        let members = topology.view.members().iter().filter(|member| is_on_ring(&member.region));
        let entries = members.map(|member| {
            let arcs = ring.map(|ring| ring.arcs(&member.id)).unwrap_or_default();
            (member.id.clone(), RingMember { generation: member.generation, arcs })
        });
        let voters = known.nodes().iter().filter(|(_, region)| is_on_ring(region));
        let voters = voters.map(|(id, _)| id.clone());
        let pinned = &self.options.pinned_voters[scope as usize];
        let quorum = match self.options.quorum {
            QuorumRule::None => Quorum::NotRequired,
            QuorumRule::Majority if pinned.is_empty() => Quorum::Of(voters.collect()),
            QuorumRule::Majority => Quorum::Of(pinned.iter().cloned().collect()),
        };
        RingMembers { entries: entries.collect(), quorum }
    }

    /// Renews or loses the leases, and admits newcomers as voters.
    fn tick(&self, machines: &mut Machines) {
        if !machines.is_active {
            return;
        }
        let now = self.ownership.monotonic();
        for scope in RINGS {
            let ring = &mut machines.rings[scope as usize].machine;
            let before = ring.lease_state();
            // The first lease after a start interrupts nothing.
            let has_held = !ring.held().is_empty();
            ring.tick(now);
            self.log_lease(scope, before, ring.lease_state(), has_held);
        }
        // A newcomer becomes a voter once a quorum without it is at an epoch that includes it.
        let region = &machines.rings[Scope::Region as usize].machine;
        if region.lease_state() != LeaseState::None
            && region.is_agreed(now)
            && machines.voters.admit(&self.options.region)
        {
            self.update_rings(machines);
        }
        self.publish(machines);
    }

    fn log_lease(&self, scope: Scope, before: LeaseState, after: LeaseState, has_held: bool) {
        let counters = &self.counters;
        match (before, after) {
            (LeaseState::Held(_) | LeaseState::Interrupted(_), LeaseState::None) => {
                count(&counters.leases_lost, 1);
                tracing::warn!(?scope, "lease lost: no quorum recognises this node");
            }
            (_, LeaseState::Interrupted(_)) if has_held => {
                count(&counters.leases_interrupted, 1);
                tracing::warn!(
                    ?scope,
                    "lease regained after an interruption; dropped all held ranges"
                );
            }
            (LeaseState::None, LeaseState::Held(_) | LeaseState::Interrupted(_)) => {
                tracing::info!(?scope, "lease acquired: a quorum recognises this node");
            }
            _ => {}
        }
    }

    /// Publishes leases and ranges to the decisions.
    fn publish(&self, machines: &mut Machines) {
        for scope in RINGS {
            let ring = &mut machines.rings[scope as usize];
            let transferred = ring.machine.transferred().iter();
            let owned_ranges = OwnedRanges {
                epoch: ring.machine.epoch(),
                decides: ring.machine.decides(),
                transferred: transferred.map(|(to, ranges)| (ranges.clone(), to.clone())).collect(),
            };
            let lease_until = ring.machine.lease_state().until();
            if ring.published == owned_ranges {
                self.ownership.renew(scope, lease_until);
            } else {
                ring.published = owned_ranges.clone();
                self.ownership.publish(scope, lease_until, owned_ranges);
            }
        }
    }
}

impl Machines {
    /// Removes subscribed members that have left their ring: their transfers never complete.
    fn take_unsubscribed(&mut self) -> Vec<(Scope, NodeId)> {
        let mut gone = Vec::new();
        for scope in RINGS {
            let RingState { machine, subscribed, .. } = &mut self.rings[scope as usize];
            let members = &machine.members().entries;
            subscribed.retain(|id| {
                let is_member = members.contains_key(id);
                if !is_member {
                    gone.push((scope, id.clone()));
                }
                is_member
            });
        }
        gone
    }

    fn epochs(&self) -> Epochs {
        let [region, global] = &self.rings;
        Epochs { region: region.machine.epoch(), global: global.machine.epoch() }
    }
}

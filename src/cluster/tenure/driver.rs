//! Runs the machines: tells them what gossip, pings and peers say, does what they ask for, and
//! publishes what follows, to the decisions as a [`Tenancy`] and to everybody as a [`Topology`].
//!
//! One lock guards the machines. It is held for the time of a computation, never over a message.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::known::{Acquaintance, Missed};
use super::{
    Alive, Epoch, Epochs, Holding, Members, Place, Quorum, Recognised, Ring, Roll, Standing, Step,
    Tenancy,
};
use crate::cluster::identity::NodeId;
use crate::cluster::incarnation::Incarnation;
use crate::cluster::membership::{Known, MemberState, View};
use crate::cluster::mesh::wire::{Call, Handoff, HandoffReply, HandoffStep, Reply};
use crate::cluster::mesh::{LaneKind, Mesh, Peer};
use crate::cluster::replicate::Replicator;
use crate::cluster::route::Topology;
use crate::config::QuorumRule;
use crate::config::policy::Scope;
use crate::seam::Clock;
use crate::store::{KeyHash, Store};
use crate::units::Span;

/// How ownership is to be kept; all but the region the same on every node.
#[derive(Clone, Debug)]
pub struct Options {
    /// The region this node is in.
    pub region: String,
    /// Virtual nodes of a member.
    pub vnodes: u32,
    /// How long a grant counts.
    pub lease: Span,
    /// Whether a majority is needed.
    pub quorum: QuorumRule,
    /// How long a lost member counts.
    pub forget_after: Span,
}

/// Keeps what this node owns; cheap to clone.
#[derive(Clone, Debug)]
pub struct Driver {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    incarnation: Arc<Incarnation>,
    tenancy: Tenancy,
    topology: Arc<ArcSwap<Topology>>,
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    machines: Mutex<Machines>,
    /// Something changed: look what is to be done.
    wake: Notify,
    counters: Counters,
}

#[derive(Debug)]
struct Machines {
    roll: Roll,
    acquaintance: Acquaintance,
    region: Ring,
    global: Ring,
    /// What gossip says, and what it said last of those that it gave up and that are still on the
    /// roll.
    view: View,
    recognised: View,
    /// Whether this node has joined: before it, it tells no epoch and claims nothing.
    is_open: bool,
    /// Steps that are being carried out.
    busy: BTreeSet<(bool, NodeId)>,
    /// What was told last.
    told_missed: Missed,
    /// What was published last, in the order of [`RINGS`].
    published: [Holding; 2],
}

/// What happened to ownership since the start; read by the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Epochs that this node stood at, both rings together.
    pub epochs: AtomicU64,
    /// Times a quorum did not recognise this node in time.
    pub leases_lost: AtomicU64,
    /// Times it was recognised again and had to begin as a newcomer.
    pub tenures_broken: AtomicU64,
    /// Ranges handed to another node.
    pub handed_over: AtomicU64,
    /// Ranges that another node handed over.
    pub taken_over: AtomicU64,
    /// States copied to their owners before a handover.
    pub copied: AtomicU64,
    /// Copies, flushes and messages of handovers that failed and were begun anew.
    pub failed: AtomicU64,
    /// Releases of places that are not this node's.
    pub refused: AtomicU64,
}

/// How often the machines are looked at when nothing happens.
const TICK: Duration = Duration::from_millis(20);
/// How long one message of a handover may take; then it is sent again.
const MESSAGE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a range may stay frozen for its last changes; then it thaws and begins anew.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after a step that came to nothing.
const STEP_PAUSE: Duration = Duration::from_millis(10);

const RINGS: [Scope; 2] = [Scope::Region, Scope::Global];

impl Driver {
    /// A driver of a node that knows itself only. It changes `tenancy` and `topology` from then on.
    pub fn new(
        options: Options,
        incarnation: Arc<Incarnation>,
        tenancy: Tenancy,
        topology: Arc<ArcSwap<Topology>>,
        store: Arc<Store>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let me = incarnation.node().clone();
        let ring = || Ring::new(me.clone(), options.lease);
        let machines = Machines {
            roll: Roll::new(me.clone(), options.lease),
            acquaintance: Acquaintance::default(),
            region: ring(),
            global: ring(),
            view: View::default(),
            recognised: View::default(),
            is_open: false,
            busy: BTreeSet::new(),
            told_missed: Missed::default(),
            published: Default::default(),
        };
        let shared = Shared {
            options,
            incarnation,
            tenancy,
            topology,
            store,
            clock,
            machines: Mutex::new(machines),
            wake: Notify::new(),
            counters: Counters::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Takes in what gossip says. Returns whom this node misses, if that changed: the others are to
    /// be told.
    pub fn hear(&self, view: &View) -> Option<Missed> {
        let machines = &mut *self.shared.machines.lock();
        machines.view = view.clone();
        let alive: Vec<Alive> = view
            .members()
            .iter()
            .map(|member| Alive {
                id: member.id.clone(),
                generation: member.generation,
                is_up: member.state == MemberState::Up,
            })
            .collect();
        machines.roll.hear(self.shared.tenancy.moment(), &alive);
        self.follow_roll(machines);
        let missed = machines.acquaintance.missed();
        (missed != machines.told_missed).then(|| {
            machines.told_missed = missed.clone();
            missed
        })
    }

    /// From now on this node tells its epochs and takes what is its own. Call it once it knows its
    /// fellow members.
    pub fn open(&self) {
        self.shared.machines.lock().is_open = true;
        self.shared.wake.notify_one();
    }

    /// Where this node stands.
    pub fn epochs(&self) -> Epochs {
        self.shared.machines.lock().epochs()
    }

    /// Answers a ping of `peer`, which stands at `epochs`: where this node stands, and a grant.
    pub fn pinged(&self, peer: &Peer, epochs: Epochs) -> (Option<Epochs>, Option<u64>) {
        let now = self.shared.tenancy.moment();
        let machines = &mut *self.shared.machines.lock();
        machines.region.met(epochs.region);
        machines.global.met(epochs.global);
        let grant = machines.roll.grant(now, &peer.id, peer.generation);
        // What an earlier start of this node granted may still be believed.
        let remembers = now.since(super::Moment::EPOCH) >= self.shared.options.lease;
        let told = (machines.is_open && remembers).then(|| machines.epochs());
        (told, grant)
    }

    /// `peer` answered the ping that was sent at `sent`.
    pub fn ponged(&self, peer: &Peer, sent: Instant, epochs: Option<Epochs>, grant: Option<u64>) {
        let sent = self.shared.tenancy.moment_of(sent);
        let machines = &mut *self.shared.machines.lock();
        let recognised = grant.map(|serial| Recognised { generation: peer.generation, serial });
        let before = machines.epochs();
        machines.region.ponged(&peer.id, sent, epochs.map(|at| at.region), recognised);
        machines.global.ponged(&peer.id, sent, epochs.map(|at| at.global), recognised);
        self.tick(machines);
        if machines.epochs() != before {
            self.shared.wake.notify_one();
        }
    }

    /// A peer hands something over.
    pub fn answer(&self, peer: &Peer, handoff: Handoff) -> HandoffReply {
        let machines = &mut *self.shared.machines.lock();
        if !machines.is_open {
            return HandoffReply::Later;
        }
        let ring = machines.ring_mut(handoff.scope);
        let before = ring.epoch();
        let reply = match handoff.step {
            HandoffStep::Offer => ring.offered(&peer.id, handoff.epoch),
            HandoffStep::Release { number, ranges } => {
                let reply =
                    ring.released(&peer.id, peer.generation, handoff.epoch, number, &ranges);
                match reply {
                    HandoffReply::Taken => {
                        count(&self.shared.counters.taken_over, ranges.iter().len() as u64);
                    }
                    _ => count(&self.shared.counters.refused, 1),
                }
                reply
            }
        };
        if ring.epoch() != before || reply == HandoffReply::Taken {
            self.tick(machines);
            self.shared.wake.notify_one();
        }
        reply
    }

    /// Whether this node has given away everything it held, or has nobody to give it to.
    pub fn has_given_all(&self) -> bool {
        let machines = self.shared.machines.lock();
        RINGS.into_iter().all(|scope| {
            let ring = machines.ring(scope);
            let has_heir = ring.members().seats.values().any(|place| !place.arcs.is_empty());
            !has_heir || ring.has_given_all()
        })
    }

    /// Whether this node holds all that is its own on the ring of its region.
    pub fn has_settled(&self) -> bool {
        let machines = self.shared.machines.lock();
        let own = machines.region.members().arcs(self.shared.incarnation.node());
        own.without(machines.region.holds()).is_empty()
    }

    /// Everybody who counts for a quorum and for shares.
    pub fn known(&self) -> Known {
        self.shared.machines.lock().acquaintance.who_counts()
    }

    /// What happened since the start.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Does what the machines ask for, until `stop`. The tasks of handovers end with it.
    pub async fn run(&self, mesh: Mesh, replicator: Replicator, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut steps = JoinSet::new();
        let mut told = Epochs::default();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
                () = self.shared.wake.notified() => {}
                Some(_) = steps.join_next() => {}
            }
            let (due, epochs) = {
                let machines = &mut *self.shared.machines.lock();
                if machines.roll.strike_off(self.shared.tenancy.moment()) {
                    self.follow_roll(machines);
                }
                self.tick(machines);
                (self.take_steps(machines), machines.epochs())
            };
            if epochs != told {
                // Who stands where decides what is claimed when: do not wait for the next ping.
                told = epochs;
                mesh.ping_now();
            }
            for (scope, peer, epoch, step) in due {
                let (this, mesh, replicator) = (self.clone(), mesh.clone(), replicator.clone());
                steps.spawn(async move {
                    let is_done =
                        this.carry_out(scope, &peer, epoch, step, &mesh, &replicator).await;
                    if !is_done {
                        count(&this.shared.counters.failed, 1);
                        tokio::time::sleep(STEP_PAUSE).await;
                    }
                    let is_region = scope == Scope::Region;
                    this.shared.machines.lock().busy.remove(&(is_region, peer));
                });
            }
        }
    }

    /// What is to be done for each peer that nothing is done for yet.
    fn take_steps(&self, machines: &mut Machines) -> Vec<(Scope, NodeId, Epoch, Step)> {
        let mut due = Vec::new();
        if !machines.is_open {
            return due;
        }
        let now = self.shared.tenancy.moment();
        for scope in RINGS {
            let is_region = scope == Scope::Region;
            let ring = machines.ring(scope);
            let peers: Vec<NodeId> = ring.members().seats.keys().cloned().collect();
            for peer in peers {
                if machines.busy.contains(&(is_region, peer.clone())) {
                    continue;
                }
                let ring = machines.ring_mut(scope);
                if let Some(step) = ring.next(&peer, now) {
                    let epoch = ring.epoch();
                    machines.busy.insert((is_region, peer.clone()));
                    due.push((scope, peer, epoch, step));
                }
            }
        }
        // A step may have frozen something.
        self.publish(machines);
        due
    }

    /// Carries out one step and tells the machine what came of it. Returns whether it came to
    /// something.
    async fn carry_out(
        &self,
        scope: Scope,
        peer: &NodeId,
        epoch: Epoch,
        step: Step,
        mesh: &Mesh,
        replicator: &Replicator,
    ) -> bool {
        let send = async |epoch, step| {
            let call = Call::Handoff(Handoff { scope, epoch, step });
            match mesh.call(peer, LaneKind::Bulk, call, MESSAGE_TIMEOUT).await {
                Ok(Reply::Handoff(reply)) => Some(reply),
                Ok(_) | Err(_) => None,
            }
        };
        match step {
            Step::Offer(epoch) => {
                let Some(reply) = send(epoch, HandoffStep::Offer).await else { return false };
                self.on_ring(scope, |ring| ring.offer_answered(peer, epoch, reply));
                reply == HandoffReply::Ready
            }
            Step::Copy { follows, copies } => {
                replicator.follow(scope, peer.clone(), follows.clone());
                let places = follows.with(&copies);
                let wants = |key: KeyHash| {
                    key.is_owned() && key.scope() == scope && places.contains(key.place)
                };
                let copied =
                    if places.is_empty() { Ok(0) } else { replicator.copy(peer, wants).await };
                let Ok(copied) = copied else { return false };
                count(&self.shared.counters.copied, copied);
                self.on_ring(scope, |ring| ring.copied(peer, epoch));
                true
            }
            Step::Flush => {
                // Every decision that was permitted before the freeze is in line behind this.
                self.shared.store.barrier();
                let flushed = tokio::time::timeout(FLUSH_TIMEOUT, replicator.flush(peer)).await;
                let is_done = matches!(flushed, Ok(Ok(())));
                self.on_ring(scope, |ring| ring.flushed(peer, epoch, is_done));
                is_done
            }
            Step::Release { epoch, number, ranges } => {
                let count_of = ranges.iter().len() as u64;
                let step = HandoffStep::Release { number, ranges };
                let Some(reply) = send(epoch, step).await else { return false };
                self.on_ring(scope, |ring| ring.release_answered(peer, number, reply));
                if reply == HandoffReply::Taken {
                    replicator.unfollow(scope, peer);
                    count(&self.shared.counters.handed_over, count_of);
                }
                reply == HandoffReply::Taken
            }
        }
    }

    fn on_ring(&self, scope: Scope, tell: impl FnOnce(&mut Ring)) {
        let machines = &mut *self.shared.machines.lock();
        tell(machines.ring_mut(scope));
        self.publish(machines);
        self.shared.wake.notify_one();
    }

    /// Time passed.
    fn tick(&self, machines: &mut Machines) {
        if !machines.is_open {
            return;
        }
        let now = self.shared.tenancy.moment();
        for scope in RINGS {
            let before = machines.ring(scope).standing();
            machines.ring_mut(scope).tick(now);
            let counters = &self.shared.counters;
            match (before, machines.ring(scope).standing()) {
                (Standing::Whole(_) | Standing::Broken(_), Standing::Nothing) => {
                    count(&counters.leases_lost, 1);
                    tracing::warn!(?scope, "no majority recognises this node: it owns nothing");
                }
                (_, Standing::Broken(_)) => {
                    count(&counters.tenures_broken, 1);
                    tracing::warn!(
                        ?scope,
                        "recognised anew: what was owned before is not any more"
                    );
                }
                (Standing::Nothing, Standing::Whole(_)) => {
                    tracing::info!(?scope, "a majority recognises this node");
                }
                _ => {}
            }
        }
        self.publish(machines);
    }

    /// The roll or what is known may have changed: so do the rings.
    fn follow_roll(&self, machines: &mut Machines) {
        let shared = &self.shared;
        let now = shared.clock.system();
        let forget = shared.options.forget_after;
        machines.acquaintance.follow(&machines.roll, &machines.view, now, forget);
        let on_roll = |(id, seat): (&NodeId, &super::roll::Seat)| {
            // Gossip forgets whom it gives up; the roll does not yet.
            let member = machines.view.get(id).or_else(|| machines.recognised.get(id))?;
            (member.generation == seat.generation).then(|| member.clone())
        };
        let recognised = View::new(machines.roll.seats().iter().filter_map(on_roll));
        let known = machines.acquaintance.who_counts();
        let current = shared.topology.load();
        let me = shared.incarnation.node().clone();
        let Options { region, vnodes, .. } = &shared.options;
        let topology = Topology::new(me, region.clone(), recognised.clone(), *vnodes)
            .with_known(known.clone())
            .after(&current);
        for scope in RINGS {
            let members = self.members(scope, &topology, &known);
            let ring = machines.ring_mut(scope);
            let before = ring.epoch();
            ring.follow(members);
            if ring.epoch() != before {
                count(&shared.counters.epochs, 1);
            }
        }
        machines.recognised = recognised;
        shared.topology.store(Arc::new(topology));
        self.publish(machines);
        shared.wake.notify_one();
    }

    fn members(&self, scope: Scope, topology: &Topology, known: &Known) -> Members {
        let region = &self.shared.options.region;
        let is_on = |its_region: &str| scope == Scope::Global || its_region == region;
        let ring = match scope {
            Scope::Region => topology.region_ring(region),
            Scope::Global => Some(topology.global_ring()),
        };
        let seats = topology.view.members().iter().filter(|member| is_on(&member.region));
        let seats = seats.map(|member| {
            let arcs = ring.map(|ring| ring.arcs(&member.id)).unwrap_or_default();
            (member.id.clone(), Place { generation: member.generation, arcs })
        });
        let counts = known.nodes().iter().filter(|(_, its_region)| is_on(its_region));
        let quorum = match self.shared.options.quorum {
            QuorumRule::Majority => Quorum::Of(counts.map(|(id, _)| id.clone()).collect()),
            QuorumRule::None => Quorum::Everyone,
        };
        Members { seats: seats.collect(), quorum }
    }

    /// Lets every decision know.
    fn publish(&self, machines: &mut Machines) {
        for (scope, at) in RINGS.into_iter().zip(0..) {
            let ring = machines.ring(scope);
            let holding = Holding {
                epoch: ring.epoch(),
                decides: ring.decides(),
                given: ring.given().iter().map(|(to, what)| (what.clone(), to.clone())).collect(),
            };
            let until = match ring.standing() {
                Standing::Whole(until) | Standing::Broken(until) => until,
                Standing::Nothing => super::Moment::EPOCH,
            };
            self.shared.tenancy.lease(scope, until);
            if machines.published[at] != holding {
                machines.published[at] = holding.clone();
                self.shared.tenancy.hold(scope, holding);
            }
        }
    }
}

impl Machines {
    fn ring(&self, scope: Scope) -> &Ring {
        match scope {
            Scope::Region => &self.region,
            Scope::Global => &self.global,
        }
    }

    fn ring_mut(&mut self, scope: Scope) -> &mut Ring {
        match scope {
            Scope::Region => &mut self.region,
            Scope::Global => &mut self.global,
        }
    }

    fn epochs(&self) -> Epochs {
        Epochs { region: self.region.epoch(), global: self.global.epoch() }
    }
}

fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

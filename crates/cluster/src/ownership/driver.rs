//! Runs the machines: tells them what gossip, pings and peers say, does what they ask for, and
//! publishes what follows, to the decisions as a [`Ownership`] and to everybody as a [`Topology`].
//!
//! One lock guards the machines. It is held for the time of a computation, never over a message.

mod counters;
mod follow;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::counters::Counters;
use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::Store;
use tidegate_limiter::units::{Span, Timestamp};
use tidegate_ownership::QuorumRule;
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::membership::{KnownMembers, View};
use tidegate_ownership::route::Topology;
use tidegate_ownership::{
    Epochs, HandoffReply, LeaseState, MembershipTable, Monotonic, OwnershipStatus, RecordedGrant,
    Ring, VoterSet, Voters,
};

use self::counters::count;
use super::{OwnedRanges, Ownership};
use crate::environment::Clock;
use crate::incarnation::Incarnation;
use crate::mesh::wire::{Handoff, HandoffStep};
use crate::mesh::{Mesh, Peer};
use crate::replication::Replicator;

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
    ownership: Ownership,
    topology: Arc<ArcSwap<Topology>>,
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    machines: Mutex<Machines>,
    /// Something changed: look what is to be done.
    wake: Notify,
    /// Who counts, for the others to hear.
    voter_set: watch::Sender<VoterSet>,
    counters: Counters,
}

#[derive(Debug)]
struct Machines {
    table: MembershipTable,
    voters: Voters,
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
    /// Members that hear every change of ranges which are to be theirs.
    following: BTreeSet<(bool, NodeId)>,
    /// Peers that are heard and do not hear: recognised by nobody, and our pings to them stay
    /// unanswered.
    deaf: BTreeSet<(NodeId, Generation)>,
    /// Pings to each start of a peer since it last answered one.
    unanswered: BTreeMap<NodeId, (Generation, u32)>,
    /// What was published last, in the order of [`RINGS`].
    published: [OwnedRanges; 2],
}

/// How often the machines are looked at when nothing happens.
const TICK: Duration = Duration::from_millis(20);
/// A peer that nobody recognises gets no grant when so many pings to it in a row stay unanswered.
const UNGRANTED_AFTER: u32 = 4;
/// And counts as lost after so many, which take a second.
const DEAF_AFTER: u32 = 10;
/// The pause after a step that came to nothing.
const STEP_PAUSE: Duration = Duration::from_millis(10);

const RINGS: [Scope; 2] = [Scope::Region, Scope::Global];

impl Driver {
    /// A driver of a node that knows itself only. It changes `ownership` and `topology` from then on.
    pub fn new(
        options: Options,
        incarnation: Arc<Incarnation>,
        ownership: Ownership,
        topology: Arc<ArcSwap<Topology>>,
        store: Arc<Store>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let me = incarnation.node().clone();
        let ring = || Ring::new(me.clone(), options.lease);
        let machines = Machines {
            table: MembershipTable::new(me.clone(), options.lease),
            voters: Voters::default(),
            region: ring(),
            global: ring(),
            view: View::default(),
            recognised: View::default(),
            is_open: false,
            busy: BTreeSet::new(),
            following: BTreeSet::new(),
            deaf: BTreeSet::new(),
            unanswered: BTreeMap::new(),
            published: Default::default(),
        };
        let shared = Shared {
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
        };
        Self { shared: Arc::new(shared) }
    }

    /// Takes in what gossip says.
    pub fn hear(&self, view: &View) {
        let machines = &mut *self.shared.machines.lock();
        machines.view = view.clone();
        self.call_the_roll(machines);
        self.follow_roll(machines);
    }

    /// Who counts for a majority; the others are to be told.
    pub fn voter_set(&self) -> watch::Receiver<VoterSet> {
        self.shared.voter_set.subscribe()
    }

    /// From now on this node tells its epochs and takes what is its own. Call it once it knows its
    /// fellow members.
    pub fn open(&self) {
        let machines = &mut *self.shared.machines.lock();
        machines.is_open = true;
        machines.voters.found(&self.shared.options.region);
        self.follow_roll(machines);
    }

    /// Where this node stands, for a ping to `peer`.
    pub fn ownership_status(&self, peer: &Peer) -> OwnershipStatus {
        let machines = &mut *self.shared.machines.lock();
        let begun = (peer.generation, 0);
        let (of, unanswered) = machines.unanswered.entry(peer.id.clone()).or_insert(begun);
        // What a start left unanswered because it died is not held against the next one.
        if *of < peer.generation {
            (*of, *unanswered) = begun;
        }
        if *of == peer.generation {
            *unanswered = unanswered.saturating_add(1);
        }
        let has_lease = self.shared.ownership.has_lease(Scope::Region);
        OwnershipStatus { epochs: machines.epochs(), has_lease }
    }

    /// Answers a ping of `peer`, and where it stands: where this node stands, and a grant.
    pub fn pinged(
        &self,
        peer: &Peer,
        ownership_status: OwnershipStatus,
    ) -> (Option<Epochs>, Option<u64>) {
        let now = self.shared.ownership.monotonic();
        let machines = &mut *self.shared.machines.lock();
        machines.region.met(ownership_status.epochs.region);
        machines.global.met(ownership_status.epochs.global);
        // One that nobody recognises and that does not hear us is behind a cut that lets only its
        // own datagrams through. What it is granted never arrives; it would only stay on the roll.
        let counted = machines.unanswered.get(&peer.id);
        let counted = counted.filter(|(of, _)| *of == peer.generation);
        let unanswered = counted.map_or(0, |(_, unanswered)| *unanswered);
        let hears = ownership_status.has_lease || unanswered < UNGRANTED_AFTER;
        let start = (peer.id.clone(), peer.generation);
        if !ownership_status.has_lease && unanswered >= DEAF_AFTER && machines.deaf.insert(start) {
            tracing::warn!(peer = %peer.id, "it is heard and does not hear: taken for lost");
            self.call_the_roll(machines);
            self.follow_roll(machines);
        }
        let grant = if hears { machines.table.grant(now, &peer.id, peer.generation) } else { None };
        // What an earlier start of this node granted may still be believed.
        let remembers = now.since(Monotonic::EPOCH) >= self.shared.options.lease;
        let told = (machines.is_open && remembers).then(|| machines.epochs());
        (told, grant)
    }

    /// `peer` answered the ping that was sent at `sent`.
    pub fn ponged(&self, peer: &Peer, sent: Instant, epochs: Option<Epochs>, grant: Option<u64>) {
        let sent = self.shared.ownership.monotonic_at(sent);
        let machines = &mut *self.shared.machines.lock();
        let recognised = grant.map(|serial| RecordedGrant { generation: peer.generation, serial });
        machines.unanswered.insert(peer.id.clone(), (peer.generation, 0));
        if machines.deaf.remove(&(peer.id.clone(), peer.generation)) {
            self.call_the_roll(machines);
            self.follow_roll(machines);
        }
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
            let has_heir = ring.members().entries.values().any(|token| !token.arcs.is_empty());
            !has_heir || ring.has_given_all()
        })
    }

    /// Whether this node holds all that is its own, and nobody waits for anything of it.
    pub fn has_settled(&self) -> bool {
        let machines = self.shared.machines.lock();
        RINGS.into_iter().all(|scope| machines.ring(scope).is_settled())
    }

    /// Members that were lost without leaving and still count.
    pub fn missed(&self) -> Vec<NodeId> {
        let voter_set = self.shared.machines.lock().voters.voter_set();
        let lost = |(id, _, lost): (NodeId, String, Option<Timestamp>)| lost.map(|_| id);
        voter_set.members.into_iter().filter_map(lost).collect()
    }

    /// Everybody who counts for a quorum and for shares.
    pub fn known(&self) -> KnownMembers {
        self.shared.machines.lock().voters.known()
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
                Some(ended) = steps.join_next() => match ended {
                    // The peer would wait for ever for what was not done; the node has to end.
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    _ => {}
                },
            }
            let (due, epochs, gone) = {
                let machines = &mut *self.shared.machines.lock();
                if machines.table.evict(self.shared.ownership.monotonic()) {
                    self.follow_roll(machines);
                }
                self.tick(machines);
                (self.take_steps(machines), machines.epochs(), machines.take_gone())
            };
            for (scope, peer) in gone {
                replicator.unsubscribe(scope, &peer);
            }
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

    /// Time passed.
    fn tick(&self, machines: &mut Machines) {
        if !machines.is_open {
            return;
        }
        let now = self.shared.ownership.monotonic();
        for scope in RINGS {
            let before = machines.ring(scope).lease_state();
            // The first lease of a start breaks nothing.
            let had = !machines.ring(scope).holds().is_empty();
            machines.ring_mut(scope).tick(now);
            let counters = &self.shared.counters;
            match (before, machines.ring(scope).lease_state()) {
                (LeaseState::Whole(_) | LeaseState::Broken(_), LeaseState::Nothing) => {
                    count(&counters.leases_lost, 1);
                    tracing::warn!(?scope, "no majority recognises this node: it owns nothing");
                }
                (_, LeaseState::Broken(_)) if had => {
                    count(&counters.leases_interrupted, 1);
                    tracing::warn!(
                        ?scope,
                        "recognised anew: what was owned before is not any more"
                    );
                }
                (LeaseState::Nothing, LeaseState::Whole(_) | LeaseState::Broken(_)) => {
                    tracing::info!(?scope, "a majority recognises this node");
                }
                _ => {}
            }
        }
        // Newcomers count as soon as a quorum without them stands at an epoch with them.
        let is_recognised = !matches!(machines.region.lease_state(), LeaseState::Nothing);
        if is_recognised
            && machines.region.is_agreed(now)
            && machines.voters.admit(&self.shared.options.region)
        {
            self.follow_roll(machines);
        }
        self.publish(machines);
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

    /// Followers that are on the ring no more: what waits for them would wait for ever.
    fn take_gone(&mut self) -> Vec<(Scope, NodeId)> {
        let (region, global) = (&self.region.members().entries, &self.global.members().entries);
        let is_gone = |(is_region, id): &(bool, NodeId)| {
            !(if *is_region { region } else { global }).contains_key(id)
        };
        let gone: Vec<_> = self.following.iter().filter(|it| is_gone(it)).cloned().collect();
        let scope = |is_region| if is_region { Scope::Region } else { Scope::Global };
        gone.into_iter()
            .map(|it| {
                self.following.remove(&it);
                (scope(it.0), it.1)
            })
            .collect()
    }

    fn epochs(&self) -> Epochs {
        Epochs { region: self.region.epoch(), global: self.global.epoch() }
    }
}

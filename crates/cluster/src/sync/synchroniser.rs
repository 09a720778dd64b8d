//! The synchroniser's state, its rounds, and the sending side.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::Wake;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_limiter::engine::{ActorCounters, ActorId, Delta};
use tidegate_limiter::store::{BackgroundScan, Cursor, KeyHash, SYNC_SLACK_DIVISOR, Store};
use tidegate_limiter::units::Span;
use tidegate_ownership::Epoch;
use tidegate_ownership::cluster_map::{ClusterId, Collection};
use tidegate_ownership::identity::{Generation, NodeId, is_node, node_actor, region_actor};
use tidegate_ownership::membership::Member;
use tidegate_ownership::route::{Admission, Topology};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::batch::{Batch, Batches};
use super::lanes::{Lanes, Turn};
use super::recipients::{self, Recipients, replica};
use crate::changes::Changes;
use crate::count;
use crate::environment::Clock;
use crate::incarnation::Incarnation;
use crate::mesh::codec::RESTS;
use crate::mesh::wire::{Call, Reply, Sync, SyncRole};
use crate::mesh::{Mesh, StreamClass};
use crate::pki::Role;

/// How often counters are sent.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Inside the region.
    pub interval: Duration,
    /// Between regions.
    pub region_interval: Duration,
    /// How far ahead of this node's clock a peer's may be.
    pub ahead_max: Span,
}

/// Synchronises the eventual keys of a store.
#[derive(Debug)]
pub struct Synchroniser {
    pub(super) options: Options,
    pub(super) store: Arc<Store>,
    pub(super) topology: Arc<ArcSwap<Topology>>,
    pub(super) incarnation: Arc<Incarnation>,
    pub(super) clock: Arc<dyn Clock>,
    pub counters: Counters,
    /// See [`LocalActor::slack_divisor`](tidegate_limiter::store::LocalActor). The nodes of all
    /// regions share the sync slack.
    slack_divisor: AtomicU32,
    /// The background scan for keys far from their limit.
    scan: Mutex<BackgroundScan>,
    /// Owned keys that changed since the last region exchange.
    region_queue: Mutex<RegionQueue>,
    lanes: Mutex<Lanes>,
    /// Signalled by urgent keys of the store, and of `announced`.
    changes: Arc<Changes>,
    /// Owned keys of which nodes announced a count, with the node if it is one alone: the others
    /// have to be sent it.
    announced: Mutex<BTreeMap<KeyHash, Option<NodeId>>>,
    /// The members to which copies of counters of earlier starts were pushed.
    pub(super) pushed: Mutex<(ClusterId, Epoch)>,
}

/// The epoch of the view, and its members with their generations. When it changes, a peer may have
/// none of this node's counters, or hold back less. Beside them about how many edges there are.
type Members = (u64, Vec<(NodeId, Generation)>, u32);

/// Statistics since the start, for the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Keys sent to peers.
    pub sent: AtomicU64,
    /// Keys received from peers.
    pub received: AtomicU64,
    /// Received keys that were refused: the peer is not authoritative for the actors, or the
    /// counters are implausible.
    pub rejected: AtomicU64,
    /// Messages that failed; their keys are sent again.
    pub failed: AtomicU64,
    /// Messages that announced counts without waiting for a round.
    pub announcements: AtomicU64,
}

/// Keys that one round takes from the store, or from the region queue; the rest waits for the next.
const ROUND_KEYS_MAX: usize = 16_384;
/// Keys that one step of a scan of the store takes.
pub(super) const SCAN_KEYS: usize = 1_024;
/// How long one scan of all keys takes, and so the greatest age of what a peer shows for a key far
/// from its limit. One message a minute is about a thousandth of one in each round.
const SCAN_TIME: Duration = Duration::from_secs(60);
/// How long a message waits for its reply.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a node that leaves goes on sending what it counted last.
const FINAL_ROUND_TIMEOUT: Duration = Duration::from_millis(500);
/// Most keys that wait to be announced further. One more waits for the next round.
const ANNOUNCED_MAX: usize = 16_384;

impl Synchroniser {
    /// Creates a synchroniser of `store`. It sends nothing until [`Synchroniser::run`].
    pub fn new(
        options: Options,
        store: Arc<Store>,
        topology: Arc<ArcSwap<Topology>>,
        incarnation: Arc<Incarnation>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let changes = Arc::new(Changes::default());
        store.set_synchronised(Some(&changes.clone().into()));
        Arc::new(Self {
            options,
            store,
            topology,
            incarnation,
            clock,
            counters: Counters::default(),
            slack_divisor: AtomicU32::new(0),
            scan: Mutex::default(),
            region_queue: Mutex::default(),
            lanes: Mutex::default(),
            changes,
            announced: Mutex::default(),
            pushed: Mutex::default(),
        })
    }

    /// See [`LocalActor::slack_divisor`](tidegate_limiter::store::LocalActor).
    pub fn slack_divisor(&self) -> u32 {
        self.slack_divisor.load(Ordering::Relaxed)
    }

    /// Divides the slack among the members and edges. A node that leaves has none. What nodes of an
    /// earlier, smaller cluster held back is sent because every key is queued when the members
    /// change.
    fn divide_slack(&self, topology: &Topology) {
        let members = u32::try_from(topology.view.members().len()).unwrap_or(u32::MAX);
        let nodes = members.saturating_add(topology.edges).max(1);
        let divisor =
            if topology.is_leaving() { 0 } else { SYNC_SLACK_DIVISOR.saturating_mul(nodes) };
        self.slack_divisor.store(divisor, Ordering::Relaxed);
    }

    /// Sends changes every interval, and urgent ones at once, until `stop`. Then sends what is
    /// left, for at most half a second.
    pub async fn run(self: &Arc<Self>, mesh: Arc<Mesh>, stop: CancellationToken) {
        tokio::join!(self.run_collection(mesh.clone(), stop.clone()), self.run_rounds(mesh, stop));
    }

    async fn run_rounds(self: &Arc<Self>, mesh: Arc<Mesh>, stop: CancellationToken) {
        let mut rounds = mesh.ticks.every(self.options.interval);
        let mut regions = mesh.ticks.every(self.options.region_interval);
        let mut messages = JoinSet::new();
        let mut recipients = Recipients::new(self.topology.load_full());
        let mut previous = members(&recipients.topology);
        self.divide_slack(&recipients.topology);
        loop {
            let is_urgent = tokio::select! {
                () = stop.cancelled() => break,
                _ = rounds.tick() => false,
                () = self.changes.first() => true,
                _ = regions.tick() => {
                    self.send(self.region_round(), false, &mesh, &mut messages);
                    continue;
                }
                Some(_) = messages.join_next() => continue,
            };
            if !Arc::ptr_eq(&recipients.topology, &self.topology.load()) {
                recipients = Recipients::new(self.topology.load_full());
                let members = members(&recipients.topology);
                if members != previous {
                    previous = members;
                    self.divide_slack(&recipients.topology);
                    self.enqueue_all().await;
                }
            }
            let batches = if is_urgent {
                self.changes.reset();
                self.announcements(&recipients, &mesh)
            } else {
                self.round(&recipients, &mesh)
            };
            self.send(batches, is_urgent, &mesh, &mut messages);
        }
        self.run_final_round(&mesh, messages).await;
    }

    /// Sends everything that peers have not been sent. Waits for the replies between the steps,
    /// because a peer with a message in flight would be sent no other.
    async fn run_final_round(self: &Arc<Self>, mesh: &Arc<Mesh>, mut messages: JoinSet<()>) {
        // From now on every change is sent in the next round.
        self.slack_divisor.store(0, Ordering::Relaxed);
        let final_round = async {
            let recipients = Recipients::new(self.topology.load_full());
            while messages.join_next().await.is_some() {}
            self.send(self.round(&recipients, mesh), false, mesh, &mut messages);
            let (mut scan, mut has_more) = (BackgroundScan::default(), true);
            while has_more {
                while messages.join_next().await.is_some() {}
                let batches = self.collect(&recipients, mesh, |take| {
                    let now = self.clock.now();
                    let drained = self.store.drain_lazy(&mut scan, 1, ROUND_KEYS_MAX, now, take);
                    has_more = drained >= ROUND_KEYS_MAX;
                });
                self.send(batches, false, mesh, &mut messages);
            }
            while messages.join_next().await.is_some() {}
            self.send(self.region_round(), false, mesh, &mut messages);
            while messages.join_next().await.is_some() {}
        };
        let _ = tokio::time::timeout(FINAL_ROUND_TIMEOUT, final_round).await;
    }

    /// Queues every eventual key. Scans the store in bounded steps and yields between them.
    async fn enqueue_all(&self) {
        let store = &self.store;
        let now = self.clock.now();
        let mut found = Vec::new();
        let mut from = Some(Cursor::default());
        while let Some(cursor) = from {
            from = store.scan(cursor, now, SCAN_KEYS, |_| true, &mut found);
            for counter in found.drain(..) {
                if counter.state.actor_counters().is_some() {
                    store.enqueue_sync(counter.key);
                }
            }
            tokio::task::yield_now().await;
        }
    }
}

// === rounds and announcements ===

impl Synchroniser {
    /// The changes since the last round for the peers in this region.
    fn round(&self, recipients: &Recipients, mesh: &Mesh) -> Vec<Batch> {
        self.collect(recipients, mesh, |take| {
            self.store.drain_sync_queue(ROUND_KEYS_MAX, &mut *take);
            // This round's part of the background scan.
            let rounds = SCAN_TIME.as_millis() / self.options.interval.as_millis().max(1);
            let rounds = usize::try_from(rounds).unwrap_or(usize::MAX).max(1);
            let now = self.clock.now();
            let scan = &mut *self.scan.lock();
            self.store.drain_lazy(scan, rounds, ROUND_KEYS_MAX, now, take);
        })
    }

    /// Sorts the keys that `drain` hands over into messages to the peers in this region.
    fn collect(
        &self,
        recipients: &Recipients,
        mesh: &Mesh,
        drain: impl FnOnce(&mut dyn FnMut(KeyHash, &ActorCounters)),
    ) -> Vec<Batch> {
        let topology = &recipients.topology;
        let mut batches = Batches::default();
        let mut postponed = Vec::new();
        let connected = mesh.edges();
        drain(&mut |key: KeyHash, actor_counters: &ActorCounters| {
            let (role, nodes) = recipients.of(key, actor_counters);
            let is_owner = role == SyncRole::Owner;
            let replica = replica(topology, key).filter(|it| !nodes.contains(it));
            for to in nodes.iter().copied().chain(replica.filter(|_| is_owner)) {
                let counters = self.counters_for(to, role, key, actor_counters, topology, mesh);
                batches.add(to, role, key, counters);
            }
            for to in recipients::edges(&connected, actor_counters).filter(|_| is_owner) {
                let counters = self.counters_for(to, role, key, actor_counters, topology, mesh);
                batches.add(to, role, key, counters);
            }
            let is_exchanged = is_owner && recipients.has_other_regions;
            if is_exchanged && !self.region_queue.lock().add(key) {
                postponed.push(key);
            }
        });
        for key in postponed {
            self.store.enqueue_sync(key);
        }
        batches.split()
    }

    /// Urgent keys, and those of which nodes announced a count, for the peers in this region that
    /// have no announcement in flight; those for the others wait in their lanes.
    fn announcements(&self, recipients: &Recipients, mesh: &Mesh) -> Vec<Batch> {
        let mut batches = Batches::default();
        let mut postponed = Vec::new();
        let mut announce = |key: KeyHash, counters: &ActorCounters, except: Option<&NodeId>| {
            let (role, nodes) = recipients.of(key, counters);
            let mut is_postponed = role == SyncRole::Owner;
            for to in nodes.into_iter().filter(|to| Some(*to) != except) {
                match self.lanes.lock().turn(to, role, key) {
                    Turn::Now => {
                        let topology = &recipients.topology;
                        let it = self.counters_for(to, role, key, counters, topology, mesh);
                        batches.add(to, role, key, it);
                    }
                    Turn::Waits => {}
                    Turn::Full => is_postponed = true,
                }
            }
            // The replica and the other regions are sent it with the next round.
            if is_postponed {
                postponed.push(key);
            }
        };
        let drained = self.store.drain_urgent_sync(ROUND_KEYS_MAX, |key, actor_counters| {
            announce(key, actor_counters, None);
        });
        let announced = std::mem::take(&mut *self.announced.lock());
        for (key, by) in announced {
            self.store.read_actor_counters(key, |it| announce(key, it, by.as_ref()));
        }
        for key in postponed {
            self.store.enqueue_sync(key);
        }
        if drained >= ROUND_KEYS_MAX {
            self.changes.wake_by_ref();
        }
        batches.split()
    }

    /// Announces an owned key, of which `by` has announced a count, to the other nodes.
    pub(super) fn announce_further(&self, key: KeyHash, by: &NodeId) {
        {
            let mut announced = self.announced.lock();
            if announced.len() < ANNOUNCED_MAX || announced.contains_key(&key) {
                let only = announced.entry(key).or_insert_with(|| Some(by.clone()));
                if only.as_ref() != Some(by) {
                    *only = None;
                }
            } else {
                drop(announced);
                return self.store.enqueue_sync(key);
            }
        }
        self.changes.wake_by_ref();
    }

    /// What `to` is sent of a key by this node in this role.
    fn counters_for(
        &self,
        to: &NodeId,
        role: SyncRole,
        key: KeyHash,
        actor_counters: &ActorCounters,
        topology: &Topology,
        mesh: &Mesh,
    ) -> Delta {
        match role {
            SyncRole::Region => self.region_counter(actor_counters),
            SyncRole::Node => {
                let own = self.incarnation.actor();
                // The total of a present node is pushed by that node, and by others when members
                // change.
                let is_gone = |actor: ActorId| {
                    let present = topology.present_actor(actor);
                    if actor.is_total() { present.is_none() } else { present != Some(actor) }
                };
                let is_core = mesh.role == Role::Core;
                actor_counters
                    .delta_of(|actor| actor.writer() == own.writer() || is_core && is_gone(actor))
            }
            SyncRole::Owner => {
                let peer = mesh.peer(to);
                let version = peer.as_ref().map_or(0, |peer| peer.version);
                let edge = peer.filter(|peer| peer.role == Role::Edge).map(|edge| edge.generation);
                let member = topology.view.get(to).map(|member| member.generation);
                let generation = edge.or(member).unwrap_or(Generation(0));
                let is_replica = replica(topology, key) == Some(to);
                known_to(actor_counters, node_actor(to, generation), version, is_replica)
            }
        }
    }

    /// The changes in this region since the last exchange, for the owners in the other regions.
    fn region_round(&self) -> Vec<Batch> {
        let topology = self.topology.load();
        let keys = self.region_queue.lock().take(ROUND_KEYS_MAX);
        let mut batches = Batches::default();
        for key in keys {
            let counter = self.store.read_actor_counters(key, |it| self.region_counter(it));
            let Some(counter) = counter.filter(|counter| !counter.is_empty()) else { continue };
            for region in topology.regions().filter(|region| *region != topology.region) {
                if let Some(owner) = topology.region_owner(region, key.token) {
                    batches.add(owner, SyncRole::Region, key, counter.clone());
                }
            }
        }
        batches.split()
    }

    /// One counter for this whole region.
    pub(super) fn region_counter(&self, actor_counters: &ActorCounters) -> Delta {
        let topology = self.topology.load();
        actor_counters.region_view(region_actor(&topology.region), is_node)
    }
}

// === messages and their replies ===

impl Synchroniser {
    /// Sends each batch in a task of its own. Keys of a round for a peer that has not answered the
    /// last one are queued again.
    fn send(
        self: &Arc<Self>,
        batches: Vec<Batch>,
        is_urgent: bool,
        mesh: &Arc<Mesh>,
        messages: &mut JoinSet<()>,
    ) {
        let (held, sent) = {
            let mut lanes = self.lanes.lock();
            let is_held = |batch: &Batch| !is_urgent && lanes.is_busy(&batch.to, is_urgent);
            let (held, sent): (Vec<_>, Vec<_>) = batches.into_iter().partition(is_held);
            for batch in &sent {
                lanes.begin(&batch.to, is_urgent);
            }
            (held, sent)
        };
        for batch in held {
            self.enqueue_again(batch.keys(), batch.role);
        }
        for batch in sent {
            let (this, mesh) = (self.clone(), mesh.clone());
            messages.spawn(async move { this.use_lane(batch, is_urgent, &mesh).await });
        }
    }

    /// Sends a batch, and then what became due for the same peer meanwhile.
    async fn use_lane(self: Arc<Self>, batch: Batch, is_urgent: bool, mesh: &Mesh) {
        let to = batch.to.clone();
        let mut batches = vec![batch];
        loop {
            for batch in batches {
                self.send_batch(batch, is_urgent, mesh).await;
            }
            let Some(waiting) = self.lanes.lock().end(&to, is_urgent) else { return };
            let topology = self.topology.load();
            let mut next = Batches::default();
            for (role, key) in waiting {
                self.store.read_actor_counters(key, |it| {
                    let counters = self.counters_for(&to, role, key, it, &topology, mesh);
                    next.add(&to, role, key, counters);
                });
            }
            batches = next.split();
        }
    }

    async fn send_batch(&self, batch: Batch, is_urgent: bool, mesh: &Mesh) {
        let keys: BTreeSet<KeyHash> = batch.keys().collect();
        let Batch { to, role, entries } = batch;
        count(&self.counters.sent, keys.len() as u64);
        count(&self.counters.announcements, u64::from(is_urgent));
        let admission = self.topology.load().admission();
        let call = Call::Sync(Sync { role, urgent: is_urgent, entries });
        let class = if is_urgent { StreamClass::Checks } else { StreamClass::Bulk };
        if mesh.role == Role::Edge {
            let owner = self.topology.load().view.get(&to).map(|member| member.addr);
            if let Some(addr) = owner {
                let _ = tokio::time::timeout(REPLY_TIMEOUT, mesh.connect(&to, addr)).await;
            }
        }
        match mesh.call(&to, class, call, REPLY_TIMEOUT).await {
            Ok(Reply::ActorCounters { members, entries }) => {
                let is_collected = |own: &Admission| {
                    own.collection == Collection { members_at: members, is_complete: true }
                };
                let collected = admission.filter(|own| role == SyncRole::Node && is_collected(own));
                self.receive_reply(&to, role, keys, entries, collected);
            }
            Ok(Reply::Done) => {}
            Ok(_) | Err(_) => {
                count(&self.counters.failed, 1);
                // An edge that has gone gets them in the reply to what it counts next.
                let is_member = self.topology.load().view.get(&to).is_some();
                if is_member || mesh.role == Role::Edge {
                    self.enqueue_again(keys, role);
                }
            }
        }
    }

    pub(super) fn enqueue_again(&self, keys: impl IntoIterator<Item = KeyHash>, role: SyncRole) {
        for key in keys {
            // A key that the region queue has no room for goes through another round.
            let is_queued = role == SyncRole::Region && self.region_queue.lock().add(key);
            if !is_queued {
                self.store.enqueue_sync(key);
            }
        }
    }
}

/// The counters of a key for a node that counts as `actor`. A replica has to know who counted, and
/// nodes of earlier versions take a rest for one more node that counted.
pub(super) fn known_to(
    actor_counters: &ActorCounters,
    actor: ActorId,
    version: u8,
    is_replica: bool,
) -> Delta {
    if is_replica || version < RESTS {
        actor_counters.delta_of(|it| it != actor)
    } else {
        actor_counters.rest_of(actor)
    }
}

fn members(topology: &Topology) -> Members {
    let member = |member: &Member| (member.id.clone(), member.generation);
    let members = topology.view.members().iter().map(member).collect();
    (topology.view.fingerprint(), members, topology.edges)
}

// === keys that wait for the region exchange ===

/// Most keys that wait. A key that does not fit goes through another round.
const REGION_KEYS_MAX: usize = 262_144;

/// Keys taken in cyclic order, so that none starves.
#[derive(Debug, Default)]
struct RegionQueue {
    keys: BTreeSet<KeyHash>,
    /// The last key taken.
    last: Option<KeyHash>,
}

impl RegionQueue {
    /// False if the queue is full.
    fn add(&mut self, key: KeyHash) -> bool {
        let has_room = self.keys.len() < REGION_KEYS_MAX || self.keys.contains(&key);
        if has_room {
            self.keys.insert(key);
        }
        has_room
    }

    /// Takes up to `max` keys, beginning after the last one taken.
    fn take(&mut self, max: usize) -> Vec<KeyHash> {
        let after_last = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let wrapped = self.last.into_iter().flat_map(|last| self.keys.range(..=last));
        let cyclic = self.keys.range((after_last, Bound::Unbounded)).chain(wrapped);
        let taken: Vec<KeyHash> = cyclic.take(max).copied().collect();
        for key in &taken {
            self.keys.remove(key);
        }
        self.last = taken.last().copied();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_taken_in_cyclic_order_and_once() {
        let key = |tag| KeyHash { token: 1, tag };
        let mut queue = RegionQueue::default();
        assert!((0..5).all(|tag| queue.add(key(tag))));
        assert_eq!(queue.take(2), [key(0), key(1)]);
        assert!(queue.add(key(0)));
        assert_eq!(queue.take(2), [key(2), key(3)], "a busy key does not delay the others");
        assert_eq!(queue.take(9), [key(4), key(0)]);
        assert_eq!(queue.take(9), []);
    }
}

//! The synchroniser's state, its rounds, and the sending side.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
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
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::batch::{Batch, Batches};
use crate::count;
use crate::environment::Clock;
use crate::incarnation::Incarnation;
use crate::mesh::wire::{Call, Reply, Sync, SyncRole};
use crate::mesh::{Mesh, StreamClass};

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
    /// Peers with messages in flight; they are sent no others.
    in_flight: Mutex<BTreeMap<NodeId, InFlight>>,
    /// Wakes the loop before the interval ends.
    urgent: Notify,
    /// The members to which copies of counters of earlier starts were pushed.
    pub(super) pushed: Mutex<(ClusterId, Epoch)>,
}

/// The messages to a peer that have no reply yet.
#[derive(Debug, Default)]
struct InFlight {
    messages: usize,
    /// A key near its limit was held back meanwhile: the next round begins with the reply.
    is_urgent: bool,
}

/// The epoch of the view, and its members with their generations. When it changes, a peer may have
/// none of this node's counters.
type Members = (u64, Vec<(NodeId, Generation)>);

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
/// The shortest time between two rounds if keys near their limit make them urgent.
const ROUND_PAUSE: Duration = Duration::from_millis(4);

impl Synchroniser {
    /// Creates a synchroniser of `store`. It sends nothing until [`Synchroniser::run`].
    pub fn new(
        options: Options,
        store: Arc<Store>,
        topology: Arc<ArcSwap<Topology>>,
        incarnation: Arc<Incarnation>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
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
            in_flight: Mutex::default(),
            urgent: Notify::new(),
            pushed: Mutex::default(),
        })
    }

    /// Requests a round at once, because a key is near its limit. Does not block.
    pub fn hurry(&self) {
        self.urgent.notify_one();
    }

    /// See [`LocalActor::slack_divisor`](tidegate_limiter::store::LocalActor).
    pub fn slack_divisor(&self) -> u32 {
        self.slack_divisor.load(Ordering::Relaxed)
    }

    /// Divides the slack among the members. A node that leaves has none. What nodes of an earlier,
    /// smaller cluster held back is sent because every key is queued when the members change.
    fn divide_slack(&self, topology: &Topology) {
        let nodes = u32::try_from(topology.view.members().len()).unwrap_or(u32::MAX);
        let divisor =
            if topology.is_leaving() { 0 } else { SYNC_SLACK_DIVISOR.saturating_mul(nodes) };
        self.slack_divisor.store(divisor, Ordering::Relaxed);
    }

    /// Sends changes every interval and whenever a key is near its limit, until `stop`. Then sends
    /// what is left, for at most half a second.
    pub async fn run(self: &Arc<Self>, mesh: Arc<Mesh>, stop: CancellationToken) {
        tokio::join!(self.run_collection(mesh.clone(), stop.clone()), self.run_rounds(mesh, stop));
    }

    async fn run_rounds(self: &Arc<Self>, mesh: Arc<Mesh>, stop: CancellationToken) {
        let mut rounds = mesh.ticks.every(self.options.interval);
        let mut regions = mesh.ticks.every(self.options.region_interval);
        let mut messages = JoinSet::new();
        let mut previous = members(&self.topology.load());
        self.divide_slack(&self.topology.load());
        loop {
            let urgent = tokio::select! {
                () = stop.cancelled() => break,
                _ = rounds.tick() => false,
                () = self.urgent.notified() => true,
                _ = regions.tick() => {
                    self.send(self.region_round(), false, &mesh, &mut messages);
                    continue;
                }
                Some(_) = messages.join_next() => continue,
            };
            let topology = self.topology.load_full();
            let members = members(&topology);
            if members != previous {
                previous = members;
                self.divide_slack(&topology);
                self.enqueue_all().await;
            }
            self.send(self.round(&topology, urgent), urgent, &mesh, &mut messages);
            if urgent {
                tokio::time::sleep(ROUND_PAUSE).await;
            }
        }
        self.run_final_round(&mesh, messages).await;
    }

    /// Sends everything that peers have not been sent. Waits for the replies between the steps,
    /// because a peer with a message in flight would be sent no other.
    async fn run_final_round(self: &Arc<Self>, mesh: &Arc<Mesh>, mut messages: JoinSet<()>) {
        // From now on every change is sent in the next round.
        self.slack_divisor.store(0, Ordering::Relaxed);
        let final_round = async {
            let topology = self.topology.load_full();
            while messages.join_next().await.is_some() {}
            self.send(self.round(&topology, false), true, mesh, &mut messages);
            let (mut scan, mut has_more) = (BackgroundScan::default(), true);
            while has_more {
                while messages.join_next().await.is_some() {}
                let batches = self.collect(&topology, |take| {
                    let now = self.clock.now();
                    let drained = self.store.drain_lazy(&mut scan, 1, ROUND_KEYS_MAX, now, take);
                    has_more = drained >= ROUND_KEYS_MAX;
                });
                self.send(batches, true, mesh, &mut messages);
            }
            while messages.join_next().await.is_some() {}
            self.send(self.region_round(), true, mesh, &mut messages);
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

// === rounds: what is sent to whom ===

impl Synchroniser {
    /// The changes for the peers in this region. An urgent round takes only keys near their limit,
    /// so that one busy key does not cause messages for all others.
    fn round(&self, topology: &Topology, urgent: bool) -> Vec<Batch> {
        self.collect(topology, |take| {
            if urgent {
                self.store.drain_urgent_sync(ROUND_KEYS_MAX, take);
            } else {
                self.store.drain_sync_queue(ROUND_KEYS_MAX, &mut *take);
                // This round's part of the background scan.
                let rounds = SCAN_TIME.as_millis() / self.options.interval.as_millis().max(1);
                let rounds = usize::try_from(rounds).unwrap_or(usize::MAX).max(1);
                let now = self.clock.now();
                let scan = &mut *self.scan.lock();
                self.store.drain_lazy(scan, rounds, ROUND_KEYS_MAX, now, take);
            }
        })
    }

    /// Sorts the keys that `drain` hands over into messages to the peers in this region. An owned
    /// key is also queued for the region exchange.
    fn collect(
        &self,
        topology: &Topology,
        drain: impl FnOnce(&mut dyn FnMut(KeyHash, &ActorCounters)),
    ) -> Vec<Batch> {
        let own = self.incarnation.actor();
        let nodes: BTreeMap<ActorId, &NodeId> = topology
            .view
            .members()
            .iter()
            .filter(|member| member.region == topology.region && member.id != topology.me)
            .map(|member| (node_actor(&member.id, member.generation), &member.id))
            .collect();
        let has_other_regions = topology.regions().any(|region| region != topology.region);
        let mut batches = Batches::default();
        let mut postponed = Vec::new();
        // The total of a present node is pushed by that node, and by others when members change.
        let is_gone = |actor: ActorId| {
            let present = topology.present_actor(actor);
            if actor.is_total() { present.is_none() } else { present != Some(actor) }
        };
        let is_pushed = |actor: ActorId| actor.writer() == own.writer() || is_gone(actor);
        drain(&mut |key: KeyHash, actor_counters: &ActorCounters| {
            match topology.region_owner(&topology.region, key.token) {
                Some(owner) if *owner == topology.me => {
                    let mut is_copied = false;
                    for actor in actor_counters.actors() {
                        let Some(node) = nodes.get(&actor) else { continue };
                        is_copied = true;
                        // A node is the only writer of its own counter.
                        let others = actor_counters.delta_of(|it| it != actor);
                        if !others.is_empty() {
                            batches.add(node, SyncRole::Owner, key, others);
                        }
                    }
                    // No other node of the region counts it: the next owner has a copy.
                    let next = || topology.ring()?.next_owner(key.token);
                    if !is_copied && let Some(next) = next() {
                        let all = actor_counters.delta_of(|_| true);
                        batches.add(next, SyncRole::Owner, key, all);
                    }
                    if has_other_regions && !self.region_queue.lock().add(key) {
                        postponed.push(key);
                    }
                }
                Some(owner) => {
                    batches.add(owner, SyncRole::Node, key, actor_counters.delta_of(is_pushed));
                }
                None => {}
            }
        });
        for key in postponed {
            self.store.enqueue_sync(key);
        }
        batches.split()
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
    /// Sends each batch in a task of its own. Keys for a peer that already had a message in flight
    /// are queued again.
    fn send(
        self: &Arc<Self>,
        batches: Vec<Batch>,
        urgent: bool,
        mesh: &Arc<Mesh>,
        messages: &mut JoinSet<()>,
    ) {
        let mut in_flight = self.in_flight.lock();
        let busy: BTreeSet<NodeId> = in_flight.keys().cloned().collect();
        for batch in batches {
            let peer = in_flight.entry(batch.to.clone()).or_default();
            if busy.contains(&batch.to) {
                peer.is_urgent |= urgent;
                self.enqueue_again(batch.keys(), batch.role);
                continue;
            }
            peer.messages += 1;
            let (this, mesh) = (self.clone(), mesh.clone());
            messages.spawn(async move { this.send_batch(batch, urgent, mesh).await });
        }
    }

    async fn send_batch(self: Arc<Self>, batch: Batch, urgent: bool, mesh: Arc<Mesh>) {
        let keys: BTreeSet<KeyHash> = batch.keys().collect();
        let Batch { to, role, entries } = batch;
        count(&self.counters.sent, keys.len() as u64);
        let admission = self.topology.load().admission();
        let call = Call::Sync(Sync { role, urgent, entries });
        match mesh.call(&to, StreamClass::Bulk, call, REPLY_TIMEOUT).await {
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
                self.enqueue_again(keys, role);
            }
        }
        if self.end_message(&to) {
            self.hurry();
        }
    }

    /// Counts one message to `peer` as ended. Returns whether it was the last in flight and urgent
    /// keys were held back meanwhile.
    fn end_message(&self, peer: &NodeId) -> bool {
        let mut in_flight = self.in_flight.lock();
        let Some(messages) = in_flight.get_mut(peer) else { return false };
        messages.messages = messages.messages.saturating_sub(1);
        if messages.messages > 0 {
            return false;
        }
        in_flight.remove(peer).is_some_and(|messages| messages.is_urgent)
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

fn members(topology: &Topology) -> Members {
    let member = |member: &Member| (member.id.clone(), member.generation);
    (topology.view.fingerprint(), topology.view.members().iter().map(member).collect())
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

//! Eventual keys: how columns travel.
//!
//! Every node counts in its own column. What it counted goes to the key's owner in its region (a
//! *push*), and the owner's columns come back with the answer. The owner tells the other nodes that
//! use the key (a *fan-out*), and exchanges one column a region with the key's owners in the other
//! regions (a *region exchange*), so that the long link carries one number, whatever the number of
//! nodes behind it.
//!
//! ```text
//!   node a ──push──▶                       ◀──push── node c
//!                    owner (eu) ⇄ owner (us)
//!   node b ◀─fan-out─                      ─fan-out─▶ node d
//! ```
//!
//! Every message carries absolute columns, never increments, and is joined by `merge`: a message
//! that is lost, doubled or late changes nothing in the end. A key stays dirty until the message
//! that told of it was answered, and until the answer names it: a receiver whose view is another
//! leaves out what it could not take, and is told again. A key far from its limit waits for a slow
//! walk instead of the next round (`far.rs`).
//!
//! A member that comes, goes or starts anew puts every key in line: owners may know nothing of it.
//! A push carries, beside the node's own column, those of nodes and regions that are gone: nobody
//! else tells a new owner of them.
//!
//! **Invariant:** a receiver takes from a peer only the columns that the peer may speak for
//! ([`ActorAuthority::accept`]).

mod actor_authority;
mod answer;
mod background_scan;
mod batch;
mod send_queue;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_limiter::engine::{ActorCounters, ActorId, Delta};
use tidegate_limiter::store::{Cursor, KeyHash, MergeOutcome, Store};
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::identity::{Generation, NodeId, is_node, node_actor, region_actor};
use tidegate_ownership::membership::Member;
use tidegate_ownership::route::Topology;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use self::actor_authority::{Accepted, ActorAuthority};
use self::background_scan::Far;
use self::batch::{Batch, Batches};
use self::send_queue::SendQueue;
use super::incarnation::Incarnation;
use super::mesh::wire::{Call, Reply, Sync, SyncEntry, SyncRole};
use super::mesh::{Mesh, StreamClass};
use crate::environment::Clock;

/// How often columns travel.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Inside the region.
    pub interval: Duration,
    /// Between regions.
    pub region_interval: Duration,
}

/// Synchronises the eventual keys of a store; cheap to clone.
#[derive(Clone, Debug)]
pub struct Synchroniser {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    store: Arc<Store>,
    topology: Arc<ArcSwap<Topology>>,
    incarnation: Arc<Incarnation>,
    clock: Arc<dyn Clock>,
    counters: Counters,
    far: Far,
    /// Owned keys that changed since the last region exchange.
    for_regions: Mutex<SendQueue>,
    /// Peers that have not answered the last round yet; they get no other.
    waiting: Mutex<BTreeMap<NodeId, Waiting>>,
    /// Wakes the loop before its interval is over.
    urgent: Notify,
}

/// What a peer owes us.
#[derive(Debug, Default)]
struct Waiting {
    /// Messages that it has not answered.
    messages: usize,
    /// A key near its limit was held back meanwhile: do not wait for the interval to tell it.
    is_urgent: bool,
}

/// Everybody who counts: ids, starts, and what they own. When it changes, somebody may know nothing
/// of what we know.
type Roster = (u64, Vec<(NodeId, Generation)>);

/// What was synchronised since the start; read by the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Keys told to peers.
    pub sent: AtomicU64,
    /// Keys that peers told.
    pub received: AtomicU64,
    /// Keys of peers that were refused: not theirs to tell, or implausible.
    pub rejected: AtomicU64,
    /// Messages that were not answered; what they told is told again.
    pub failed: AtomicU64,
}

/// Keys that one round takes from the store, or from the line for the regions; more wait for the
/// next.
const ROUND_KEYS_MAX: usize = 16_384;
/// Keys that one step of a walk over the store takes.
const SCAN_KEYS: usize = 1_024;
/// How long a message may stay unanswered.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the last round, of a node that leaves, may take.
const LAST_ROUND_TIMEOUT: Duration = Duration::from_millis(500);
/// The shortest time between two rounds, when keys near their limit ask for one at once.
const ROUND_PAUSE: Duration = Duration::from_millis(4);

impl Synchroniser {
    /// A synchroniser of `store`. Nothing is sent until [`Synchroniser::run`].
    pub fn new(
        options: Options,
        store: Arc<Store>,
        topology: Arc<ArcSwap<Topology>>,
        incarnation: Arc<Incarnation>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let shared = Shared {
            options,
            store,
            topology,
            incarnation,
            clock,
            counters: Counters::default(),
            far: Far::new(options.interval),
            for_regions: Mutex::default(),
            waiting: Mutex::default(),
            urgent: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Asks for a round at once, because a key is near its limit. Never waits.
    pub fn hurry(&self) {
        self.shared.urgent.notify_one();
    }

    /// What was synchronised since the start.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Tells peers what changed, every interval and whenever a key is near its limit, until `stop`;
    /// then once more.
    pub async fn run(&self, mesh: Mesh, stop: CancellationToken) {
        let shared = &self.shared;
        let mut rounds = tokio::time::interval(shared.options.interval);
        let mut regions = tokio::time::interval(shared.options.region_interval);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        regions.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut messages = JoinSet::new();
        let mut known = roster(&shared.topology.load());
        shared.far.follow(&shared.topology.load());
        loop {
            let urgent = tokio::select! {
                () = stop.cancelled() => break,
                _ = rounds.tick() => false,
                () = shared.urgent.notified() => true,
                _ = regions.tick() => {
                    self.send(self.region_round(), false, &mesh, &mut messages);
                    continue;
                }
                Some(_) = messages.join_next() => continue,
            };
            let topology = shared.topology.load_full();
            let roster = roster(&topology);
            if roster != known {
                known = roster;
                shared.far.follow(&topology);
                self.mark_everything_dirty().await;
            }
            self.send(self.round(&topology, urgent), urgent, &mesh, &mut messages);
            if urgent {
                tokio::time::sleep(ROUND_PAUSE).await;
            }
        }
        // What was counted last must not leave with this node; a peer that still owes an answer
        // would get no other message.
        shared.far.hide_nothing();
        let last = async {
            let topology = shared.topology.load_full();
            while messages.join_next().await.is_some() {}
            self.send(self.round(&topology, false), true, &mesh, &mut messages);
            self.tell_hidden(&topology, &mesh, &mut messages).await;
            while messages.join_next().await.is_some() {}
            self.send(self.region_round(), true, &mesh, &mut messages);
            while messages.join_next().await.is_some() {}
        };
        let _ = tokio::time::timeout(LAST_ROUND_TIMEOUT, last).await;
    }

    /// Joins what a peer told; whether it was priority.
    fn join(&self, entry: &SyncEntry, now: Timestamp) -> bool {
        let merged = self.shared.store.merge_actor_counters(entry.key, &entry.actor_counters, now);
        merged == MergeOutcome::Merged { changed: true }
    }

    /// One column for this whole region.
    fn region_column(&self, actor_counters: &ActorCounters) -> Delta {
        let topology = self.shared.topology.load();
        actor_counters.region_view(region_actor(&topology.region), is_node)
    }

    /// What changed, for the peers of this region; in an urgent round only what is near its limit,
    /// so that one busy key does not hurry all others.
    fn round(&self, topology: &Topology, urgent: bool) -> Vec<Batch> {
        self.collect(topology, |take| {
            if urgent {
                self.shared.store.drain_urgent_sync(ROUND_KEYS_MAX, take);
            } else {
                self.shared.store.drain_sync_queue(ROUND_KEYS_MAX, &mut *take);
                self.drain_lazy(take);
            }
        })
    }

    /// What of the keys that `drain` hands over is for which peer of this region.
    fn collect(
        &self,
        topology: &Topology,
        drain: impl FnOnce(&mut dyn FnMut(KeyHash, &ActorCounters)),
    ) -> Vec<Batch> {
        let own = self.shared.incarnation.actor();
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
        let is_acked = |actor| actor == own || !topology.is_spoken_for(actor);
        drain(&mut |key: KeyHash, actor_counters: &ActorCounters| {
            match topology.region_owner(&topology.region, key.token) {
                Some(owner) if *owner == topology.me => {
                    for actor in actor_counters.actors() {
                        let Some(node) = nodes.get(&actor) else { continue };
                        // Its own column is that node's alone to write.
                        let told = actor_counters.delta_of(|it| it != actor);
                        if !told.is_empty() {
                            batches.add(node, SyncRole::Owner, key, told);
                        }
                    }
                    if has_other_regions && !self.shared.for_regions.lock().add(key) {
                        postponed.push(key);
                    }
                }
                Some(owner) => {
                    batches.add(owner, SyncRole::Node, key, actor_counters.delta_of(is_acked))
                }
                None => {}
            }
        });
        for key in postponed {
            self.shared.store.enqueue_sync(key);
        }
        batches.split()
    }

    /// What changed in this region since the last exchange, for the owners in the others.
    fn region_round(&self) -> Vec<Batch> {
        let topology = self.shared.topology.load();
        let keys = self.shared.for_regions.lock().take(ROUND_KEYS_MAX);
        let mut batches = Batches::default();
        for key in keys {
            let told = self
                .shared
                .store
                .read_actor_counters(key, |actor_counters| self.region_column(actor_counters));
            let Some(told) = told.filter(|told| !told.is_empty()) else { continue };
            for region in topology.regions().filter(|region| *region != topology.region) {
                if let Some(owner) = topology.region_owner(region, key.token) {
                    batches.add(owner, SyncRole::Region, key, told.clone());
                }
            }
        }
        batches.split()
    }

    /// Sends each batch in a task of its own. A peer that still owes an answer gets no other
    /// message: what it would have been told stays dirty.
    fn send(&self, batches: Vec<Batch>, urgent: bool, mesh: &Mesh, messages: &mut JoinSet<()>) {
        let mut waiting = self.shared.waiting.lock();
        let busy: BTreeSet<NodeId> = waiting.keys().cloned().collect();
        for batch in batches {
            let owed = waiting.entry(batch.to.clone()).or_default();
            if busy.contains(&batch.to) {
                owed.is_urgent |= urgent;
                self.keep_dirty(batch.keys(), batch.role);
                continue;
            }
            owed.messages += 1;
            let (this, mesh) = (self.clone(), mesh.clone());
            messages.spawn(async move { this.tell(batch, urgent, mesh).await });
        }
    }

    async fn tell(self, batch: Batch, urgent: bool, mesh: Mesh) {
        let keys: BTreeSet<KeyHash> = batch.keys().collect();
        let Batch { to, role, entries } = batch;
        count(&self.shared.counters.sent, keys.len() as u64);
        let call = Call::Sync(Sync { role, urgent, entries });
        let answer = mesh.call(&to, StreamClass::Bulk, call, ANSWER_TIMEOUT).await;
        match answer {
            Ok(Reply::ActorCounters(entries)) => self.take_answer(&to, role, keys, entries),
            Ok(Reply::Done) => {}
            Ok(_) | Err(_) => {
                count(&self.shared.counters.failed, 1);
                self.keep_dirty(keys, role);
            }
        }
        if self.has_answered(&to) {
            self.hurry();
        }
    }

    /// Strikes one message off what `peer` owes; whether something urgent was held back for it.
    fn has_answered(&self, peer: &NodeId) -> bool {
        let mut waiting = self.shared.waiting.lock();
        let Some(owed) = waiting.get_mut(peer) else { return false };
        owed.messages = owed.messages.saturating_sub(1);
        if owed.messages > 0 {
            return false;
        }
        waiting.remove(peer).is_some_and(|owed| owed.is_urgent)
    }

    /// Joins what an owner answered about `asked` keys; those that it does not name were not taken
    /// and are told again.
    fn take_answer(
        &self,
        to: &NodeId,
        role: SyncRole,
        mut asked: BTreeSet<KeyHash>,
        told: Vec<SyncEntry>,
    ) {
        let shared = &self.shared;
        let topology = shared.topology.load();
        let Some(peer) = topology.view.get(to) else { return self.keep_dirty(asked, role) };
        let now = shared.clock.now();
        let actor_authority = ActorAuthority {
            own_actor: shared.incarnation.actor(),
            peer: to,
            peer_actor: node_actor(to, peer.generation),
            peer_region: &peer.region,
        };
        // An answer to a push speaks as the owner, one to a region exchange as the other region.
        let speaks_as = match role {
            SyncRole::Node | SyncRole::Owner => SyncRole::Owner,
            SyncRole::Region => SyncRole::Region,
        };
        for mut entry in told {
            let accepted = if asked.remove(&entry.key) {
                actor_authority.accept(
                    &mut entry.actor_counters,
                    speaks_as,
                    entry.key,
                    &topology,
                    now,
                )
            } else {
                Accepted::Refused
            };
            match accepted {
                Accepted::Whole | Accepted::Part => {
                    if self.join(&entry, now) && role == SyncRole::Region {
                        shared.store.enqueue_sync(entry.key);
                    }
                }
                Accepted::Nothing => {}
                Accepted::Disputed | Accepted::Refused => count(&shared.counters.rejected, 1),
            }
        }
        self.keep_dirty(asked, role);
    }

    /// Puts every eventual key in line: some owner knows nothing of our column. Walks the store in
    /// bounded steps and lets other tasks run between them.
    async fn mark_everything_dirty(&self) {
        let store = &self.shared.store;
        let now = self.shared.clock.now();
        let mut found = Vec::new();
        let mut from = Some(Cursor::default());
        while let Some(cursor) = from {
            from = store.scan(cursor, now, SCAN_KEYS, |_| true, &mut found);
            for counted in found.drain(..) {
                if counted.state.actor_counters().is_some() {
                    store.enqueue_sync(counted.key);
                }
            }
            tokio::task::yield_now().await;
        }
    }

    fn keep_dirty(&self, keys: impl IntoIterator<Item = KeyHash>, role: SyncRole) {
        for key in keys {
            // A line for the regions that is full sends the key through another round.
            let is_in_line = role == SyncRole::Region && self.shared.for_regions.lock().add(key);
            if !is_in_line {
                self.shared.store.enqueue_sync(key);
            }
        }
    }
}

fn roster(topology: &Topology) -> Roster {
    let member = |member: &Member| (member.id.clone(), member.generation);
    (topology.view.epoch(), topology.view.members().iter().map(member).collect())
}

fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

//! The replicator's state, and the loop that sends changes at an interval.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Waker;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::{Cursor, KeyHash, Store};
use tidegate_limiter::units::{Monotonic, Span, Timestamp};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;
use tidegate_ownership::route::Topology;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::digest::DigestSnapshot;
use super::send_queue::SendQueue;
use super::targets::{Subscribers, Targets};
use crate::changes::Changes;
use crate::count;
use crate::environment::Clock;
use crate::mesh::{Mesh, Peer};

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How often changes are sent.
    pub interval: Duration,
    /// Number of nodes beside the owner that hold a copy of each key.
    pub replicas: usize,
    /// How far ahead of this node's clock a peer's may be.
    pub ahead_max: Span,
}

/// Keeps copies of this node's strict keys on other nodes, and holds copies of theirs.
#[derive(Debug)]
pub struct Replicator {
    pub(super) options: Options,
    pub(super) store: Arc<Store>,
    pub(super) topology: Arc<ArcSwap<Topology>>,
    pub(super) decides: Arc<dyn Decides>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) mesh: Arc<Mesh>,
    pub counters: Counters,
    /// Locked before the store's shards, never after.
    pub(super) send_queues: Mutex<BTreeMap<NodeId, SendQueue>>,
    pub(super) subscribers: Mutex<Subscribers>,
    /// The targets for the current topology and the reachable peers.
    targets: ArcSwap<Targets>,
    /// How often these were without a node of the ring, for which another one stands in.
    pub(super) reach_losses: AtomicU64,
    /// Held while the replication queue is drained, so that a concurrent `flush` finds every key
    /// either there or in a send queue.
    pub(super) collecting: Mutex<()>,
    /// What arrived from each peer.
    pub(super) received_from: Mutex<BTreeMap<NodeId, ReceivedFrom>>,
    /// Woken by the store.
    changes: Arc<Changes>,
    /// Wakes the loop before the interval ends.
    pub(super) wake: Notify,
    /// Notified when a message was acknowledged or failed.
    pub(super) acked: Notify,
    /// Notified when the topology or the set of reachable peers changed: copies may be missing.
    pub(super) targets_changed: Notify,
    /// Notified after that: a replica may have missed changes.
    pub(super) digests_due: Notify,
    /// The latest digest snapshot. Locked while one is taken, so that concurrent callers share it.
    pub(super) digest_snapshot: tokio::sync::Mutex<Option<Arc<DigestSnapshot>>>,
}

/// Which keys this node decides now: as their owner, under a lease.
pub trait Decides: std::fmt::Debug + Send + Sync {
    /// Whether it may decide any of this scope.
    fn has_lease(&self, scope: Scope) -> bool;

    fn decides(&self, scope: Scope, token: u64) -> bool;
}

/// Statistics since the start, for the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// States sent to peers.
    pub sent: AtomicU64,
    /// States received from peers and merged.
    pub received: AtomicU64,
    /// States received from peers and refused: the peer may not hold the key, or the state is
    /// implausible.
    pub refused: AtomicU64,
    /// Messages that failed; their keys are sent again.
    pub failed: AtomicU64,
    /// States queued again because a replica's digest differed.
    pub repaired: AtomicU64,
    /// Copies that were dropped because this node is neither the owner of their keys nor a replica.
    pub dropped: AtomicU64,
    /// Checks whose counters a replica confirmed before the verdict was returned.
    pub confirmed: AtomicU64,
    /// Checks whose counters no replica confirmed in time.
    pub unconfirmed: AtomicU64,
}

/// Messages of states from one peer since this node's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedFrom {
    /// When the last one arrived.
    pub last: Monotonic,
    /// States that were refused.
    pub refused: u64,
}

/// How often an idle node looks which peers are reachable: a change begins anti-entropy.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How often that is looked up while changes are sent.
const TARGETS_AGE_MAX: Span = Span::from_millis(25);
/// How long a node that leaves goes on sending what it counted last.
const FINAL_ROUND_TIMEOUT: Duration = Duration::from_millis(500);

impl Replicator {
    /// Creates a replicator of `store`. It sends nothing until [`Replicator::run`].
    pub fn new(
        options: Options,
        store: Arc<Store>,
        topology: Arc<ArcSwap<Topology>>,
        decides: Arc<dyn Decides>,
        clock: Arc<dyn Clock>,
        mesh: Arc<Mesh>,
    ) -> Arc<Self> {
        let changes = Arc::new(Changes::default());
        if options.replicas > 0 {
            store.set_replicated(Some(&changes.clone().into()));
        }
        let targets = Targets::new(topology.load_full(), BTreeSet::new(), options.replicas);
        Arc::new(Self {
            options,
            store,
            topology,
            decides,
            clock,
            mesh,
            counters: Counters::default(),
            send_queues: Mutex::default(),
            subscribers: Mutex::default(),
            targets: ArcSwap::from_pointee(targets),
            reach_losses: AtomicU64::new(0),
            collecting: Mutex::default(),
            received_from: Mutex::default(),
            changes,
            wake: Notify::new(),
            acked: Notify::new(),
            targets_changed: Notify::new(),
            digests_due: Notify::new(),
            digest_snapshot: tokio::sync::Mutex::default(),
        })
    }

    /// Sends changes every interval, the first after a rest at once, and compares digests with
    /// replicas, until `stop`. Then sends what is left, for at most half a second.
    pub async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let mut rounds = self.mesh.ticks.every(self.options.interval);
        let mut messages = JoinSet::new();
        // Dropping the set at the end aborts the tasks.
        let mut anti_entropy = JoinSet::new();
        if self.options.replicas > 0 {
            let this = self.clone();
            anti_entropy.spawn(async move { this.run_anti_entropy().await });
            let this = self.clone();
            anti_entropy.spawn(async move { this.run_new_replicas().await });
        }
        let mut looks = self.mesh.ticks.every(LOOK_INTERVAL);
        let mut is_idle = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = rounds.tick(), if !is_idle => {}
                () = self.changes.first(), if is_idle => {
                    is_idle = false;
                    continue;
                }
                _ = looks.tick() => {}
                () = self.wake.notified() => {}
                Some(_) = messages.join_next() => continue,
            }
            self.changes.reset();
            let collected = self.collect();
            self.send(&mut messages);
            let mut queues = self.send_queues.lock();
            is_idle = collected.is_complete() && queues.values_mut().all(|queue| queue.is_empty());
        }
        let final_round = async {
            while !self.collect().is_complete() {
                self.send(&mut messages);
                while messages.join_next().await.is_some() {}
                tokio::task::yield_now().await;
            }
            while messages.join_next().await.is_some() {}
            self.send(&mut messages);
            while messages.join_next().await.is_some() {}
        };
        let _ = tokio::time::timeout(FINAL_ROUND_TIMEOUT, final_round).await;
    }

    /// Number of nodes beside the owner that are to hold a copy of each key.
    pub fn replicas(&self) -> usize {
        self.options.replicas
    }

    /// The number of strict counters in the store whose tokens are in `ranges`.
    pub async fn count_copies(&self, ranges: &Ranges) -> u64 {
        let (mut found, mut from) = (0, Some(Cursor::default()));
        while let Some(cursor) = from {
            let is_included = |key: KeyHash| key.is_owned() && ranges.contains(key.token);
            let now = self.clock.now();
            from = self.store.visit(cursor, now, is_included, |_, _, _| found += 1);
            tokio::task::yield_now().await;
        }
        found
    }

    /// Wakes the loop when a key is queued for its copies.
    pub(super) fn waker(&self) -> Waker {
        self.changes.clone().into()
    }

    /// `None` if nothing has arrived.
    pub fn received_from(&self, peer: &NodeId) -> Option<ReceivedFrom> {
        self.received_from.lock().get(peer).copied()
    }

    /// How far the decision clock of `peer` is from this node's, by its last pong: beyond
    /// [`Options::ahead_max`] they do not accept all of each other's states.
    pub fn clock_distance(&self, peer: &Peer) -> Option<Span> {
        let theirs = peer.decision_clock(self.clock.monotonic())?;
        Some(theirs.distance(self.clock.now()))
    }

    /// What the decision clock of this node shows.
    pub fn decision_clock(&self) -> Timestamp {
        self.clock.now()
    }

    /// See [`Options::ahead_max`].
    pub fn ahead_max(&self) -> Span {
        self.options.ahead_max
    }

    /// How long the oldest change has waited for its copy.
    pub fn lag(&self) -> Span {
        let send_queues = self.send_queues.lock();
        let oldest = send_queues.values().filter_map(SendQueue::oldest).min();
        oldest.map_or(Span::ZERO, |since| self.clock.monotonic().since(since))
    }

    /// The targets for the current topology and the peers that are reachable now.
    pub(super) fn targets(&self) -> Arc<Targets> {
        let topology = self.topology.load_full();
        let current = self.targets.load_full();
        let now = self.clock.monotonic();
        // Rounds are far shorter than what makes a peer unreachable.
        if Arc::ptr_eq(&current.topology, &topology) && !current.is_older(now, TARGETS_AGE_MAX) {
            return current;
        }
        let peers = self.mesh.peers().into_iter();
        let reachable = peers.filter(|peer| !peer.is_unreachable()).map(|peer| peer.id.clone());
        let reachable: BTreeSet<NodeId> = reachable.collect();
        if current.is_for(&topology, &reachable) {
            current.checked(now);
            return current;
        }
        let next = Arc::new(Targets::new(topology, reachable, self.options.replicas));
        next.checked(now);
        if !next.reach_all() {
            count(&self.reach_losses, 1);
        }
        self.targets.store(next.clone());
        self.targets_changed.notify_one();
        next
    }
}

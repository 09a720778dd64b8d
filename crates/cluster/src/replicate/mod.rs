//! Strict keys: how copies of their counts reach the nodes that would take over.
//!
//! The owner of a key decides alone. What it counted stands in the store's line of changed keys;
//! every few milliseconds that line is emptied into one [`SendQueue`] a peer, and each peer is sent
//! the latest state of the keys it owes a copy of, one message at a time.
//!
//! ```text
//! store ─ changed keys ─▶ backlog of b ─ States ─▶ b   its replica         (targets)
//!                     └─▶ backlog of d ─ States ─▶ d   takes a range over  (follow)
//! ```
//!
//! - **Lost messages.** What was not answered is sent again. Every few seconds owners compare
//!   digests with their replicas and send what differs (`repair`): a peer that forgot, or
//!   that has only just come, is made whole by that.
//! - **Slow peers.** A peer that owes an answer gets no other message; its keys wait, each once,
//!   and the latest state is read when it is sent.
//! - **Handoff.** [`Replicator::follow`] sends every change of a range to its next owner too,
//!   [`Replicator::copy`] what is there already, and [`Replicator::flush`] waits until all of it
//!   was answered.
//! - **Durability.** [`Replicator::confirm`] waits for one copy before a verdict is told.
//!
//! Every message carries whole states and is joined by `merge`: one that is lost, doubled or late
//! changes nothing in the end. A receiver passes nothing on but what it owns itself.
//!
//! **Invariant:** a receiver takes no state that an honest node could not hold (`plausible`).

mod batch;
mod confirm;
mod counters;
mod digest;
mod digest_snapshot;
mod plausible;
mod receive;
mod repair;
mod send_queue;
mod stream;
mod subscribers;
mod targets;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

pub use confirm::is_owed;
pub use counters::Counters;
pub use plausible::is_plausible;
pub use repair::are_digests;

use tidegate_limiter::store::Store;
use tidegate_limiter::units::Span;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::route::Topology;

use self::digest_snapshot::DigestSnapshots;
use self::send_queue::SendQueue;
use self::subscribers::Subscribers;
use self::targets::Targets;
use super::mesh::Mesh;
use crate::environment::Clock;

/// How copies are kept.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How often changes are sent.
    pub interval: Duration,
    /// How many other nodes hold a copy of each key.
    pub replicas: usize,
}

/// Keeps copies of this node's strict keys at other nodes, and theirs here; cheap to clone.
#[derive(Clone, Debug)]
pub struct Replicator {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    store: Arc<Store>,
    topology: Arc<ArcSwap<Topology>>,
    clock: Arc<dyn Clock>,
    mesh: Mesh,
    counters: Counters,
    /// Locked before the store's shards, never after.
    send_queues: Mutex<BTreeMap<NodeId, SendQueue>>,
    subscribers: Mutex<Subscribers>,
    /// The answers for the view and the peers as they are.
    targets: ArcSwap<Targets>,
    /// One at a time empties the store's line, so that no key is in neither line for a moment.
    collecting: Mutex<()>,
    /// Wakes the loop before its interval is over.
    hurried: Notify,
    /// Tells that a message was answered, or was not.
    answered: Notify,
    /// Tells that somebody came, went or is heard again: copies may be missing.
    regrouped: Notify,
    digest_snapshots: DigestSnapshots,
}

/// How long the last round, of a node that leaves, may take.
const LAST_ROUND_TIMEOUT: Duration = Duration::from_millis(500);

impl Replicator {
    /// A replicator of `store`. Nothing is sent until [`Replicator::run`].
    pub fn new(
        options: Options,
        store: Arc<Store>,
        topology: Arc<ArcSwap<Topology>>,
        clock: Arc<dyn Clock>,
        mesh: Mesh,
    ) -> Self {
        store.set_replicated(options.replicas > 0);
        let targets = Targets::new(topology.load_full(), BTreeSet::new(), options.replicas);
        let shared = Shared {
            options,
            store,
            topology,
            clock,
            mesh,
            counters: Counters::default(),
            send_queues: Mutex::default(),
            subscribers: Mutex::default(),
            targets: ArcSwap::from_pointee(targets),
            collecting: Mutex::default(),
            hurried: Notify::new(),
            answered: Notify::new(),
            regrouped: Notify::new(),
            digest_snapshots: DigestSnapshots::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Sends what changed, every interval, until `stop`; then what is left, for a bounded time.
    /// Compares digests with replicas all the while.
    pub async fn run(&self, stop: CancellationToken) {
        let mut rounds = tokio::time::interval(self.shared.options.interval);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut messages = JoinSet::new();
        // Dropped at the end, and its task with it.
        let mut repairs = JoinSet::new();
        if self.shared.options.replicas > 0 {
            let this = self.clone();
            repairs.spawn(async move { this.keep_repaired().await });
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = rounds.tick() => {}
                () = self.shared.hurried.notified() => {}
                Some(_) = messages.join_next() => continue,
            }
            self.collect();
            self.send(&mut messages);
        }
        // What was counted last must not leave with this node.
        let last = async {
            while !self.collect().is_all() {
                self.send(&mut messages);
                while messages.join_next().await.is_some() {}
                tokio::task::yield_now().await;
            }
            while messages.join_next().await.is_some() {}
            self.send(&mut messages);
            while messages.join_next().await.is_some() {}
        };
        let _ = tokio::time::timeout(LAST_ROUND_TIMEOUT, last).await;
    }

    /// What was replicated since the start.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// How long the oldest change has waited for its copy.
    pub fn lag(&self) -> Span {
        let send_queues = self.shared.send_queues.lock();
        let oldest = send_queues.values().filter_map(SendQueue::oldest).min();
        oldest.map_or(Span::ZERO, |since| self.shared.clock.now().since(since))
    }

    /// Who holds copies of what, by the view and the peers as they are now.
    fn targets(&self) -> Arc<Targets> {
        let shared = &self.shared;
        let topology = shared.topology.load_full();
        let peers = shared.mesh.peers().into_iter();
        let reachable = peers.filter(|peer| !peer.is_unreachable()).map(|peer| peer.id.clone());
        let reachable: BTreeSet<NodeId> = reachable.collect();
        let current = shared.targets.load_full();
        if current.is_of(&topology, &reachable) {
            return current;
        }
        let next = Arc::new(Targets::new(topology, reachable, shared.options.replicas));
        shared.targets.store(next.clone());
        shared.regrouped.notify_one();
        next
    }
}

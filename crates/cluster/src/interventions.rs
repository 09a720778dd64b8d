//! Orders of operators about single keys, the same at all nodes.
//!
//! An order is announced to every connected node at once, and its result names those that confirmed
//! it. The others receive it by comparison: each node sends the digest of its interventions to one
//! peer after the other, and merges those of a peer that has different ones. A node that has just
//! joined compares before anything else.
//!
//! ```text
//! order ── Announce ──▶ all peers, edges too    node ── Compare { digest } ──▶ next peer
//!                                                    ◀── all interventions, if they differ
//! ```
//!
//! Orders are given at cores. An edge receives announcements and compares, and announces nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tidegate_limiter::engine::AHEAD_MAX;
use tidegate_limiter::store::interventions;
use tidegate_limiter::store::{DescriptorHash, INTERVENTIONS_MAX, Intervention};
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::identity::{Generation, NodeId};
use tokio_util::sync::CancellationToken;

use crate::environment::Clock;
use crate::mesh::codec::INTERVENTIONS;
use crate::mesh::wire::{Call, InterventionCall, Reply};
use crate::mesh::{Mesh, Peer, StreamClass};
use crate::pki::Role;

/// How long a peer may take to confirm an order, or to answer a comparison.
const DEADLINE: Duration = Duration::from_secs(1);
/// How often a node looks for new peers.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How often a core compares with a peer, and an edge, of which there are thousands.
const CORE_INTERVAL: Duration = Duration::from_secs(1);
const EDGE_INTERVAL: Duration = Duration::from_secs(10);

/// The interventions of this node; read with every check.
#[derive(Debug)]
pub struct Interventions {
    clock: Arc<dyn Clock>,
    /// Changed under this lock alone.
    changing: Mutex<()>,
    /// Whether there is anything to find: mostly there is not.
    is_any: AtomicBool,
    known: ArcSwap<interventions::Interventions>,
}

/// What became of an announcement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    pub confirmed: Vec<NodeId>,
    /// Nodes that did not answer within a second. They receive it by comparison.
    pub missed: Vec<NodeId>,
}

impl Interventions {
    /// None yet. `clock` is that of decisions.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            changing: Mutex::default(),
            is_any: AtomicBool::new(false),
            known: ArcSwap::default(),
        }
    }

    /// What was done to a descriptor.
    #[inline]
    pub fn find(&self, descriptor: DescriptorHash) -> Option<Intervention> {
        // Acquire: pairs with the store that follows the set.
        if !self.is_any.load(Ordering::Acquire) {
            return None;
        }
        self.known.load().get(descriptor).copied()
    }

    /// How many descriptors something was done to.
    pub fn count(&self) -> usize {
        self.known.load().len()
    }

    /// Begins a descriptor anew at this node. To be [announced](Self::announce).
    pub fn begin_anew(&self, descriptor: DescriptorHash) -> Intervention {
        let now = self.clock.now();
        self.change(|known| known.begin_anew(descriptor, now))
    }

    /// Refuses a descriptor at this node until a time, [`Timestamp::EPOCH`] to lift the block. To
    /// be [announced](Self::announce).
    pub fn block(&self, descriptor: DescriptorHash, until: Timestamp) -> Intervention {
        let now = self.clock.now();
        self.change(|known| known.block(descriptor, until, now))
    }

    /// Sends an intervention to all connected nodes, and waits for each for a second at most.
    pub async fn announce(&self, intervention: Intervention, mesh: &Mesh) -> Announced {
        let edges = mesh.edges();
        let peers: Vec<Arc<Peer>> = mesh.peers().into_iter().chain(edges.iter().cloned()).collect();
        let confirmed = join_all(peers.iter().map(|peer| async move {
            let announce = InterventionCall::Announce(intervention);
            matches!(call(mesh, peer, announce).await, Some(Reply::Done))
        }));
        let mut announced = Announced::default();
        for (peer, is_confirmed) in peers.iter().zip(confirmed.await) {
            let list = if is_confirmed { &mut announced.confirmed } else { &mut announced.missed };
            list.push(peer.id.clone());
        }
        announced
    }

    /// The reply to a call of a peer.
    pub fn call_received(&self, from: &Peer, call: InterventionCall) -> Reply {
        match call {
            InterventionCall::Announce(_) if from.role == Role::Edge => Reply::Malformed,
            InterventionCall::Announce(announced) => {
                if self.merge([announced]) {
                    Reply::Done
                } else {
                    Reply::Unconfirmed
                }
            }
            InterventionCall::Compare { digest } => {
                let known = self.known.load();
                if known.digest() == digest {
                    return Reply::Done;
                }
                Reply::Interventions(known.iter().copied().collect())
            }
        }
    }

    /// Compares with peers until `stop`.
    pub async fn run(self: Arc<Self>, mesh: Arc<Mesh>, stop: CancellationToken) {
        let interval = if mesh.role == Role::Edge { EDGE_INTERVAL } else { CORE_INTERVAL };
        let comparing = async {
            let mut compared: BTreeMap<NodeId, Generation> = BTreeMap::new();
            let mut looks = tokio::time::interval(LOOK_INTERVAL);
            let mut round = tokio::time::interval(interval);
            let mut turn = 0;
            loop {
                let is_round = tokio::select! {
                    _ = round.tick() => true,
                    _ = looks.tick() => false,
                };
                let mut peers = mesh.peers();
                peers.retain(|peer| !peer.is_unreachable());
                compared.retain(|id, generation| {
                    peers.iter().any(|peer| peer.id == *id && peer.generation == *generation)
                });
                let new = peers.iter().find(|peer| !compared.contains_key(&peer.id));
                let in_turn = || peers.get(turn % peers.len().max(1)).filter(|_| is_round);
                let Some(peer) = new.or_else(in_turn) else { continue };
                turn = turn.wrapping_add(usize::from(is_round));
                if self.compare(&mesh, peer).await {
                    compared.insert(peer.id.clone(), peer.generation);
                }
            }
        };
        stop.run_until_cancelled(comparing).await;
    }

    /// Merges the interventions of a peer; returns whether it answered.
    async fn compare(&self, mesh: &Mesh, peer: &Peer) -> bool {
        let digest = self.known.load().digest();
        match call(mesh, peer, InterventionCall::Compare { digest }).await {
            Some(Reply::Interventions(entries)) if entries.len() <= INTERVENTIONS_MAX => {
                self.merge(entries);
                true
            }
            answer => answer.is_some(),
        }
    }

    /// Merges the interventions of another node; returns false if not all of them could be.
    fn merge(&self, entries: impl IntoIterator<Item = Intervention>) -> bool {
        // One of the far future could never be replaced.
        let latest = self.clock.now().plus(AHEAD_MAX);
        let is_sane = |it: &Intervention| it.begun_anew.max(it.block.set_at) <= latest;
        self.change(|known| {
            entries.into_iter().fold(true, |all, entry| {
                let is_sane = is_sane(&entry);
                if is_sane {
                    known.merge(entry);
                }
                all && is_sane
            })
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut interventions::Interventions) -> T) -> T {
        let _changing = self.changing.lock();
        let mut known = interventions::Interventions::clone(&self.known.load());
        let result = change(&mut known);
        let is_any = !known.is_empty();
        self.known.store(Arc::new(known));
        self.is_any.store(is_any, Ordering::Release);
        result
    }
}

/// The reply; none if the peer does not know the call, or does not answer in time.
async fn call(mesh: &Mesh, peer: &Peer, call: InterventionCall) -> Option<Reply> {
    if peer.version < INTERVENTIONS {
        return None;
    }
    let call = Call::Interventions(call);
    mesh.call_peer(peer, StreamClass::Control, call, DEADLINE).await.ok()
}

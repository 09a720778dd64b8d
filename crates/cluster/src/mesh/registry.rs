//! The table of peers, and the back-off of dialed addresses.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use backon::{BackoffBuilder, ExponentialBackoff};
use parking_lot::Mutex;
use tidegate_limiter::engine::ActorId;
use tidegate_ownership::identity::{Generation, NodeId, node_actor};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::peer::Peer;
use crate::backoff::exponential;
use crate::pki::Role;

/// Readers load a snapshot without a lock; changes are rare.
#[derive(Debug, Default)]
pub(super) struct Registry {
    peers: ArcSwap<Peers>,
    history: Mutex<History>,
    /// A peer was admitted.
    pub(super) admitted: Notify,
}

#[derive(Clone, Debug, Default)]
struct Peers {
    by_id: BTreeMap<NodeId, Arc<Peer>>,
    by_addr: BTreeMap<SocketAddr, Arc<Peer>>,
    /// Dialed addresses, such as those of seeds, and the nodes that answered there; these may
    /// advertise other addresses.
    aliases: BTreeMap<SocketAddr, NodeId>,
    edges: Arc<Edges>,
}

/// The edges that are connected. None has the name of a core that is connected: calls find nodes by
/// name.
#[derive(Clone, Debug, Default)]
pub struct Edges {
    by_id: BTreeMap<NodeId, Arc<Peer>>,
    by_actor: BTreeMap<ActorId, Arc<Peer>>,
}

#[derive(Debug, Default)]
struct History {
    highest_seen: BTreeMap<NodeId, Generation>,
    /// The node that last answered at an address.
    ids: BTreeMap<SocketAddr, NodeId>,
    dials: BTreeMap<SocketAddr, Dial>,
}

/// A dial that is in progress or failed.
#[derive(Debug)]
struct Dial {
    /// The end of the back-off; `None` while the dial is in progress.
    retry_at: Option<Instant>,
    /// The pauses after the next failures.
    pauses: ExponentialBackoff,
}

pub(super) enum DialOutcome<'a> {
    /// This node answered and was accepted.
    Answered(&'a NodeId),
    /// No answer, or the hello was refused.
    Failed,
    /// The hello was refused for its generation: the next has a higher one.
    Outdated,
    /// This node reached itself: a seed list usually contains every node.
    Own,
}

pub(super) enum Admission {
    /// The connection is in use; those that it replaces are to be closed: to the same node, and of
    /// a core to an edge of its name.
    Admitted { replaced: Vec<Arc<Peer>> },
    /// The existing connection to the peer is kept.
    Surplus,
}

/// Entries of each map. At the bound the map is cleared, which loses the refusal of old
/// incarnations and the back-off of dials.
const ENTRIES_MAX: usize = 4_096;
/// The pause after a failed dial, doubled each time up to [`REDIAL_MAX`].
const REDIAL_MIN: Duration = Duration::from_millis(100);
/// A healed link is dialed after at most this.
const REDIAL_MAX: Duration = Duration::from_secs(1);
/// The pause after a dial that reached this node itself.
const REDIAL_OWN: Duration = Duration::from_secs(3_600);
/// Connections that two nodes dial to each other at the same time are established within this time:
/// a handshake and a hello take at most 4 s.
const SIMULTANEOUS_DIALS: Duration = Duration::from_secs(5);

impl Registry {
    pub(super) fn get(&self, id: &NodeId) -> Option<Arc<Peer>> {
        self.peers.load().by_id.get(id).cloned()
    }

    pub(super) fn by_addr(&self, addr: SocketAddr) -> Option<Arc<Peer>> {
        self.peers.load().at(addr).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Peer>> {
        self.peers.load().by_id.values().cloned().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.peers.load().by_id.len()
    }

    pub(super) fn edges(&self) -> Arc<Edges> {
        self.peers.load().edges.clone()
    }

    /// Whether a dial of `addr` is in progress.
    pub(super) fn is_dialing(&self, addr: SocketAddr) -> bool {
        self.history.lock().dials.get(&addr).is_some_and(|dial| dial.retry_at.is_none())
    }

    /// How many dials are in progress.
    pub(super) fn dialing(&self) -> usize {
        self.history.lock().dials.values().filter(|dial| dial.retry_at.is_none()).count()
    }

    /// The highest generation seen of `id`.
    pub(super) fn highest_seen(&self, id: &NodeId) -> Option<Generation> {
        self.history.lock().highest_seen.get(id).copied()
    }

    /// The highest generation seen of the node that last answered at `addr`.
    pub(super) fn highest_seen_at(&self, addr: SocketAddr) -> Option<Generation> {
        let history = self.history.lock();
        history.ids.get(&addr).and_then(|id| history.highest_seen.get(id)).copied()
    }

    /// Adds `peer`, unless the existing connection to the same node is kept.
    pub(super) fn admit(&self, peer: Arc<Peer>) -> Admission {
        // The lock serialises changes; readers do not take it.
        let mut history = self.history.lock();
        let current = self.peers.load_full();
        let is_edge = peer.role == Role::Edge;
        let existing =
            if is_edge { current.edges.by_id.get(&peer.id) } else { current.by_id.get(&peer.id) };
        if existing.is_some_and(|existing| keeps(existing, &peer)) {
            return Admission::Surplus;
        }
        let same = existing.cloned();
        let mut replaced: Vec<Arc<Peer>> = same.iter().cloned().collect();
        let mut next = Peers::clone(&current);
        if is_edge {
            // Nothing is remembered of edges that are gone: their names may be generated.
            Arc::make_mut(&mut next.edges).insert(peer);
            self.peers.store(Arc::new(next));
            return Admission::Admitted { replaced };
        }
        history.record(&peer);
        if let Some(old) = &same {
            next.forget_addr(old);
        }
        if let Some(edge) = current.edges.by_id.get(&peer.id) {
            Arc::make_mut(&mut next.edges).remove(edge);
            replaced.push(edge.clone());
        }
        next.by_addr.insert(peer.advertise, peer.clone());
        next.by_id.insert(peer.id.clone(), peer);
        self.peers.store(Arc::new(next));
        self.admitted.notify_waiters();
        Admission::Admitted { replaced }
    }

    /// Removes `peer`, unless another connection has replaced it.
    pub(super) fn remove(&self, peer: &Arc<Peer>) {
        let _serialised = self.history.lock();
        let current = self.peers.load_full();
        let mut next = Peers::clone(&current);
        if peer.role == Role::Edge {
            Arc::make_mut(&mut next.edges).remove(peer);
            self.peers.store(Arc::new(next));
            return;
        }
        if next.by_id.get(&peer.id).is_some_and(|current| Arc::ptr_eq(current, peer)) {
            next.by_id.remove(&peer.id);
        }
        next.forget_addr(peer);
        self.peers.store(Arc::new(next));
    }

    /// Whether to dial `addr` now; if so, the dial is in progress until [`Registry::dial_ended`].
    pub(super) fn start_dial(&self, addr: SocketAddr) -> bool {
        if self.peers.load().at(addr).is_some_and(|peer| !peer.is_lost()) {
            return false;
        }
        let mut history = self.history.lock();
        let now = Instant::now();
        let pauses = || exponential(REDIAL_MIN, REDIAL_MAX).build();
        let first = || Dial { retry_at: Some(now), pauses: pauses() };
        let dial = bounded(&mut history.dials).entry(addr).or_insert_with(first);
        let is_due = dial.retry_at.is_some_and(|at| now >= at);
        if is_due {
            dial.retry_at = None;
        }
        is_due
    }

    /// Ends the dial that [`Registry::start_dial`] began.
    pub(super) fn dial_ended(&self, addr: SocketAddr, outcome: DialOutcome<'_>) {
        let mut history = self.history.lock();
        match (outcome, history.dials.get_mut(&addr)) {
            (DialOutcome::Answered(id), _) => {
                history.dials.remove(&addr);
                let mut next = Peers::clone(&self.peers.load());
                bounded(&mut next.aliases).insert(addr, id.clone());
                self.peers.store(Arc::new(next));
            }
            (DialOutcome::Failed, Some(dial)) => {
                let pause = dial.pauses.next().unwrap_or(REDIAL_MAX);
                dial.retry_at = Some(Instant::now() + pause);
            }
            // At the next call. By back-off a second process of this name would dial so rarely that
            // it took itself for the only one.
            (DialOutcome::Outdated, _) => {
                history.dials.remove(&addr);
            }
            (DialOutcome::Own, Some(dial)) => dial.retry_at = Some(Instant::now() + REDIAL_OWN),
            (_, None) => {}
        }
    }
}

// === impl Edges ===

impl Edges {
    pub fn get(&self, id: &NodeId) -> Option<&Arc<Peer>> {
        self.by_id.get(id)
    }

    /// The edge that counts as `actor`.
    pub fn by_actor(&self, actor: ActorId) -> Option<&Arc<Peer>> {
        self.by_actor.get(&actor)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Peer>> {
        self.by_id.values()
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    fn insert(&mut self, peer: Arc<Peer>) {
        if let Some(old) = self.by_id.insert(peer.id.clone(), peer.clone()) {
            self.by_actor.remove(&node_actor(&old.id, old.generation));
        }
        self.by_actor.insert(node_actor(&peer.id, peer.generation), peer);
    }

    /// Removes `peer`, unless another connection has replaced it.
    fn remove(&mut self, peer: &Arc<Peer>) {
        if self.by_id.get(&peer.id).is_some_and(|current| Arc::ptr_eq(current, peer)) {
            self.by_id.remove(&peer.id);
            self.by_actor.remove(&node_actor(&peer.id, peer.generation));
        }
    }
}

// === impl Peers ===

impl Peers {
    /// Removes the addresses of `peer`; another node may use them next.
    fn forget_addr(&mut self, peer: &Arc<Peer>) {
        if self.by_addr.get(&peer.advertise).is_some_and(|current| Arc::ptr_eq(current, peer)) {
            self.by_addr.remove(&peer.advertise);
        }
        if !self.by_id.contains_key(&peer.id) {
            self.aliases.retain(|_, id| *id != peer.id);
        }
    }

    fn at(&self, addr: SocketAddr) -> Option<&Arc<Peer>> {
        let by_alias = || self.aliases.get(&addr).and_then(|id| self.by_id.get(id));
        self.by_addr.get(&addr).or_else(by_alias)
    }
}

// === impl History ===

impl History {
    fn record(&mut self, peer: &Peer) {
        bounded(&mut self.ids).insert(peer.advertise, peer.id.clone());
        let highest =
            bounded(&mut self.highest_seen).entry(peer.id.clone()).or_insert(peer.generation);
        *highest = peer.generation.max(*highest);
    }
}

/// Clears `map` when it is full.
fn bounded<K, V>(map: &mut BTreeMap<K, V>) -> &mut BTreeMap<K, V> {
    if map.len() >= ENTRIES_MAX {
        map.clear();
    }
    map
}

/// Whether `existing` is kept in favour of `new`, a connection to the same node. A node dials a
/// peer that it has been connected to for longer on purpose: with another certificate.
fn keeps(existing: &Peer, new: &Peer) -> bool {
    if existing.generation != new.generation {
        return existing.generation > new.generation;
    }
    let is_settled = existing.age() > SIMULTANEOUS_DIALS;
    if existing.is_lost() || is_settled || existing.dialer == new.dialer {
        return false;
    }
    existing.dialer < new.dialer
}

//! The table of peers, and what is remembered about addresses that were dialed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_ownership::identity::{Generation, NodeId};
use tokio::time::Instant;

use super::peer::Peer;

/// Readers take a snapshot without a lock; changes are rare.
#[derive(Debug, Default)]
pub(super) struct Registry {
    peers: ArcSwap<Peers>,
    memory: Mutex<Memory>,
}

#[derive(Clone, Debug, Default)]
struct Peers {
    by_id: BTreeMap<NodeId, Arc<Peer>>,
    by_addr: BTreeMap<SocketAddr, Arc<Peer>>,
    /// Addresses that were dialed (a seed's, say) and the node that answered, which may advertise
    /// another one.
    aliases: BTreeMap<SocketAddr, NodeId>,
}

#[derive(Debug, Default)]
struct Memory {
    /// The highest generation met of each node.
    met: BTreeMap<NodeId, Generation>,
    /// Which node answered last at an address.
    ids: BTreeMap<SocketAddr, NodeId>,
    dials: BTreeMap<SocketAddr, Dial>,
}

/// A dial that is under way or failed; one that succeeded is forgotten.
#[derive(Debug)]
struct Dial {
    /// When to try again; `None` while it is under way.
    again: Option<Instant>,
    /// The pause after the next failure.
    pause: Duration,
}

/// What became of a dial.
pub(super) enum Dialed<'a> {
    /// This node answered.
    Answered(&'a NodeId),
    /// Nobody did, or not one of us.
    Failed,
    /// We did ourselves: a seed list usually names every node.
    Own,
}

/// What became of a new connection.
pub(super) enum Admission {
    /// It is the connection to that peer; an older one is to be closed.
    Admitted { replaced: Option<Arc<Peer>> },
    /// There is a better one already.
    Surplus,
}

/// Nodes and addresses that are remembered. At the bound the whole memory of them is dropped: what
/// is lost is only the refusal of old starts and the pauses between dials.
const MEMORY_MAX: usize = 4_096;
/// The pause after a failed dial, doubled each time up to [`REDIAL_MAX`].
const REDIAL_MIN: Duration = Duration::from_millis(100);
/// A healed link is found after at most this.
const REDIAL_MAX: Duration = Duration::from_secs(1);
/// The pause after a dial that reached this node itself.
const REDIAL_OWN: Duration = Duration::from_secs(3_600);

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

    /// The highest generation met of `id`.
    pub(super) fn met(&self, id: &NodeId) -> Option<Generation> {
        self.memory.lock().met.get(id).copied()
    }

    /// The highest generation met of the node that answered last at `addr`.
    pub(super) fn met_at(&self, addr: SocketAddr) -> Option<Generation> {
        let memory = self.memory.lock();
        memory.ids.get(&addr).and_then(|id| memory.met.get(id)).copied()
    }

    /// Takes `peer` in, unless the connection to it that is there already is to be kept.
    pub(super) fn admit(&self, peer: Arc<Peer>) -> Admission {
        // The lock serialises changes; readers never wait for it.
        let mut memory = self.memory.lock();
        let current = self.peers.load_full();
        let existing = current.by_id.get(&peer.id);
        if existing.is_some_and(|existing| keeps(existing, &peer)) {
            return Admission::Surplus;
        }
        memory.remember(&peer);
        let replaced = existing.cloned();
        let mut next = Peers::clone(&current);
        if let Some(old) = &replaced {
            next.forget_addr(old);
        }
        next.by_addr.insert(peer.advertise, peer.clone());
        next.by_id.insert(peer.id.clone(), peer);
        self.peers.store(Arc::new(next));
        Admission::Admitted { replaced }
    }

    /// Takes `peer` out, unless another connection to it has taken its place.
    pub(super) fn remove(&self, peer: &Arc<Peer>) {
        let _serialised = self.memory.lock();
        let current = self.peers.load_full();
        let mut next = Peers::clone(&current);
        if next.by_id.get(&peer.id).is_some_and(|there| Arc::ptr_eq(there, peer)) {
            next.by_id.remove(&peer.id);
        }
        next.forget_addr(peer);
        self.peers.store(Arc::new(next));
    }

    /// Whether to dial `addr` now; if so, it counts as being dialed until [`Registry::dial_ended`].
    pub(super) fn may_dial(&self, addr: SocketAddr) -> bool {
        if self.peers.load().at(addr).is_some_and(|peer| !peer.is_lost()) {
            return false;
        }
        let mut memory = self.memory.lock();
        if memory.dials.len() >= MEMORY_MAX {
            memory.dials.clear();
        }
        let dial = memory
            .dials
            .entry(addr)
            .or_insert_with(|| Dial { again: Some(Instant::now()), pause: REDIAL_MIN });
        let may = dial.again.is_some_and(|again| Instant::now() >= again);
        if may {
            dial.again = None;
        }
        may
    }

    /// Ends the dial that [`Registry::may_dial`] began.
    pub(super) fn dial_ended(&self, addr: SocketAddr, outcome: Dialed<'_>) {
        let mut memory = self.memory.lock();
        match (outcome, memory.dials.get_mut(&addr)) {
            (Dialed::Answered(id), _) => {
                memory.dials.remove(&addr);
                let mut next = Peers::clone(&self.peers.load());
                if next.aliases.len() >= MEMORY_MAX {
                    next.aliases.clear();
                }
                next.aliases.insert(addr, id.clone());
                self.peers.store(Arc::new(next));
            }
            (Dialed::Failed, Some(dial)) => {
                dial.again = Some(Instant::now() + dial.pause);
                dial.pause = (dial.pause * 2).min(REDIAL_MAX);
            }
            (Dialed::Own, Some(dial)) => dial.again = Some(Instant::now() + REDIAL_OWN),
            (_, None) => {}
        }
    }
}

// === impl Peers ===

impl Peers {
    /// Addresses of `peer` lead nowhere any more; they may be another's next.
    fn forget_addr(&mut self, peer: &Arc<Peer>) {
        if self.by_addr.get(&peer.advertise).is_some_and(|there| Arc::ptr_eq(there, peer)) {
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

// === impl Memory ===

impl Memory {
    fn remember(&mut self, peer: &Peer) {
        if self.met.len() >= MEMORY_MAX {
            self.met.clear();
        }
        if self.ids.len() >= MEMORY_MAX {
            self.ids.clear();
        }
        self.ids.insert(peer.advertise, peer.id.clone());
        let met = self.met.entry(peer.id.clone()).or_insert(peer.generation);
        *met = peer.generation.max(*met);
    }
}

/// Whether `existing` stays in place of `new`, a connection to the same node.
fn keeps(existing: &Peer, new: &Peer) -> bool {
    if existing.generation != new.generation {
        return existing.generation > new.generation;
    }
    if existing.is_lost() || existing.dialer == new.dialer {
        return false;
    }
    existing.dialer < new.dialer
}

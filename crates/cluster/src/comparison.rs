//! Sets of orders that are the same at all nodes in the end.
//!
//! An order is announced to every connected node at once, and its result names those that confirmed
//! it. The others receive it by comparison: each node sends the digest of its set to one peer after
//! the other, and merges that of a peer which has a different one. A node that has just joined
//! compares before anything else. Merging is a join, so orders may arrive in any order, and again.
//!
//! ```text
//! order ── Announce ──▶ all peers, edges too    node ── Compare { digest } ──▶ next peer
//!                                                    ◀── the whole set, if they differ
//! ```
//!
//! Orders are given at cores. An edge receives announcements and compares, and announces nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate_ownership::identity::{Generation, NodeId};
use tokio_util::sync::CancellationToken;

use crate::mesh::wire::{Call, Reply};
use crate::mesh::{Mesh, Peer, StreamClass};
use crate::pki::Role;

/// A set that nodes compare.
pub(crate) trait Compared: Send + Sync + 'static {
    /// The first version of the wire format with its calls.
    const VERSION: u8;

    /// Compares the set with that of the receiver.
    fn compare(&self) -> Call;

    /// Merges what a peer replied to [`Compared::compare`], if it is another set.
    fn merge_reply(&self, from: &Peer, reply: Reply, mesh: &Mesh);

    /// Merges what is to be merged because time has passed.
    fn look(&self, _mesh: &Mesh) {}
}

/// What became of an announcement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    pub confirmed: Vec<NodeId>,
    /// Connected nodes that did not confirm it within a second. They receive it by comparison.
    pub missed: Vec<NodeId>,
}

/// How long a peer may take to confirm an order, or to answer a comparison.
const DEADLINE: Duration = Duration::from_secs(1);
/// How often a node looks for new peers.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How often a core compares with a peer, and an edge, of which there are thousands.
const CORE_INTERVAL: Duration = Duration::from_secs(1);
const EDGE_INTERVAL: Duration = Duration::from_secs(10);

/// Sends an order of a set to all connected nodes but `except`, and waits for each for a second at
/// most. A node without a reply does not know the order, or did not answer in time.
pub(crate) async fn announce<S: Compared>(
    mesh: &Mesh,
    except: Option<&NodeId>,
    order: impl Fn() -> Call,
) -> Vec<(NodeId, Option<Reply>)> {
    let edges = mesh.edges();
    let peers = mesh.peers().into_iter().chain(edges.iter().cloned());
    let peers: Vec<Arc<Peer>> = peers.filter(|peer| Some(&peer.id) != except).collect();
    let replies = join_all(peers.iter().map(|peer| {
        let order = order();
        async move { (peer.id.clone(), call::<S>(mesh, peer, order).await) }
    }));
    replies.await
}

impl From<Vec<(NodeId, Option<Reply>)>> for Announced {
    fn from(replies: Vec<(NodeId, Option<Reply>)>) -> Self {
        let mut announced = Self::default();
        for (node, reply) in replies {
            let is_confirmed = matches!(reply, Some(Reply::Done));
            let list = if is_confirmed { &mut announced.confirmed } else { &mut announced.missed };
            list.push(node);
        }
        announced
    }
}

/// Compares `set` with peers until `stop`.
pub(crate) async fn run<S: Compared>(set: Arc<S>, mesh: Arc<Mesh>, stop: CancellationToken) {
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
            set.look(&mesh);
            let mut peers = mesh.peers();
            peers.retain(|peer| !peer.is_unreachable());
            compared.retain(|id, generation| {
                peers.iter().any(|peer| peer.id == *id && peer.generation == *generation)
            });
            let new = peers.iter().find(|peer| !compared.contains_key(&peer.id));
            let in_turn = || peers.get(turn % peers.len().max(1)).filter(|_| is_round);
            let Some(peer) = new.or_else(in_turn) else { continue };
            turn = turn.wrapping_add(usize::from(is_round));
            if let Some(reply) = call::<S>(&mesh, peer, set.compare()).await {
                set.merge_reply(peer, reply, &mesh);
                compared.insert(peer.id.clone(), peer.generation);
            }
        }
    };
    stop.run_until_cancelled(comparing).await;
}

/// The reply; none if the peer does not know the call, or does not answer in time.
async fn call<S: Compared>(mesh: &Mesh, peer: &Peer, call: Call) -> Option<Reply> {
    if peer.version < S::VERSION {
        return None;
    }
    mesh.call_peer(peer, StreamClass::Control, call, DEADLINE).await.ok()
}

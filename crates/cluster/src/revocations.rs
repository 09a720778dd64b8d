//! Revocations on their way to all nodes, by `comparison`. What they are:
//! [`crate::pki::Revocations`].

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::identity::NodeId;
use tokio_util::sync::CancellationToken;

use crate::agreed_time::agreed_time;
use crate::comparison::{self, Announced, Compared};
use crate::mesh::codec::REVOCATIONS;
use crate::mesh::wire::{Call, Reply, RevocationCall};
use crate::mesh::{Mesh, Peer, ServiceReply};
use crate::pki::{REVOCATIONS_MAX, Revocation, Revocations, Role};

/// How long a node may take to write a revocation before it does not confirm it: less than a peer
/// waits.
pub const KEEP_PATIENCE: Duration = Duration::from_millis(800);

/// Sends a revocation to all connected nodes but the revoked one, and waits for each for a second
/// at most. One that still accepts the certificate with which the revoked node is connected replies
/// from when on it would not; then that is sent to all.
pub async fn announce(revocation: &Revocation, mesh: &Mesh) -> Announced {
    let replies = announce_once(revocation, mesh).await;
    let needed = replies.iter().filter_map(|(_, reply)| match reply {
        Some(Reply::Revocations(entries)) => match &entries[..] {
            [needed] if needed.node == revocation.node => Some(needed),
            _ => None,
        },
        _ => None,
    });
    match needed.max_by_key(|needed| needed.at) {
        Some(needed) if mesh.revocations.merge([needed.clone()], agreed_time(mesh)) => {
            announce_once(needed, mesh).await.into()
        }
        _ => replies.into(),
    }
}

async fn announce_once(revocation: &Revocation, mesh: &Mesh) -> Vec<(NodeId, Option<Reply>)> {
    let order = || Call::Revocations(RevocationCall::Announce(revocation.clone()));
    comparison::announce::<Revocations>(mesh, Some(&revocation.node), order).await
}

/// The reply to a call of a peer. A revocation is confirmed when it is on the disk.
pub fn call_received(mesh: &Mesh, from: &Peer, call: RevocationCall) -> ServiceReply {
    let is_announced = matches!(call, RevocationCall::Announce(_));
    match reply(mesh, from, call) {
        Reply::Done if is_announced => {
            let revocations = mesh.revocations.clone();
            let kept = async move { revocations.are_kept(KEEP_PATIENCE).await };
            let reply = |is_kept| if is_kept { Reply::Done } else { Reply::Unconfirmed };
            ServiceReply::Deferred(kept.map(reply).boxed())
        }
        reply => ServiceReply::Ready(reply),
    }
}

fn reply(mesh: &Mesh, from: &Peer, call: RevocationCall) -> Reply {
    match call {
        RevocationCall::Announce(_) if from.role == Role::Edge => Reply::Malformed,
        RevocationCall::Announce(revocation) => {
            let node = revocation.node.clone();
            if !accepts_orders(from, mesh) {
                return Reply::Unconfirmed;
            }
            if !mesh.revocations.merge([revocation], agreed_time(mesh)) {
                return Reply::Unconfirmed;
            }
            match mesh.peer(&node).and_then(|peer| mesh.accepted_from(&peer)) {
                None => Reply::Done,
                Some(at) => Reply::Revocations(vec![Revocation { node, at }]),
            }
        }
        RevocationCall::Compare { digest } if digest == mesh.revocations.digest() => Reply::Done,
        RevocationCall::Compare { .. } => Reply::Revocations(mesh.revocations.all()),
    }
}

/// Whether a peer may give orders and renew its certificate here: it is not revoked, and this node,
/// if it has just started, has received that of two.
pub fn accepts_orders(from: &Peer, mesh: &Mesh) -> bool {
    mesh.accepted_from(from).is_some()
        && mesh.revocations.accepts_orders((&from.id, admitted(from)))
}

fn admitted(peer: &Peer) -> Timestamp {
    peer.admitted_at().unwrap_or(Timestamp::EPOCH)
}

/// Compares with peers until `stop`.
pub async fn run(mesh: Arc<Mesh>, stop: CancellationToken) {
    comparison::run(mesh.revocations.clone(), mesh, stop).await;
}

impl Compared for Revocations {
    const VERSION: u8 = REVOCATIONS;

    fn compare(&self) -> Call {
        Call::Revocations(RevocationCall::Compare { digest: self.digest() })
    }

    fn merge_reply(&self, from: &Peer, reply: Reply, mesh: &Mesh) {
        let set = match reply {
            Reply::Revocations(entries) if entries.len() <= REVOCATIONS_MAX => entries,
            Reply::Done => self.all(),
            _ => return,
        };
        let (now, monotonic) = (agreed_time(mesh), mesh.clock.monotonic());
        self.received((&from.id, admitted(from)), set, now, monotonic);
    }

    fn look(&self, mesh: &Mesh) {
        Revocations::look(self, agreed_time(mesh), mesh.clock.monotonic());
    }
}

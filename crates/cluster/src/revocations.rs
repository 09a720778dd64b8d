//! Revocations on their way to all nodes, by [`comparison`](crate::comparison). What they are:
//! [`Revocations`](crate::pki::Revocations).

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::comparison::{self, Announced, Compared};
use crate::mesh::codec::REVOCATIONS;
use crate::mesh::wire::{Call, Reply, RevocationCall};
use crate::mesh::{Mesh, Peer};
use crate::pki::{REVOCATIONS_MAX, Revocation, Revocations, Role};

/// Sends a revocation to all connected nodes, and waits for each for a second at most.
pub async fn announce(revocation: &Revocation, mesh: &Mesh) -> Announced {
    let order = || Call::Revocations(RevocationCall::Announce(revocation.clone()));
    comparison::announce::<Revocations>(mesh, order).await
}

/// The reply to a call of a peer.
pub fn call_received(mesh: &Mesh, from: &Peer, call: RevocationCall) -> Reply {
    match call {
        RevocationCall::Announce(_) if from.role == Role::Edge => Reply::Malformed,
        RevocationCall::Announce(revocation) => {
            if mesh.revocations.merge([revocation], mesh.clock.system()) {
                Reply::Done
            } else {
                Reply::Unconfirmed
            }
        }
        RevocationCall::Compare { digest } if digest == mesh.revocations.digest() => Reply::Done,
        RevocationCall::Compare { .. } => Reply::Revocations(mesh.revocations.all()),
    }
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

    fn merge_reply(&self, reply: Reply, mesh: &Mesh) {
        if let Reply::Revocations(entries) = reply
            && entries.len() <= REVOCATIONS_MAX
        {
            self.merge(entries, mesh.clock.system());
        }
    }
}

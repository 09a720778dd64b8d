//! Certificates, authorities and accepted secrets that are replaced while the mesh runs.
//!
//! New connections use the new ones ([`Mesh::replace_identity`]). Open connections follow:
//!
//! - With another certificate this node dials each peer again. Both replace the connection before
//!   by the new one once that is established, and close it half a second later, so calls go on.
//! - A connection whose peer's certificate has expired, or whose authority is not trusted any more,
//!   is closed, within [`CHECK_INTERVAL`]; one whose peer's certificate is revoked, at once.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limiter::units::Timestamp;

use super::credentials::{self, Credentials};
use super::handle::Mesh;
use super::peer::Peer;
use super::tls;
use super::wire::close_code;
use crate::count;
use crate::pki::{self, Identity, Role};

/// The longest time for which a connection outlasts the certificate of its peer.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

impl Mesh {
    /// The certificate, authorities and secrets in use.
    pub fn identity(&self) -> Arc<Identity> {
        self.credentials.load().identity.clone()
    }

    /// Uses another certificate, other authorities or other accepted secrets from now on. Keys are
    /// hashed under the secret of the start nevertheless.
    ///
    /// # Errors
    ///
    /// Certificate and key do not fit together: nothing is changed.
    pub fn replace_identity(&self, identity: Identity) -> Result<(), tls::Error> {
        let current = self.credentials.load();
        let is_other = !identity.has_certificate_of(&current.identity);
        let number = current.number + u64::from(is_other);
        let next = Credentials::new(Arc::new(identity), self.names_domains(), number)?;
        self.credentials.store(Arc::new(next));
        self.credentials_replaced.notify_one();
        Ok(())
    }

    /// The number of connections whose peers still have an earlier certificate of this node.
    pub fn connections_to_renew(&self) -> usize {
        let current = self.credentials.load().number;
        let (peers, edges) = (self.peers(), self.edges());
        peers.iter().chain(edges.iter()).filter(|peer| peer.credentials != current).count()
    }

    /// As [`Peer::admitted_at`], of a peer that no revocation refuses.
    pub(crate) fn accepted_from(&self, peer: &Peer) -> Option<Timestamp> {
        let admitted = peer.admitted_at()?;
        let until = self.revocations.until(&peer.id);
        until.is_none_or(|until| admitted > until).then_some(admitted)
    }

    /// Brings the open connections up to date. Never returns.
    pub(super) async fn follow_certificates(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(CHECK_INTERVAL);
        let mut revoked = self.revocations.changes();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                // Its sender lives as long as the mesh.
                Ok(()) = revoked.changed() => {}
                () = self.credentials_replaced.notified() => {}
            }
            let credentials = self.credentials.load_full();
            let (peers, edges) = (self.peers(), self.edges());
            for peer in peers.iter().chain(edges.iter()) {
                let chain = credentials::chain(&peer.connection);
                let (roots, now) = (&credentials.identity.roots, self.clock.system());
                let revoked = chain.first().and_then(|first| self.revocations.refuse(first));
                let valid = match revoked {
                    Some(_) => Err("revoked".to_owned()),
                    None => pki::verify_peer(&chain, roots, now),
                };
                if let Err(reason) = valid {
                    count(&self.counters.untrusted, 1);
                    tracing::warn!(
                        peer = %peer.id, addr = %peer.advertise, %reason,
                        "closed the connection: the peer's certificate is not valid any more; give \
                         it one of an authority in tls.ca"
                    );
                    peer.connection.close(close_code::CERTIFICATE, reason.as_bytes());
                } else if peer.credentials != credentials.number {
                    match peer.role {
                        Role::Core => self.dial_anew(peer.advertise),
                        // It is not dialed, and comes back when it needs to.
                        Role::Edge => {
                            peer.connection.close(close_code::REPLACED, b"another certificate");
                        }
                    }
                }
                // Some ten microseconds each, of up to 511 cores and 2,048 edges.
                tokio::task::yield_now().await;
            }
        }
    }
}

impl Peer {
    /// When the node was admitted, by the certificate of this connection.
    pub fn admitted_at(&self) -> Option<Timestamp> {
        pki::admitted_at(credentials::chain(&self.connection).first()?)
    }
}

//! The certificates in use: this node's own, and the authorities by which it trusts its peers.

use std::sync::Arc;

use quinn::Connection;
use rustls::pki_types::CertificateDer;
use tidegate_limiter::store::KeyHasher;

use super::tls;
use crate::pki::Identity;

/// What new connections authenticate with.
#[derive(Debug)]
pub(super) struct Credentials {
    pub(super) identity: Arc<Identity>,
    pub(super) server: Arc<quinn::ServerConfig>,
    pub(super) client: quinn::ClientConfig,
    /// Fingerprints of the secrets that a peer may have besides that of this node's keys.
    pub(super) secrets: Vec<u64>,
    /// Counts the certificates of this node since its start.
    pub(super) number: u64,
}

impl Credentials {
    /// `names_domains` is whether keys name their domain: nodes that do not agree on it refuse each
    /// other.
    pub(super) fn new(
        identity: Arc<Identity>,
        names_domains: bool,
        number: u64,
    ) -> Result<Self, tls::Error> {
        let (server, client) = tls::configure(&identity)?;
        let secrets = std::iter::once(&identity.secret).chain(&identity.other_secrets);
        let hasher = |secret: &[u8; 16]| KeyHasher::new(*secret).with_domains(names_domains);
        let secrets = secrets.map(|secret| hasher(secret).fingerprint()).collect();
        Ok(Self { identity, server: Arc::new(server), client, secrets, number })
    }
}

/// The certificates that the peer presented, its own first.
pub(super) fn chain(connection: &Connection) -> Vec<CertificateDer<'static>> {
    let identity = connection.peer_identity();
    let chain = identity.and_then(|identity| identity.downcast().ok());
    chain.map(|chain| *chain).unwrap_or_default()
}

//! Certificates of the nodes, from a certificate authority generated for each run.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tidegate_cluster::pki::{Authority, Bearer, Identity, Role, Validity};
use tidegate_limiter::units::{Span, Timestamp};

/// The key hashing secret, the same on every node.
pub(crate) const SECRET: [u8; 16] = [7; 16];

/// rustls reads the interposed system clock, which starts in 1970.
const VALIDITY: Validity = Validity {
    not_before: Timestamp::EPOCH,
    not_after: Timestamp::EPOCH.plus(Span::from_secs(100 * 365 * 86_400)),
};

/// Generates an identity for each node, of which `nodes` has the id and the region. Those after the
/// first `cores` are edges.
pub(crate) fn identities(
    nodes: &[(String, &str)],
    cores: usize,
) -> Result<Vec<Identity>, Box<dyn std::error::Error>> {
    let authority = Authority::generate(VALIDITY)?;
    let ca = CertificateDer::from_pem_slice(authority.cert_pem().as_bytes())?;
    let mut roots = RootCertStore::empty();
    roots.add(ca.clone())?;
    let roots = Arc::new(roots);
    let identity = |(at, (node, region)): (usize, &(String, &str))| {
        let role = if at < cores { Role::Core } else { Role::Edge };
        let issued = authority.issue(Bearer { node, region, role }, VALIDITY)?;
        Ok(Identity {
            node: node.clone(),
            region: (*region).to_owned(),
            role,
            roots: roots.clone(),
            authorities: vec![ca.clone()],
            chain: vec![CertificateDer::from_pem_slice(issued.cert_pem.as_bytes())?],
            key: Arc::new(PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes())?),
            secret: SECRET,
            other_secrets: Vec::new(),
            validity: VALIDITY,
        })
    };
    nodes.iter().enumerate().map(identity).collect()
}

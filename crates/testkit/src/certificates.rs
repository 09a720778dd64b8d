//! Certificates for nodes in this process, made by an authority of the test.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tidegate::node;
use tidegate_cluster::pki::{Authority, Bearer, Identity, Validity};
use tidegate_limiter::units::Span;

/// An authority that is valid now.
pub fn authority() -> Authority {
    Authority::generate(validity()).expect("make an authority")
}

/// From yesterday until tomorrow.
pub fn validity() -> Validity {
    let (environment, _) = node::system_environment();
    let now = environment.clock.system();
    let day = Span::from_secs(86_400);
    Validity { not_before: now.minus(day), not_after: now.plus(day) }
}

/// An identity for `node` of `region`, issued by `authority`, that trusts `trusted`.
pub fn identity(authority: &Authority, trusted: &Authority, node: &str, region: &str) -> Identity {
    identity_of(authority, trusted, Bearer::core(node, region))
}

/// An identity for `bearer`, issued by `authority`, that trusts `trusted`.
pub fn identity_of(authority: &Authority, trusted: &Authority, bearer: Bearer<'_>) -> Identity {
    let Bearer { node, region, role } = bearer;
    let issued = authority.issue(bearer, validity()).expect("issue a certificate");
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(trusted.cert_pem().as_bytes()).expect("a certificate");
    roots.add(ca.clone()).expect("an authority");
    Identity {
        node: node.to_owned(),
        region: region.to_owned(),
        role,
        roots: Arc::new(roots),
        authorities: vec![ca],
        chain: vec![CertificateDer::from_pem_slice(issued.cert_pem.as_bytes()).expect("pem")],
        key: Arc::new(PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes()).expect("pem")),
        secret: [7; 16],
        other_secrets: Vec::new(),
        validity: validity(),
    }
}

/// Writes an authority and a certificate for each of `nodes`, with its region, into `folder`, with
/// `tidegate ca`.
pub fn write<'a>(
    program: &str,
    folder: &Path,
    nodes: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
) {
    ca(program, folder, &["init"]);
    for (node, region) in nodes {
        issue(program, folder, node, region);
    }
}

/// Writes one more certificate of the authority in `folder`; without a region one for the default.
pub fn issue(program: &str, folder: &Path, node: &str, region: Option<&str>) {
    let region = region.map(|region| ["--region", region]);
    let region = region.as_ref().map_or(&[][..], |pair| &pair[..]);
    ca(program, folder, &[&["issue", "--node", node], region].concat());
}

/// Writes one more certificate of the authority in `folder`, for an edge.
pub fn issue_edge(program: &str, folder: &Path, edge: &str) {
    ca(program, folder, &["issue", "--node", edge, "--role", "edge"]);
}

fn ca(program: &str, folder: &Path, args: &[&str]) {
    let mut command = Command::new(program);
    let output = command.env_clear().arg("ca").args(args).arg("--dir").arg(folder).output();
    let output = output.expect("run tidegate ca");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

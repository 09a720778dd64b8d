//! The DNS names in a node certificate.

use rustls::pki_types::{CertificateDer, ServerName};
use webpki::EndEntityCert;

/// The name that every node certificate carries and that peers dial by.
pub const MESH_NAME: &str = "mesh.tidegate";

/// Whether the certificate is valid for the DNS name `name`. The hello checks the claimed node id
/// with it.
pub fn names(cert: &CertificateDer<'_>, name: &str) -> bool {
    let (Ok(cert), Ok(name)) = (EndEntityCert::try_from(cert), ServerName::try_from(name)) else {
        return false;
    };
    cert.verify_is_valid_for_subject_name(&name).is_ok()
}

//! Certificates of listeners and of their clients, as a site's own authority issues them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

/// An authority.
#[derive(Debug)]
pub struct Authority {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
#[derive(Debug)]
pub struct Issued {
    pub pem: String,
    pub key: String,
}

impl Authority {
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate for a host name or an IP address.
    pub fn issue(&self, name: &str) -> Issued {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        Issued { pem: cert.pem(), key: key.serialize_pem() }
    }

    /// A client that trusts this authority, and shows a certificate or none.
    pub fn client(
        &self,
        shows: Option<&Issued>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        match shows {
            None => builder.with_no_client_auth(),
            Some(Issued { pem, key }) => {
                let chain = vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        }
    }
}

impl Issued {
    pub fn der(&self) -> Vec<u8> {
        CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap().to_vec()
    }

    /// Writes `NAME.pem` and `NAME.key`.
    pub fn write(&self, folder: &Path, name: &str) {
        fs::write(folder.join(format!("{name}.pem")), &self.pem).unwrap();
        let key = folder.join(format!("{name}.key"));
        fs::write(&key, &self.key).unwrap();
        fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    }
}

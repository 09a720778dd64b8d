//! The certificate authority of a cluster. Text in, text out: no disk, no clock.
//!
//! `now` is an argument here as everywhere; only the keys themselves come from the system's
//! randomness, inside rcgen.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, date_time_ymd,
};
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::name::is_label;

use super::{Error, MESH_NAME};

/// The subject of every authority made here. It is constant so that an authority can be taken up
/// again from its key alone; which authority signed is told by the key, not by the name.
const SUBJECT: &str = "tidegate cluster authority";

/// From when to when a certificate is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Not before.
    pub not_before: Timestamp,
    /// Not after.
    pub not_after: Timestamp,
}

/// A certificate authority: what `ca.pem` and `ca.key` hold.
#[derive(Debug)]
pub struct Authority {
    cert_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A node's certificate and key.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub cert_pem: String,
    /// Its private key.
    pub key_pem: String,
}

impl Authority {
    /// Makes a new authority.
    pub fn generate(validity: Validity) -> Result<Self, Error> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let params = params(validity);
        let cert_pem = params.self_signed(&key)?.pem();
        Ok(Self { cert_pem, issuer: Issuer::new(params, key) })
    }

    /// Takes up an authority from what [`Authority::cert_pem`] and [`Authority::key_pem`] gave.
    pub fn from_pem(cert_pem: &str, key_pem: &str) -> Result<Self, Error> {
        let key = KeyPair::from_pem(key_pem)?;
        // Dates are not used for signing; those of the authority stand in its own certificate.
        let validity = Validity { not_before: Timestamp::EPOCH, not_after: Timestamp::EPOCH };
        Ok(Self { cert_pem: cert_pem.to_owned(), issuer: Issuer::new(params(validity), key) })
    }

    /// The certificate, for every node.
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// The private key, for nobody.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Makes a key and a certificate for `node`: both names, good for both ends of a connection.
    pub fn issue(&self, node: &str, validity: Validity) -> Result<Issued, Error> {
        if !is_label(node) {
            return Err(Error::NodeName(node.to_owned()));
        }
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let mut params = CertificateParams::new([node.to_owned(), MESH_NAME.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, node);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        set_dates(&mut params, validity);
        let cert_pem = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued { cert_pem, key_pem: key.serialize_pem() })
    }
}

fn params(validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, SUBJECT);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_dates(&mut params, validity);
    params
}

fn set_dates(params: &mut CertificateParams, validity: Validity) {
    let epoch = date_time_ymd(1970, 1, 1);
    // A `Timestamp` ends in 2554, far inside what a certificate can say.
    params.not_before = epoch + Duration::from_secs(validity.not_before.as_secs());
    params.not_after = epoch + Duration::from_secs(validity.not_after.as_secs());
}

//! The certificate authority of a cluster. PEM text in and out, without files or a clock.
//!
//! Private keys come from the system's randomness, inside rcgen.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, PKCS_ED25519,
};
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::name::is_label;
use time::OffsetDateTime;

use super::Error;
use super::bearer::{Bearer, MESH_NAME, NODES, REGIONS, ROLES, Role, Scope, Validity, region_name};

/// The subject of every authority. It is constant, so that an authority can be restored from its
/// key alone. Authorities are told apart by their keys, not by this name.
const SUBJECT: &str = "tidegate cluster authority";
/// The subject of every signer. It must not be that of the authority, by which it is found.
const SIGNER_SUBJECT: &str = "tidegate signer";

/// A certificate authority: the contents of `ca.pem` and `ca.key`.
#[derive(Debug)]
pub struct Authority {
    cert_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its private key.
#[derive(Clone)]
pub struct Issued {
    pub cert_pem: String,
    pub key_pem: String,
}

impl Authority {
    /// Creates an authority with a new key.
    ///
    /// # Errors
    ///
    /// The system has no randomness.
    pub fn generate(validity: Validity) -> Result<Self, Error> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let params = params(validity);
        let cert_pem = params.self_signed(&key)?.pem();
        Ok(Self { cert_pem, issuer: Issuer::new(params, key) })
    }

    /// Restores an authority from [`Authority::cert_pem`] and [`Authority::key_pem`].
    ///
    /// # Errors
    ///
    /// `key_pem` is not a private key.
    pub fn from_pem(cert_pem: &str, key_pem: &str) -> Result<Self, Error> {
        let key = KeyPair::from_pem(key_pem)?;
        // Signing does not use these dates; the authority's own are in `cert_pem`.
        let validity = Validity { not_before: Timestamp::EPOCH, not_after: Timestamp::EPOCH };
        Ok(Self { cert_pem: cert_pem.to_owned(), issuer: Issuer::new(params(validity), key) })
    }

    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// The private key. It allows adding nodes to the cluster.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Creates a key and a certificate for `bearer`, valid as client and as server. Its names are
    /// the node id, [`MESH_NAME`], [`region_name`] and that of its role.
    ///
    /// # Errors
    ///
    /// The node or the region is not a label, or the certificate could not be created.
    pub fn issue(&self, bearer: Bearer<'_>, validity: Validity) -> Result<Issued, Error> {
        let params = node_params(bearer, bearer.node.to_owned(), validity)?;
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let cert_pem = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued { cert_pem, key_pem: key.serialize_pem() })
    }

    /// Creates a key and a certificate for a [`Signer`](super::Signer) that signs for the nodes of
    /// `scope` alone.
    ///
    /// # Errors
    ///
    /// The region is not a label, or the certificate could not be created.
    pub fn issue_signer(&self, scope: Scope<'_>, validity: Validity) -> Result<Issued, Error> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let params = signer_params(scope, validity)?;
        let cert_pem = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued { cert_pem, key_pem: key.serialize_pem() })
    }
}

/// Of a certificate of `bearer` in which `name` names the node.
pub(super) fn node_params(
    bearer: Bearer<'_>,
    name: String,
    validity: Validity,
) -> Result<CertificateParams, Error> {
    let Bearer { node, region, role } = bearer;
    for (label, what) in [(node, "node id"), (region, "region")] {
        check_label(label, what)?;
    }
    let role = role.in_certificate().to_owned();
    let names = [name, MESH_NAME.to_owned(), region_name(region), role];
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, node);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    set_dates(&mut params, validity);
    Ok(params)
}

fn check_label(name: &str, what: &str) -> Result<(), Error> {
    if is_label(name) {
        return Ok(());
    }
    let rule = "1 to 63 of a-z, 0-9 and -, at least one letter, no - at either end";
    Err(Error(format!("{name:?} is not a {what}; use {rule}")))
}

fn params(validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, SUBJECT);
    // Below it a signer, and below that nodes.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_dates(&mut params, validity);
    params
}

/// Verifiers refuse what a signer signs beyond these names.
fn signer_params(
    Scope { region, role }: Scope<'_>,
    validity: Validity,
) -> Result<CertificateParams, Error> {
    if let Some(region) = region {
        check_label(region, "region")?;
    }
    let region = region.map_or_else(|| REGIONS.to_owned(), region_name);
    let role = role.map_or(ROLES, Role::in_certificate).to_owned();
    let names = [MESH_NAME.to_owned(), NODES.to_owned(), region, role];
    let permitted_subtrees = names.into_iter().map(GeneralSubtree::DnsName).collect();
    // A list of permitted names of one kind leaves those of other kinds open.
    let every_address = [CidrSubnet::V4([0; 4], [0; 4]), CidrSubnet::V6([0; 16], [0; 16])];
    let excluded_subtrees = every_address.map(GeneralSubtree::IpAddress).into();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, SIGNER_SUBJECT);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees });
    params.use_authority_key_identifier_extension = true;
    set_dates(&mut params, validity);
    Ok(params)
}

fn set_dates(params: &mut CertificateParams, validity: Validity) {
    // A `Timestamp` ends in 2554; certificates and `OffsetDateTime` reach to 9999.
    let date = |at: Timestamp| OffsetDateTime::UNIX_EPOCH + Duration::from_secs(at.as_secs());
    params.not_before = date(validity.not_before);
    params.not_after = date(validity.not_after);
}

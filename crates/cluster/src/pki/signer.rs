//! Signs certificates of nodes while the key of the cluster's authority stays offline.
//!
//! A *signer* is an intermediate authority. It is limited in time, and by name constraints (RFC
//! 5280, 4.2.1.10) to the names that nodes of a cluster have, on demand to those of one region or
//! role. A node that holds one signs for nodes that show a token, and renews certificates of peers.
//!
//! ```text
//! ca.pem  ──signs──▶  signer.pem  ──signs──▶  n4.pem: n4.node.tidegate, mesh.tidegate,
//! (offline)           *.node.tidegate, …             eu.region.tidegate, core.role.tidegate
//! ```
//!
//! *Example*: with `--region eu --role edge` it permits `mesh.tidegate`, `node.tidegate`,
//! `eu.region.tidegate` and `edge.role.tidegate`. If it is stolen, the thief can add edges in
//! `eu` until it expires; a certificate of a core that it signs is refused by every node.
//!
//! Nodes need only `ca.pem`: each sends the signer's certificate with its own.

use rcgen::{CertificateSigningRequestParams, Issuer, KeyPair, PKCS_ED25519, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, TrustAnchor};
use tidegate_limiter::units::Timestamp;
use webpki::KeyUsage;

use super::Error;
use super::authority::node_params;
use super::bearer::{Bearer, MESH_NAME, Validity, admission_name, node_name};
use super::verify::{self, anchors, certificates, utc_date};

/// The largest request; one of [`NewKey`] has some 200 bytes.
pub const REQUEST_BYTES_MAX: usize = 4_096;

/// The key of a node that has no certificate for it yet.
pub struct NewKey(KeyPair);

/// The certificate and the key of an intermediate authority.
#[derive(Debug)]
pub struct Signer {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, and those up to the authority.
    chain: Vec<CertificateDer<'static>>,
    /// The authorities, one of which is above it.
    anchors: Vec<TrustAnchor<'static>>,
    validity: Validity,
}

/// Why a certificate is not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The request is none, or its sender does not have the key in it.
    #[error("the request is no signing request of an Ed25519 key: {0}")]
    Request(String),
    /// Peers would refuse the certificate: the signer has expired, or is for other nodes.
    #[error("the signer may not sign it: {0}")]
    Refused(String),
}

/// The request (DER) in a PEM text.
///
/// # Errors
///
/// There is none.
pub fn request_from_pem(pem: &str) -> Result<Vec<u8>, SignError> {
    let request = CertificateSigningRequestDer::from_pem_slice(pem.as_bytes());
    let request = request.map_err(|error| SignError::Request(error.to_string()))?;
    Ok(request.to_vec())
}

impl NewKey {
    /// # Errors
    ///
    /// The system has no randomness.
    pub fn generate() -> Result<Self, Error> {
        Ok(Self(KeyPair::generate_for(&PKCS_ED25519)?))
    }

    /// A signing request (PKCS #10, DER). It names nothing: who the node is, the signer knows from
    /// its token or its present certificate.
    ///
    /// # Errors
    ///
    /// It could not be signed.
    pub fn request(&self) -> Result<Vec<u8>, Error> {
        Ok(rcgen::CertificateParams::default().serialize_request(&self.0)?.der().to_vec())
    }

    /// [`NewKey::request`] as PEM.
    ///
    /// # Errors
    ///
    /// It could not be signed.
    pub fn request_pem(&self) -> Result<String, Error> {
        Ok(rcgen::CertificateParams::default().serialize_request(&self.0)?.pem()?)
    }

    /// A key that [`NewKey::to_pem`] wrote.
    ///
    /// # Errors
    ///
    /// The text is no such key.
    pub fn from_pem(pem: &str) -> Result<Self, Error> {
        Ok(Self(KeyPair::from_pem(pem)?))
    }

    pub fn to_pem(&self) -> String {
        self.0.serialize_pem()
    }
}

/// Why files are no signer. It has no time of now in it: it is logged when it changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoSigner {
    #[error("{0}; make both files with `tidegate ca signer --dir DIR`")]
    Unusable(String),
    #[error(
        "it expired on {0}; run `tidegate ca signer --renew --dir DIR` where ca.key is, and copy \
         both files"
    )]
    Expired(String),
    #[error("it begins on {0}; set the clock of this machine, or wait")]
    NotYet(String),
}

impl NoSigner {
    fn of(error: webpki::Error) -> Self {
        match error {
            webpki::Error::CertExpired { not_after, .. } => {
                Self::Expired(utc_date(verify::timestamp(not_after)))
            }
            webpki::Error::CertNotValidYet { not_before, .. } => {
                Self::NotYet(utc_date(verify::timestamp(not_before)))
            }
            error => format!("not a signer of an authority in tls.ca ({error})").into(),
        }
    }
}

impl From<String> for NoSigner {
    fn from(reason: String) -> Self {
        Self::Unusable(reason)
    }
}

impl From<&str> for NoSigner {
    fn from(reason: &str) -> Self {
        Self::Unusable(reason.to_owned())
    }
}

impl Signer {
    /// A signer of one of `authorities`, of the contents of its files.
    ///
    /// # Errors
    ///
    /// What is wrong with them: they do not belong together, or none of the authorities vouches for
    /// the signer at `now`.
    pub(super) fn of(
        cert_pem: &str,
        key_pem: &str,
        authorities: &[CertificateDer<'static>],
        now: Timestamp,
    ) -> Result<Self, NoSigner> {
        let chain = certificates(cert_pem).ok_or("contains no certificate")?;
        let first = chain.first().ok_or("contains no certificate")?;
        let key = KeyPair::from_pem(key_pem).map_err(|_| "the key beside it is none")?;
        let issuer = Issuer::from_ca_cert_der(first, key).map_err(|error| error.to_string())?;
        let anchors = anchors(authorities).ok_or("an authority in tls.ca is none")?;
        // A certificate of an authority cannot be verified by itself, only one that it signed.
        let trial = trial(&issuer, &chain).map_err(|error| error.to_string())?;
        let validity = verify::validity(&trial, &anchors, &[KeyUsage::server_auth()], now)
            .map_err(NoSigner::of)?;
        Ok(Self { issuer, chain, anchors, validity })
    }

    /// When it may sign.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// Signs a certificate for `bearer`, who was `admitted` then, and the key in `request`; returns
    /// it with those up to the authority. It never lasts longer than the signer.
    ///
    /// # Errors
    ///
    /// [`SignError`].
    pub fn sign(
        &self,
        request: &[u8],
        bearer: Bearer<'_>,
        admitted: Timestamp,
        validity: Validity,
        now: Timestamp,
    ) -> Result<Vec<CertificateDer<'static>>, SignError> {
        if request.len() > REQUEST_BYTES_MAX {
            return Err(SignError::Request(format!("it has more than {REQUEST_BYTES_MAX} bytes")));
        }
        let request = CertificateSigningRequestDer::from(request);
        // Verifies the signature, and so that the sender has the key.
        let request = CertificateSigningRequestParams::from_der(&request)
            .map_err(|error| SignError::Request(error.to_string()))?;
        if request.public_key.algorithm() != &PKCS_ED25519 {
            return Err(SignError::Request("it is of another kind of key".to_owned()));
        }
        let validity = Validity {
            not_before: validity.not_before.max(self.validity.not_before),
            not_after: validity.not_after.min(self.validity.not_after),
        };
        let refused = |error: &dyn std::fmt::Display| SignError::Refused(error.to_string());
        let params = node_params(bearer, node_name(bearer.node), validity);
        let mut params = params.map_err(|error| refused(&error))?;
        if admitted < validity.not_before {
            let admission = admission_name(admitted).try_into();
            let admission = admission.map_err(|error: rcgen::Error| refused(&error))?;
            params.subject_alt_names.push(SanType::DnsName(admission));
        }
        let cert = params.signed_by(&request.public_key, &self.issuer);
        let cert = cert.map_err(|error| refused(&error))?;
        let mut chain = vec![cert.der().clone()];
        chain.extend(self.chain.iter().cloned());
        let both = [KeyUsage::server_auth(), KeyUsage::client_auth()];
        verify::validity(&chain, &self.anchors, &both, now).map_err(|error| refused(&error))?;
        Ok(chain)
    }
}

/// A certificate of the signer that is valid for ever, and with it the signer's chain.
fn trial(
    issuer: &Issuer<'static, KeyPair>,
    chain: &[CertificateDer<'static>],
) -> Result<Vec<CertificateDer<'static>>, Error> {
    let key = KeyPair::generate_for(&PKCS_ED25519)?;
    let mut params = rcgen::CertificateParams::new([MESH_NAME.to_owned()])?;
    params.not_before = rcgen::date_time_ymd(1970, 1, 1);
    params.not_after = rcgen::date_time_ymd(9999, 1, 1);
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let cert = params.signed_by(&key, issuer)?;
    Ok(std::iter::once(cert.der().clone()).chain(chain.iter().cloned()).collect())
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::units::Span;

    use super::super::authority::Authority;
    use super::super::bearer::{Role, Scope, region_name};
    use super::super::verify::{begins_at, names, names_node, verify_node, verify_peer};
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);
    const DAY: Span = Span::from_secs(86_400);

    fn days(count: u64) -> Validity {
        let length = Span::from_nanos(DAY.as_nanos() * count);
        Validity { not_before: NOW.minus(DAY), not_after: NOW.plus(length) }
    }

    struct Cluster {
        authority: CertificateDer<'static>,
        signer: Signer,
    }

    impl Cluster {
        fn new(scope: Scope<'_>) -> Self {
            let authority = Authority::generate(days(3_650)).expect("an authority");
            let issued = authority.issue_signer(scope, days(90)).expect("a signer");
            let authorities = certificates(authority.cert_pem()).expect("one");
            let signer = Signer::of(&issued.cert_pem, &issued.key_pem, &authorities, NOW);
            Self { authority: authorities[0].clone(), signer: signer.expect("a signer") }
        }

        fn sign(&self, bearer: Bearer<'_>, validity: Validity) -> Result<Chain, SignError> {
            let request = NewKey::generate().and_then(|key| key.request()).expect("a request");
            self.signer.sign(&request, bearer, validity.not_before, validity, NOW)
        }

        /// Whether peers accept it.
        fn verify(&self, chain: &Chain, now: Timestamp) -> Result<(), String> {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(self.authority.clone()).expect("an authority");
            verify_peer(chain, &roots, now)
        }
    }

    type Chain = Vec<CertificateDer<'static>>;

    #[test]
    fn peers_accept_what_a_signer_signs_until_it_expires() {
        let cluster = Cluster::new(Scope::default());
        assert_eq!(cluster.signer.validity(), days(90));
        let chain = cluster.sign(Bearer::core("n4", "eu"), days(30)).expect("signed");
        let [first, others @ ..] = &chain[..] else { panic!("no certificate") };
        for name in ["mesh.tidegate", &region_name("eu"), "core.role.tidegate"] {
            assert!(names(first, name), "{name}");
        }
        assert!(names_node(first, "n4") && !names_node(first, "n5"));
        assert_eq!(begins_at(first), Some(days(30).not_before));
        assert_eq!(cluster.verify(&chain, NOW), Ok(()));
        assert!(cluster.verify(&chain, days(31).not_after).is_err());
        assert_eq!(verify_node(first, others, &cluster.authority, "n4", NOW), Ok(()));
        assert!(verify_node(first, others, &cluster.authority, "n5", NOW).is_err());
        // Without the signer's certificate there is no chain to the authority.
        assert!(cluster.verify(&chain[..1].to_vec(), NOW).is_err());
    }

    #[test]
    fn a_certificate_lasts_no_longer_than_its_signer() {
        let cluster = Cluster::new(Scope::default());
        let chain = cluster.sign(Bearer::core("n4", "eu"), days(365)).expect("signed");
        assert_eq!(cluster.verify(&chain, days(90).not_after), Ok(()));
        let after = days(90).not_after.plus(Span::from_secs(1));
        assert!(cluster.verify(&chain, after).unwrap_err().starts_with("expired"));
    }

    /// The reason is the same at each look.
    #[test]
    fn a_signer_that_is_not_valid_now_has_its_dates_as_the_reason() {
        let authority = Authority::generate(days(3_650)).expect("an authority");
        let issued = authority.issue_signer(Scope::default(), days(90)).expect("a signer");
        let authorities = certificates(authority.cert_pem()).expect("one");
        let at = |now| Signer::of(&issued.cert_pem, &issued.key_pem, &authorities, now).err();
        let later = days(91).not_after;
        assert_eq!(at(later), Some(NoSigner::Expired("2026-04-01".to_owned())));
        assert_eq!(at(NOW.minus(DAY).minus(DAY)), Some(NoSigner::NotYet("2025-12-31".to_owned())));
    }

    #[test]
    fn a_signer_of_one_region_or_role_signs_for_no_other() {
        let scope = Scope { region: Some("eu"), role: Some(Role::Edge) };
        let cluster = Cluster::new(scope);
        let edge = |region| Bearer { node: "e1", region, role: Role::Edge };
        assert!(cluster.sign(edge("eu"), days(30)).is_ok());
        for bearer in [edge("us"), Bearer::core("e1", "eu"), edge("eu.region.tidegate")] {
            let refused = cluster.sign(bearer, days(30));
            assert!(matches!(refused, Err(SignError::Refused(_))), "{bearer:?}");
        }
    }

    /// A signer's key can sign anything; verifiers refuse it.
    #[test]
    fn what_a_stolen_signer_signs_beyond_its_names_is_refused() {
        let cluster = Cluster::new(Scope { region: Some("eu"), role: Some(Role::Edge) });
        let forged = |params: rcgen::CertificateParams| {
            let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
            let cert = params.signed_by(&key, &cluster.signer.issuer).expect("signed");
            let mut chain = vec![cert.der().clone()];
            chain.extend(cluster.signer.chain.iter().cloned());
            chain
        };
        let named = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let mut params = rcgen::CertificateParams::new(names).expect("names");
            params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
            params
        };
        let edge =
            ["e1.node.tidegate", "mesh.tidegate", "eu.region.tidegate", "edge.role.tidegate"];
        assert_eq!(cluster.verify(&forged(named(&edge)), NOW), Ok(()));
        for name in ["core.role.tidegate", "us.region.tidegate", "e1", "example.com", "127.0.0.1"] {
            let chain = forged(named(&[&edge[..], &[name]].concat()));
            assert!(cluster.verify(&chain, NOW).is_err(), "{name}");
        }
        let mut authority = named(&edge);
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let below = {
            let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
            let cert = authority.signed_by(&key, &cluster.signer.issuer).expect("signed");
            let issuer = Issuer::new(authority, key);
            let leaf = named(&edge).signed_by(&KeyPair::generate().expect("a key"), &issuer);
            let mut chain = vec![leaf.expect("signed").der().clone(), cert.der().clone()];
            chain.extend(cluster.signer.chain.iter().cloned());
            chain
        };
        assert!(cluster.verify(&below, NOW).is_err(), "an authority below a signer");
    }

    #[test]
    fn a_request_of_a_key_that_the_sender_does_not_have_is_refused() {
        let cluster = Cluster::new(Scope::default());
        let sign = |request: &[u8]| {
            cluster.signer.sign(request, Bearer::core("n4", "eu"), NOW, days(30), NOW)
        };
        let request = NewKey::generate().and_then(|key| key.request()).expect("a request");
        // What is signed: it begins after the header of the whole, with a short header of its own.
        let info = request.windows(2).position(|bytes| bytes == [0x02, 0x01]).expect("a version");
        let signed = info..info + usize::from(request[info - 1]);
        for at in signed {
            let mut changed = request.clone();
            changed[at] ^= 1;
            assert!(matches!(sign(&changed), Err(SignError::Request(_))), "byte {at}");
        }
        for length in 0..request.len() {
            let cut = sign(&request[..length]);
            assert!(matches!(cut, Err(SignError::Request(_))), "{length} bytes");
        }
        let other = KeyPair::generate().expect("a key of another kind");
        let other = rcgen::CertificateParams::default().serialize_request(&other).expect("one");
        assert!(matches!(sign(other.der()), Err(SignError::Request(_))));
        assert!(matches!(sign(&[0; REQUEST_BYTES_MAX + 1]), Err(SignError::Request(_))));
    }
}

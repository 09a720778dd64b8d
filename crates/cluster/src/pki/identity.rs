//! What a node authenticates with: refused if peers would refuse it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use serde::Deserialize;
use tidegate_limiter::units::Timestamp;

use super::Error;
use super::bearer::{Bearer, Role, Validity, node_name};
use super::files::{read_key, read_secret_text, read_text};
use super::verify::{Subject, anchors, certificates, ends_at, issue_command, names, verify_node};

/// `[tls]`: the node's certificate for the mesh. All four are required if `cluster.listen` is set,
/// none otherwise. `tidegate ca init` and `tidegate ca issue` create them. Paths are relative to
/// the configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// The cluster's certificate authority (PEM), or several while it is replaced. Every
    /// certificate that one of them signed may join: give the cluster an authority of its own, not
    /// the company's.
    pub ca: Option<PathBuf>,
    /// This node's certificate chain (PEM), its own certificate first. Names: the node id,
    /// `mesh.tidegate`, `REGION.region.tidegate` and `core.role.tidegate`, or for an edge
    /// `edge.role.tidegate`.
    pub cert: Option<PathBuf>,
    /// This node's private key (PEM). A file that others can read is refused.
    pub key: Option<PathBuf>,
    /// The secret under which keys are hashed: 32 hexadecimal digits, the same on all nodes. Peers
    /// with a secret of a further line are accepted as well, for the time of a replacement. A file
    /// that others can read is refused, because the secret allows to choose keys of one owner.
    pub secret: Option<PathBuf>,
}

/// A node's certificate, key and secret, and the authority it trusts. `Debug` prints no secret.
#[derive(Clone)]
pub struct Identity {
    /// The node id, which the certificate names.
    pub node: String,
    /// Its region, which the certificate names as well.
    pub region: String,
    /// Its role, which the certificate names as well.
    pub role: Role,
    /// The authorities that peers' certificates are verified against.
    pub roots: Arc<RootCertStore>,
    /// The certificates of these authorities.
    pub authorities: Vec<CertificateDer<'static>>,
    /// The node's certificate, then the intermediate ones.
    pub chain: Vec<CertificateDer<'static>>,
    /// The certificate's private key.
    pub key: Arc<PrivateKeyDer<'static>>,
    /// The key of all key hashes; see [`tidegate_limiter::store::key::KeyHasher`].
    pub secret: [u8; 16],
    /// Secrets of peers that are accepted besides.
    pub other_secrets: Vec<[u8; 16]>,
    /// The dates of the certificate: peers refuse it outside of them.
    pub validity: Validity,
}

/// The most secrets in the file of `tls.secret`: one in use, and those of a replacement.
pub const SECRETS_MAX: usize = 4;

/// Reads the four files of `[tls]` and verifies them as a peer does at `now`.
///
/// # Errors
///
/// The first thing a peer would refuse, or the first file that cannot be used.
pub fn load(tls: &Tls, bearer: Bearer<'_>, now: Timestamp) -> Result<Identity, Error> {
    let Bearer { node, region, role } = bearer;
    let ca = required(tls.ca.as_deref(), "ca")?;
    let cert = required(tls.cert.as_deref(), "cert")?;
    let key = required(tls.key.as_deref(), "key")?;
    let secret_path = required(tls.secret.as_deref(), "secret")?;

    let init = || match secret_path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        Some(dir) => format!("tidegate ca init --dir {}", dir.display()),
        None => "tidegate ca init --dir .".to_owned(),
    };
    let issue = || issue_command(ca, bearer, false);
    let reissue = || issue_command(ca, bearer, true);

    let ca_certs = certificates(&read_text(ca, init)?);
    let (ca_certs, anchors) = ca_certs
        .and_then(|certs| anchors(&certs).map(|anchors| (certs, anchors)))
        .ok_or_else(|| malformed(ca, "certificate", &init()))?;
    let chain = certificates(&read_text(cert, issue)?)
        .ok_or_else(|| malformed(cert, "certificate", &reissue()))?;
    let private_key = PrivateKeyDer::from_pem_slice(read_key(key, &chain, issue)?.as_bytes())
        .map_err(|_| malformed(key, "private key", &reissue()))?;
    let (secret, other_secrets) = secrets(&read_secret_text(secret_path, init)?)
        .ok_or_else(|| malformed(secret_path, "32 hexadecimal digits", &init()))?;

    let (path, authority) = (cert, ca);
    let subject = Subject { bearer, path, authority, anchors: &anchors, chain: &chain };
    let validity = subject.verify(now)?;
    let provider = rustls::crypto::ring::default_provider();
    if CertifiedKey::from_der(chain.clone(), private_key.clone_key(), &provider).is_err() {
        return Err(Error::key_mismatch(key, cert, &reissue()));
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(ca_certs.iter().cloned());
    Ok(Identity {
        node: node.to_owned(),
        region: region.to_owned(),
        role,
        roots: Arc::new(roots),
        authorities: ca_certs,
        chain,
        key: Arc::new(private_key),
        secret,
        other_secrets,
        validity,
    })
}

impl Identity {
    /// The node that the certificate is for.
    pub fn bearer(&self) -> Bearer<'_> {
        Bearer { node: &self.node, region: &self.region, role: self.role }
    }

    /// Whether a signer of a node signed the certificate, and not the authority itself, or one in
    /// between that is none of tidegate's.
    pub fn is_of_signer(&self) -> bool {
        let first = self.chain.first().filter(|_| self.chain.len() > 1);
        first.is_some_and(|first| names(first, &node_name(&self.node)))
    }

    /// The authority that vouches for this certificate at `now`.
    pub fn authority(&self, now: Timestamp) -> Option<&CertificateDer<'static>> {
        let (first, others) = self.chain.split_first()?;
        let mut authorities = self.authorities.iter();
        authorities.find(|it| verify_node(first, others, it, &self.node, now).is_ok())
    }

    /// Whether peers would accept this chain (PEM) as the next certificate of this node, for longer
    /// than the present one.
    ///
    /// # Errors
    ///
    /// Why they would not.
    pub fn accept_renewed(&self, cert_pem: &str, now: Timestamp) -> Result<(), Error> {
        let renewed = Path::new("the renewed certificate");
        let chain =
            certificates(cert_pem).ok_or_else(|| Error::of(renewed, "contains no certificate"))?;
        let anchors = anchors(&self.authorities)
            .ok_or_else(|| Error::of(renewed, "no authority in tls.ca to check it by"))?;
        let (bearer, path, authority) = (self.bearer(), renewed, Path::new("tls.ca"));
        let subject = Subject { bearer, path, authority, anchors: &anchors, chain: &chain };
        subject.verify(now)?;
        // Of a signer that is about to end itself; another one may sign for longer.
        let ends = chain.first().and_then(ends_at);
        if ends.is_none_or(|ends| ends <= self.validity.not_after) {
            return Err(Error::of(renewed, "ends no later than the present one"));
        }
        Ok(())
    }

    /// Whether `other` has the same certificate and key.
    pub fn has_certificate_of(&self, other: &Self) -> bool {
        self.chain == other.chain && self.key == other.key
    }

    /// Whether `other` trusts and accepts the same peers.
    pub fn trusts_as(&self, other: &Self) -> bool {
        let secrets = |one: &Self| (one.secret, one.other_secrets.clone());
        self.roots.roots == other.roots.roots && secrets(self) == secrets(other)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("node", &self.node)
            .field("region", &self.region)
            .field("role", &self.role)
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}

fn required<'a>(path: Option<&'a Path>, key: &str) -> Result<&'a Path, Error> {
    let text = "not set, and the mesh needs it; set it in cluster.toml";
    path.ok_or_else(|| Error(format!("tls.{key}: {text}")))
}

/// The secrets of a file, one a line, the one in use first.
fn secrets(text: &str) -> Option<([u8; 16], Vec<[u8; 16]>)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let decode = |line| {
        let mut secret = [0; 16];
        hex::decode_to_slice(line, &mut secret).ok().map(|()| secret)
    };
    let mut secrets: Vec<[u8; 16]> = lines.map(decode).collect::<Option<_>>()?;
    if secrets.is_empty() || secrets.len() > SECRETS_MAX {
        return None;
    }
    Some((secrets.remove(0), secrets))
}

fn malformed(path: &Path, what: &str, command: &str) -> Error {
    Error::of(path, format_args!("contains no {what}; create it again with `{command}`"))
}

//! What a node proves itself with, read once at its start and refused if peers would refuse it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use tidegate_limiter::units::Timestamp;

use super::Error;
use super::Tls;
use super::verify::{Subject, anchors, certificates, issue_command};

/// Largest file of certificates, keys or secrets that is read; a chain is some thousand bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// A node's certificate, key and secret, and the authority it trusts. Its `Debug` tells no secret.
pub struct Identity {
    /// The node's id, which the certificate carries.
    pub node: String,
    /// Whose certificates are accepted from peers.
    pub roots: Arc<RootCertStore>,
    /// The node's certificate, then what stands between it and the authority.
    pub chain: Vec<CertificateDer<'static>>,
    /// The certificate's private key.
    pub key: PrivateKeyDer<'static>,
    /// What key hashes are made under; see [`tidegate_limiter::store::key::KeyHasher`].
    pub secret: [u8; 16],
    /// When peers begin to refuse the certificate.
    pub expires: Timestamp,
}

/// Reads the four files of `[tls]` and checks them as peers will at `now`.
pub fn load(tls: &Tls, node: &str, now: Timestamp) -> Result<Identity, Error> {
    let ca = required(tls.ca.as_ref(), "ca")?;
    let cert = required(tls.cert.as_ref(), "cert")?;
    let key = required(tls.key.as_ref(), "key")?;
    let secret = required(tls.secret.as_ref(), "secret")?;

    let init = || match secret.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        Some(dir) => format!("tidegate ca init --dir {}", dir.display()),
        None => "tidegate ca init --dir .".to_owned(),
    };
    let issue = || issue_command(ca, node, false);
    let reissue = || issue_command(ca, node, true);

    let ca_certs = certificates(&read_text(ca, init)?);
    let (ca_certs, anchors) = ca_certs
        .and_then(|certs| anchors(&certs).map(|anchors| (certs, anchors)))
        .ok_or_else(|| malformed(ca, "certificate", init()))?;
    let chain = certificates(&read_text(cert, issue)?)
        .ok_or_else(|| malformed(cert, "certificate", reissue()))?;
    let private_key = PrivateKeyDer::from_pem_slice(read_secret_text(key, issue)?.as_bytes())
        .map_err(|_| malformed(key, "private key", reissue()))?;
    let secret = unhex(read_secret_text(secret, init)?.trim())
        .ok_or_else(|| malformed(secret, "32 hexadecimal digits", init()))?;

    let subject = Subject { node, path: cert, authority: ca, anchors: &anchors, chain: &chain };
    let expires = subject.verify(now)?;
    let provider = rustls::crypto::ring::default_provider();
    if CertifiedKey::from_der(chain.clone(), private_key.clone_key(), &provider).is_err() {
        return Err(Error::KeyMismatch {
            key: key.to_owned(),
            cert: cert.to_owned(),
            command: reissue(),
        });
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(ca_certs);
    Ok(Identity {
        node: node.to_owned(),
        roots: Arc::new(roots),
        chain,
        key: private_key,
        secret,
        expires,
    })
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self {
            node: self.node.clone(),
            roots: Arc::clone(&self.roots),
            chain: self.chain.clone(),
            key: self.key.clone_key(),
            secret: self.secret,
            expires: self.expires,
        }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("node", &self.node)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// Reads a text file of ours, bounded.
pub(super) fn read_text(path: &Path, make: impl Fn() -> String) -> Result<String, Error> {
    read(&open(path, make)?, path)
}

/// Reads a text file that nobody but its owner and group may read. The question is put to the open
/// file, so that what was checked is what is read.
pub(super) fn read_secret_text(path: &Path, make: impl Fn() -> String) -> Result<String, Error> {
    let file = open(path, make)?;
    let metadata = file.metadata().map_err(|source| unreadable(path, source))?;
    if metadata.permissions().mode() & 0o007 != 0 {
        return Err(Error::Exposed { path: path.to_owned() });
    }
    read(&file, path)
}

fn open(path: &Path, make: impl Fn() -> String) -> Result<File, Error> {
    File::open(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Error::Missing { path: path.to_owned(), command: make() },
        _ => unreadable(path, source),
    })
}

fn read(file: &File, path: &Path) -> Result<String, Error> {
    let mut text = String::new();
    file.take(FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|source| unreadable(path, source))?;
    Ok(text)
}

fn required<'a>(path: Option<&'a PathBuf>, key: &'static str) -> Result<&'a Path, Error> {
    path.map(PathBuf::as_path).ok_or(Error::NotSet { key })
}

fn unreadable(path: &Path, source: io::Error) -> Error {
    Error::Read { path: path.to_owned(), source }
}

fn malformed(path: &Path, what: &'static str, command: String) -> Error {
    Error::Malformed { path: path.to_owned(), what, command }
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).ok()?;
        // `from_str_radix` takes a sign, which is no digit.
        *byte = u8::from_str_radix(pair, 16).ok().filter(|_| !pair.starts_with('+'))?;
    }
    Some(bytes)
}

//! TLS of a listener: its certificate, the verification of clients, and reloading of both when
//! their files change.
//!
//! Files are read every [`RELOAD_INTERVAL`], so renewing a certificate takes no further step. Open
//! connections keep the certificate that they began with. **Invariant:** files that are no valid
//! configuration (half a write, the key of another certificate) change nothing but the log.
//!
//! TLS 1.2 is accepted too, because Envoy as a client offers nothing later by default.

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use tidegate_cluster::pki;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::stats::ListenerStats;
use crate::config::{TlsFiles, UserError};
use crate::reload::files::{RELOAD_INTERVAL, read_again};

/// Largest file. The authorities of a whole operating system take some 200 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The TLS configuration of a listener; cheap to clone.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ArcSwap<ServerConfig>>,
    /// The name that a client's certificate must carry.
    client_san: Option<ServerName<'static>>,
}

/// Applies changes of the files to a [`Tls`].
#[derive(Debug)]
pub struct Reloader {
    files: Files,
    tls: Tls,
    /// The last result of reading the files.
    last: Result<Contents, String>,
}

#[derive(Clone, Debug)]
struct Files {
    /// The section that names them.
    section: &'static str,
    /// Names of protocols (ALPN), the preferred first.
    protocols: &'static [&'static [u8]],
    /// The chain, the listener's own certificate first.
    cert: PathBuf,
    key: PathBuf,
    /// Authorities of client certificates; without it, clients need none.
    client_ca: Option<PathBuf>,
}

/// The TLS configuration could not be loaded.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct Error {
    section: &'static str,
    /// The most likely cause.
    path: PathBuf,
    problem: String,
    fix: &'static str,
}

const GIVE_PEM: &str = "give a PEM file that holds one";

impl Tls {
    /// Reads the files of a listener; `None` when it has none.
    ///
    /// # Errors
    ///
    /// A file cannot be read, is too large, or is no valid configuration.
    pub fn of(files: TlsFiles<'_>) -> Result<Option<(Self, Reloader)>, Error> {
        let TlsFiles { section, protocols, cert, key, client_ca, client_san, .. } = files;
        let (Some(cert), Some(key)) = (cert, key) else { return Ok(None) };
        let files = Files {
            section,
            protocols,
            cert: cert.to_owned(),
            key: key.to_owned(),
            client_ca: client_ca.map(Path::to_owned),
        };
        // Validated with the configuration.
        let client_san = client_san.and_then(|san| ServerName::try_from(san.to_owned()).ok());
        Self::load(files, client_san).map(Some)
    }

    /// With a configuration that follows changes by itself.
    pub fn of_config(config: ServerConfig) -> Self {
        Self { config: Arc::new(ArcSwap::from_pointee(config)), client_san: None }
    }

    fn load(
        files: Files,
        client_san: Option<ServerName<'static>>,
    ) -> Result<(Self, Reloader), Error> {
        let of_section = |error: Error| error.of_section(files.section);
        let contents = files.read().map_err(of_section)?;
        let config = files.config(&contents).map_err(of_section)?;
        let tls = Self { config: Arc::new(ArcSwap::from_pointee(config)), client_san };
        Ok((tls.clone(), Reloader { files, tls, last: Ok(contents) }))
    }

    /// The handshake of a connection; `None`, and counted, if it fails or takes longer than
    /// `timeout`.
    pub async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        peer: SocketAddr,
        timeout: Duration,
        stats: &ListenerStats,
    ) -> Option<TlsStream<S>> {
        match tokio::time::timeout(timeout, self.accept(stream)).await {
            Err(_) => stats.slow.add(1),
            Ok(Err(error)) => {
                stats.handshake_failed.add(1);
                tracing::debug!(%peer, %error, "TLS handshake with a client failed");
            }
            Ok(Ok(stream)) => return Some(stream),
        }
        None
    }

    async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        let acceptor = TlsAcceptor::from(self.config.load_full());
        let stream = acceptor.accept(stream).await?;
        self.check_client(&stream)?;
        Ok(stream)
    }

    fn check_client<S>(&self, stream: &TlsStream<S>) -> io::Result<()> {
        let Some(san) = &self.client_san else { return Ok(()) };
        let presented = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let presented =
            presented.ok_or_else(|| io::Error::other("the client presented no certificate"))?;
        webpki::EndEntityCert::try_from(presented)
            .and_then(|cert| cert.verify_is_valid_for_subject_name(san))
            .map_err(|error| io::Error::other(format!("the client's certificate: {error}")))
    }
}

impl Reloader {
    /// Reads the files again and again until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(RELOAD_INTERVAL)).await.is_some() {
            let files = self.files.clone();
            let reading = read_again(&self.files.cert, move || files.read());
            let Some(read) = stop.run_until_cancelled(reading).await else { return };
            self.apply(read.and_then(|read| read.map_err(|error| error.to_string())));
        }
    }

    /// Applies what was read, unless it is unchanged.
    fn apply(&mut self, read: Result<Contents, String>) {
        if read == self.last {
            return;
        }
        let outcome = read
            .clone()
            .and_then(|contents| self.files.config(&contents).map_err(|error| error.to_string()));
        self.last = read;
        match outcome {
            Ok(config) => {
                self.tls.config.store(Arc::new(config));
                let cert = self.files.cert.display();
                let listener = self.files.section;
                tracing::info!(listener, %cert, "reloaded the certificate of a listener");
            }
            Err(error) => {
                tracing::error!(
                    listener = self.files.section,
                    %error,
                    "failed to reload the certificate of a listener; the previous one is kept"
                );
            }
        }
    }
}

/// The bytes of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Files {
    fn read(&self) -> Result<Contents, Error> {
        Ok(Contents {
            cert: read(&self.cert)?,
            key: read_key(&self.key)?,
            client_ca: self.client_ca.as_deref().map(read).transpose()?,
        })
    }

    fn config(&self, contents: &Contents) -> Result<ServerConfig, Error> {
        let chain = certificates(&self.cert, &contents.cert)?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key)
            .map_err(|_| Error::new(&self.key, &"holds no private key in PEM", GIVE_PEM))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        // Certificate and key do not work, alone or together.
        let unusable = |source: rustls::Error| {
            Error::new(&self.cert, &source, "give a certificate and the key it was made with")
        };
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let builder = match (&self.client_ca, &contents.client_ca) {
            (Some(path), Some(bytes)) => {
                let mut roots = RootCertStore::empty();
                for cert in certificates(path, bytes)? {
                    roots.add(cert).map_err(|error| Error::new(path, &error, GIVE_PEM))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                let verifier =
                    verifier.build().map_err(|error| Error::new(path, &error, GIVE_PEM))?;
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
        config.alpn_protocols = self.protocols.iter().map(|name| name.to_vec()).collect();
        // A resumed session would outlive the certificates that it began with.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Ok(config)
    }
}

/// The authorities in a file.
///
/// # Errors
///
/// The file cannot be read, is too large, or holds no certificate.
pub fn roots(path: &Path) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for cert in certificates(path, &read(path)?)? {
        roots.add(cert).map_err(|error| Error::new(path, &error, GIVE_PEM))?;
    }
    Ok(roots)
}

/// The authorities of the system, if it has any.
pub fn system_roots() -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Some(roots).filter(|roots| !roots.is_empty())
}

impl Error {
    /// The same of another section of the configuration.
    #[must_use]
    pub fn of_section(self, section: &'static str) -> Self {
        Self { section, ..self }
    }

    fn new(path: &Path, problem: &impl ToString, fix: &'static str) -> Self {
        Self { section: "", path: path.to_owned(), problem: problem.to_string(), fix }
    }
}

impl From<Error> for UserError {
    fn from(error: Error) -> Self {
        Self::new(format!("[{}] TLS: {error}", error.section), error.fix)
    }
}

fn certificates(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| Error::new(path, &"holds no certificate in PEM", GIVE_PEM))
}

/// A private key, as that of the mesh: the user and the group may read it.
fn read_key(path: &Path) -> Result<Vec<u8>, Error> {
    let file = open(path)?;
    // The mode of the open file, so that the file checked is the file read.
    let metadata = file.metadata().map_err(|error| unreadable(path, &error))?;
    if metadata.permissions().mode() & 0o007 != 0 {
        let fix = "run `chmod o= FILE`; in Kubernetes set defaultMode of the volume to 0440";
        return Err(Error::new(path, &"others can read it", fix));
    }
    read_open(path, file)
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    read_open(path, open(path)?)
}

fn open(path: &Path) -> Result<File, Error> {
    pki::open_regular(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::new(path, error, "check the path, and who may read it")
}

fn read_open(path: &Path, file: File) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| unreadable(path, &error))?;
    // A truncated bundle might miss an authority.
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let fix = "give the certificates that are needed here alone";
        return Err(Error::new(path, &"larger than 1 MiB", fix));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn a_private_key_that_others_can_read_is_refused() {
        let key = tempfile::NamedTempFile::new().unwrap();
        fs::write(key.path(), "a key").unwrap();
        let read = |mode| {
            fs::set_permissions(key.path(), Permissions::from_mode(mode)).unwrap();
            read_key(key.path()).map_err(|error| error.problem)
        };
        for mode in [0o644, 0o604, 0o602] {
            assert_eq!(read(mode), Err("others can read it".to_owned()), "{mode:o}");
        }
        // A secret of Kubernetes with an fsGroup.
        for mode in [0o640, 0o440, 0o600, 0o400] {
            assert_eq!(read(mode), Ok(b"a key".to_vec()), "{mode:o}");
        }
    }
}

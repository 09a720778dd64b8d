//! Joins with a token: what `tidegate join` does on the new machine.
//!
//! The files are written so that an interrupted join can be repeated. With a token of an operator
//! the private key is written first, which a second attempt with the same token uses again, because
//! the token is good for that key alone; the certificate last. Another token gets another key:
//! that of a node that was revoked may be in other hands. A pod, whose token works again, keeps a
//! new key in memory until it has the certificate. What is there is in use until then.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use ring::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tidegate_cluster::pki::{self, Issued, IssuedFiles, JoinToken, NewKey, Overwrite, PIN_BYTES};
use tidegate_limiter::units::Timestamp;

use super::{Credential, Enrolled, JOIN_PATH, JoinRequest};
use crate::admin::innermost;

/// The longest that the exchange may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A response has some three thousand bytes.
const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// Where a join writes to.
#[derive(Clone, Debug)]
pub struct Files {
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
    pub secret: PathBuf,
}

/// Why a node did not join.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Files(#[from] pki::Error),
    /// The signing node refused it, in its words.
    #[error("{0}")]
    Refused(String),
    /// No node answered that the token was made by.
    #[error("{0}")]
    NoAnswer(String),
}

/// What a new node shows, and to whom.
#[derive(Clone, Debug)]
pub struct Invitation {
    pub credential: Credential,
    /// One of these authorities is that of the cluster.
    pub pins: Vec<[u8; PIN_BYTES]>,
    /// The nodes that may see the credential.
    pub signers: Vec<String>,
}

impl From<JoinToken> for Invitation {
    fn from(token: JoinToken) -> Self {
        Self {
            credential: Credential::Token { token: token.to_string() },
            pins: vec![token.pin],
            signers: vec![token.signer],
        }
    }
}

impl Files {
    /// In `dir`, by the names that `[tls]` is to have.
    pub fn of(dir: &Path) -> Self {
        let [ca, cert, key, secret] =
            [pki::AUTHORITY_CERT, "node.pem", "node.key", pki::CLUSTER_SECRET]
                .map(|name| dir.join(name));
        Self { ca, cert, key, secret }
    }

    /// Writes what a node of the cluster gave, the certificate last.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    pub fn write(&self, enrolled: &Enrolled, key: &NewKey) -> Result<(), pki::Error> {
        let Enrolled { authorities, secret, certificate, .. } = enrolled;
        pki::write_public(&self.ca, authorities, Overwrite::Renew)?;
        pki::write_secret(&self.secret, secret, Overwrite::Renew)?;
        let issued = Issued { cert_pem: certificate.clone(), key_pem: key.to_pem() };
        self.pair().write(&issued, Overwrite::Renew)?;
        // Without the heading of a join under way.
        pki::write_secret(&self.key, &issued.key_pem, Overwrite::Renew)
    }

    /// The certificate and its key.
    pub fn pair(&self) -> IssuedFiles {
        IssuedFiles { cert: self.cert.clone(), key: self.key.clone() }
    }
}

/// The key of a new node: with a token, that of an interrupted join with it.
///
/// # Errors
///
/// It cannot be read, or written before it is used.
pub fn new_key(invitation: &Invitation, files: &Files) -> Result<NewKey, pki::Error> {
    match invitation.credential {
        Credential::Token { ref token } => kept_key(&files.pair().next_key(), token),
        Credential::ServiceAccount { .. } => NewKey::generate(),
    }
}

/// Shows the credential to the node at `peer`, `host:port`, with the request of this key.
///
/// # Errors
///
/// [`Error`]. It can be repeated with the same key while the credential is good.
pub async fn enrol(invitation: &Invitation, peer: &str, key: &NewKey) -> Result<Enrolled, Error> {
    let credential = invitation.credential.clone();
    let request = JoinRequest { credential, request: key.request_pem()? };
    let enrolled = tokio::time::timeout(TIMEOUT, ask(invitation, peer, &request)).await;
    enrolled.unwrap_or_else(|_| Err(Error::NoAnswer(format!("{peer}: no answer in {TIMEOUT:?}"))))
}

/// The key of an interrupted join with this token, or a new one, which is written before it is
/// sent. A file that is none, as after a fault of the disk, is replaced.
fn kept_key(path: &Path, token: &str) -> Result<NewKey, pki::Error> {
    let of_token = hex::encode(digest(&SHA256, token.as_bytes()));
    let heading = format!("For the token with the SHA-256 {of_token}\n");
    if path.exists() {
        let text = pki::read_secret_text(path, || "tidegate join".to_owned())?;
        let pem = text.strip_prefix(&heading);
        if let Some(Ok(key)) = pem.map(NewKey::from_pem) {
            return Ok(key);
        }
    }
    let key = NewKey::generate()?;
    pki::write_secret(path, &(heading + &key.to_pem()), Overwrite::Renew)?;
    Ok(key)
}

async fn ask(
    invitation: &Invitation,
    peer: &str,
    request: &JoinRequest,
) -> Result<Enrolled, Error> {
    let no_answer = |error: &(dyn std::error::Error + 'static)| {
        Error::NoAnswer(format!("{peer}: {}", innermost(error)))
    };
    let provider = rustls::crypto::ring::default_provider();
    let signer = KnownSigner {
        pins: invitation.pins.clone(),
        signers: invitation.signers.clone(),
        algorithms: provider.signature_verification_algorithms,
    };
    let tls = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| no_answer(&error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(signer))
        .with_no_client_auth();
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    let client: Client<_, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).build(HttpsConnector::from((http, tls)));
    let body = serde_json::to_string(request).map_err(|error| no_answer(&error))?;
    let request = Request::post(format!("https://{peer}{JOIN_PATH}"))
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| no_answer(&error))?;
    let response = client.request(request).await.map_err(|error| no_answer(&error))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| no_answer(&*error))?.to_bytes();
    if status == StatusCode::OK {
        return serde_json::from_slice(&body).map_err(|error| no_answer(&error));
    }
    let text: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
    let text = text.as_ref().and_then(|text| text.get("error")).and_then(|text| text.as_str());
    Err(Error::Refused(text.map_or_else(|| format!("{peer} answered {status}"), str::to_owned)))
}

/// Accepts the named nodes alone, by a certificate of a pinned authority.
#[derive(Debug)]
struct KnownSigner {
    pins: Vec<[u8; PIN_BYTES]>,
    signers: Vec<String>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for KnownSigner {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let refused = |text: String| rustls::Error::General(text);
        let authority = others.iter().find(|other| self.pins.contains(&pki::pin(other)));
        let authority = authority.ok_or_else(|| {
            refused("it is not of the cluster that the token is for (another authority)".to_owned())
        })?;
        let now = Timestamp::from_secs(now.as_secs());
        let verify = |signer| pki::verify_node(certificate, others, authority, signer, now);
        let mut reason = String::new();
        for signer in &self.signers {
            match verify(signer) {
                Ok(()) => return Ok(ServerCertVerified::assertion()),
                Err(error) => reason = error,
            }
        }
        let signers = self.signers.join(" or ");
        Err(refused(format!("it is not node {signers}, which is to see the token: {reason}")))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tidegate_cluster::pki::{Bearer, Scope, Validity};
    use tidegate_limiter::units::Span;

    use super::*;

    /// A port at which nothing listens.
    const CLOSED: &str = "127.0.0.1:1";

    #[tokio::test]
    async fn a_pod_that_gets_no_certificate_keeps_the_pair_that_it_has() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::of(dir.path());
        fs::write(&files.key, "the key in use").unwrap();
        fs::write(&files.cert, "its certificate").unwrap();
        let credential = Credential::ServiceAccount {
            service_account_token: "token".to_owned(),
            node: "tidegate-0".to_owned(),
        };
        let invitation =
            Invitation { credential, pins: Vec::new(), signers: vec!["signer-0".to_owned()] };
        let key = new_key(&invitation, &files).unwrap();
        let joined = enrol(&invitation, CLOSED, &key).await.map(|_| ());
        assert!(matches!(joined, Err(Error::NoAnswer(_))), "{joined:?}");
        assert_eq!(fs::read_to_string(&files.key).unwrap(), "the key in use");
        assert_eq!(fs::read_to_string(&files.cert).unwrap(), "its certificate");
    }

    #[tokio::test]
    async fn a_second_attempt_with_a_token_uses_the_key_of_the_first_and_another_token_none() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::of(dir.path());
        fs::write(&files.key, NewKey::generate().unwrap().to_pem()).unwrap();
        let before = fs::read_to_string(&files.key).unwrap();
        let mut keys = vec![before.clone()];
        for secret in [7, 7, 8] {
            let pin = [7; PIN_BYTES];
            let token = JoinToken { pin, secret: [secret; 16], signer: "n1".to_owned() };
            let invitation = Invitation::from(token);
            let key = new_key(&invitation, &files).unwrap();
            assert!(enrol(&invitation, CLOSED, &key).await.is_err());
            keys.push(key.to_pem());
        }
        assert_eq!(keys[1], keys[2]);
        assert!(![&keys[0], &keys[1]].contains(&&keys[3]));
        assert_ne!(keys[0], keys[1]);
        assert_eq!(fs::read_to_string(&files.key).unwrap(), before);
        assert!(!files.cert.exists());
    }

    #[test]
    fn a_join_that_ended_before_its_certificate_was_there_goes_on_with_its_key() {
        let (at_signer, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let now = Timestamp::from_secs(1_700_000_000);
        let validity = Validity { not_before: now, not_after: now.plus(Span::from_secs(3_600)) };
        pki::init(at_signer.path(), validity, [7; 16]).unwrap();
        let signer =
            pki::issue_signer(at_signer.path(), Scope::default(), validity, Overwrite::Never);
        let (signer, ca) = (signer.unwrap(), at_signer.path().join(pki::AUTHORITY_CERT));
        let authorities = pki::read_authorities(&ca).unwrap();
        let signer = pki::load_signer(&signer.cert, &signer.key, &authorities, now).unwrap();

        let files = Files::of(dir.path());
        let pin = pki::pin(&authorities[0]);
        let token = JoinToken { pin, secret: [7; 16], signer: "n1".to_owned() };
        let invitation = Invitation::from(token);
        let key = new_key(&invitation, &files).unwrap();
        let bearer = Bearer::core("n4", "eu");
        let chain = signer.sign(&key.request().unwrap(), bearer, now, validity, now).unwrap();
        let enrolled = Enrolled {
            node: "n4".to_owned(),
            region: "eu".to_owned(),
            role: "core".to_owned(),
            certificate: pki::to_pem(&chain),
            authorities: pki::to_pem(&authorities),
            secret: pki::secret_line(&[7; 16]),
        };
        // It cannot be replaced by a file.
        fs::create_dir(&files.cert).unwrap();
        assert!(files.write(&enrolled, &key).is_err());
        assert_eq!(new_key(&invitation, &files).unwrap().to_pem(), key.to_pem());
        fs::remove_dir(&files.cert).unwrap();
        files.write(&enrolled, &key).unwrap();
        assert!(files.pair().belong_together());
        assert_eq!(fs::read_to_string(&files.key).unwrap(), key.to_pem());
        assert!(!files.pair().next_key().exists());
    }
}

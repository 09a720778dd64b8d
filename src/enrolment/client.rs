//! Joins with a token: what `tidegate join` does on the new machine.
//!
//! The files are written so that an interrupted join can be repeated: the private key first, which
//! a second attempt uses again, because a token of an operator is good for that key alone; the
//! certificate last.

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
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tidegate_cluster::pki::{self, JoinToken, NewKey, Overwrite, PIN_BYTES};
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
    /// Whether the certificate takes the place of one that was issued before, with a new key.
    pub overwrite: Overwrite,
}

impl From<JoinToken> for Invitation {
    fn from(token: JoinToken) -> Self {
        Self {
            credential: Credential::Token { token: token.to_string() },
            pins: vec![token.pin],
            signers: vec![token.signer],
            overwrite: Overwrite::Never,
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
}

/// Shows the credential to the node at `peer`, `host:port`, and writes what it gives.
///
/// # Errors
///
/// [`Error`]. It can be repeated with the same folder while the credential is good.
pub async fn join(invitation: &Invitation, peer: &str, files: &Files) -> Result<Enrolled, Error> {
    let key = key(&files.key, invitation.overwrite)?;
    let credential = invitation.credential.clone();
    let request = JoinRequest { credential, request: key.request_pem()? };
    let enrolled = tokio::time::timeout(TIMEOUT, ask(invitation, peer, &request)).await;
    let enrolled = enrolled
        .unwrap_or_else(|_| Err(Error::NoAnswer(format!("{peer}: no answer in {TIMEOUT:?}"))))?;
    pki::write_public(&files.ca, &enrolled.authorities, Overwrite::Renew)?;
    pki::write_secret(&files.secret, &enrolled.secret, Overwrite::Renew)?;
    pki::write_public(&files.cert, &enrolled.certificate, invitation.overwrite)?;
    Ok(enrolled)
}

/// The key of an interrupted join, or a new one, which is written before anybody hears of it.
fn key(path: &Path, overwrite: Overwrite) -> Result<NewKey, pki::Error> {
    if overwrite == Overwrite::Never && path.exists() {
        let pem = pki::read_secret_text(path, || "tidegate join".to_owned())?;
        return NewKey::from_pem(&pem);
    }
    let key = NewKey::generate()?;
    pki::write_secret(path, &key.to_pem(), overwrite)?;
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

//! Signs certificates: for a new node that shows a token, and for a peer that renews its own.
//!
//! The signer's files are read for each certificate, and the keys that an issuer of tokens
//! publishes for each token, so what is replaced is in use at once. Certificates have the time of
//! most machines, and a token is good for as long by the clock of this one.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use tidegate_cluster::agreed_time_by;
use tidegate_cluster::environment::{Clock, Entropy};
use tidegate_cluster::mesh::wire::Reply;
use tidegate_cluster::mesh::{Mesh, Peer};
use tidegate_cluster::pki::{
    self, BACKDATED, Bearer, Identity, JoinToken, Revocations, SignError, Signer,
    TOKEN_SECRET_BYTES, Validity,
};
use tidegate_cluster::revocations::accepts_orders;
use tidegate_limiter::units::{Span, Timestamp};
use tidegate_ownership::identity::NodeId;

use super::service_account::ServiceAccount;
use super::signed_token::Keys;
use super::tokens::{Digest, Refused as TokenRefused, TOKENS_MAX, Term, Tokens};
use super::{Credential, Enrolled, JoinRequest};
use crate::admin::key::AUDIT;
use crate::config::{Join, UserError};

/// The largest set of published keys that is read, in bytes; one key has some 500.
const KEYS_BYTES_MAX: u64 = 256 * 1024;

/// What signs at a node with `join.signer_cert`.
#[derive(Debug)]
pub struct Issuer {
    cert: PathBuf,
    key: PathBuf,
    valid_for: Span,
    mesh: Arc<Mesh>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    tokens: Mutex<Tokens>,
    /// Until when the signer signs, as it was last read; zero if its files cannot be used.
    signer_until: Mutex<Timestamp>,
    /// Whose pods may join, and the file of the keys that verify their tokens.
    service_account: Option<(ServiceAccount, PathBuf)>,
}

/// Why no certificate is signed, or no token made.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It is the fault of the one who asks.
    #[error("{0}")]
    Asker(String),
    /// This node cannot sign.
    #[error("{0}")]
    Here(String),
}

impl Issuer {
    /// Of a node whose configuration names a signer; `None` otherwise.
    ///
    /// # Errors
    ///
    /// The signer cannot be used, its authority is not that of this node's own certificate, or the
    /// keys for tokens of a service account cannot be read.
    pub fn of(
        config: &Join,
        mesh: &Arc<Mesh>,
        clock: &Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Option<Self>, UserError> {
        let (Some(cert), Some(key)) = (&config.signer_cert, &config.signer_key) else {
            return Ok(None);
        };
        let issuer = Self {
            cert: cert.clone(),
            key: key.clone(),
            valid_for: config.valid_for,
            mesh: mesh.clone(),
            clock: clock.clone(),
            entropy,
            tokens: Mutex::default(),
            signer_until: Mutex::new(Timestamp::from_secs(0)),
            service_account: ServiceAccount::of(config),
        };
        if let Some((_, keys)) = &issuer.service_account {
            read_keys(keys).map_err(|error| {
                let problem = format!("join.service_account_keys {}: {error}", keys.display());
                UserError::new(problem, "write what `kubectl get --raw /openid/v1/jwks` prints")
            })?;
        }
        issuer.look().map_err(|error| {
            let fix = "or remove join.signer_cert and join.signer_key from this node";
            UserError::new(format!("join.signer_cert: {error}"), fix)
        })?;
        Ok(Some(issuer))
    }

    /// Makes a token for one node, good for `ttl`.
    ///
    /// # Errors
    ///
    /// The signer may not sign for that node, there are too many tokens, or the system has no
    /// randomness.
    pub fn make_token(&self, bearer: Bearer<'_>, ttl: Span) -> Result<JoinToken, Refused> {
        // A token that cannot be used is found out here, and not on the new machine.
        let trial = pki::NewKey::generate().and_then(|key| key.request());
        let trial = trial.map_err(|error| Refused::Here(error.to_string()))?;
        let (made, revoked) = (self.time(), self.revoked(bearer.node));
        self.sign(&trial, bearer, self.admission(made, revoked))?;
        let mut secret = [0; TOKEN_SECRET_BYTES];
        self.entropy.fill(&mut secret).map_err(|error| Refused::Here(error.to_string()))?;
        let now = self.clock.system();
        let term = Term { made, until: now.plus(ttl), revoked };
        if !self.tokens.lock().add(sha256(&secret), bearer, term, now) {
            return Err(Refused::Here(format!(
                "{TOKENS_MAX} tokens wait to be used; wait until some have expired"
            )));
        }
        let identity = self.mesh.identity();
        let authority = identity.authority(made).ok_or_else(|| {
            Refused::Here("no authority in tls.ca vouches for this node now".to_owned())
        })?;
        Ok(JoinToken { pin: pki::pin(authority), secret, signer: identity.node.clone() })
    }

    /// Signs for a new node.
    ///
    /// # Errors
    ///
    /// The token is none of this node's, was used or has expired, or is not that of a pod that may
    /// join as this node; the request is none; or the signer cannot sign.
    pub fn enrol(&self, join: &JoinRequest) -> Result<Enrolled, Refused> {
        let request = pki::request_from_pem(&join.request).map_err(|error| asker(&error))?;
        match &join.credential {
            Credential::Token { token } => self.enrol_with_token(token, &request),
            Credential::ServiceAccount { service_account_token, node } => {
                self.enrol_pod(service_account_token, node, &request)
            }
        }
    }

    fn enrol_with_token(&self, token: &str, request: &[u8]) -> Result<Enrolled, Refused> {
        let token: JoinToken = token.parse().map_err(|error| asker(&error))?;
        let (secret, of_request) = (sha256(&token.secret), sha256(request));
        let mut tokens = self.tokens.lock();
        let revoked = |node: &str| self.revoked(node);
        let bearer = tokens.check(&secret, &of_request, revoked, self.clock.system());
        let (bearer, made, revoked) = bearer.map_err(|refused: TokenRefused| asker(&refused))?;
        let enrolled = self.enrolled(bearer, self.admission(made, revoked), request)?;
        tokens.used(&secret, of_request);
        Ok(enrolled)
    }

    /// Until when a node is revoked.
    fn revoked(&self, node: &str) -> Option<Timestamp> {
        NodeId::new(node).ok().and_then(|node| self.mesh.revocations.until(&node))
    }

    /// When a node was admitted that was allowed at `at` to have its first certificate, and was
    /// revoked until then at that time: no later than such a certificate begins.
    fn admission(&self, at: Timestamp, revoked: Option<Timestamp>) -> Timestamp {
        let after = revoked.map(Revocations::after).unwrap_or_default();
        validity(self.valid_for, at).not_before.max(after)
    }

    /// A pod may join as often as it starts.
    fn enrol_pod(&self, token: &str, node: &str, request: &[u8]) -> Result<Enrolled, Refused> {
        // A revocation from now on is later, and refuses it.
        let (now, revoked) = (self.time(), self.revoked(node));
        let (account, keys) = self.service_account.as_ref().ok_or_else(|| {
            Refused::Asker("no pods join here: join.service_account is not set".to_owned())
        })?;
        let keys = read_keys(keys)
            .map_err(|error| Refused::Here(format!("join.service_account_keys: {error}")))?;
        account.check(token, node, &keys, now).map_err(|error| asker(&error))?;
        let identity = self.mesh.identity();
        let admitted = self.admission(now, revoked);
        self.enrolled(Bearer::core(node, &identity.region), admitted, request)
    }

    fn enrolled(
        &self,
        bearer: Bearer<'_>,
        admitted: Timestamp,
        request: &[u8],
    ) -> Result<Enrolled, Refused> {
        let certificate = self.sign(request, bearer, admitted)?;
        let identity = self.mesh.identity();
        let secrets = std::iter::once(&identity.secret).chain(&identity.other_secrets);
        Ok(Enrolled {
            node: bearer.node.to_owned(),
            region: bearer.region.to_owned(),
            role: bearer.role.name().to_owned(),
            certificate,
            authorities: pki::to_pem(&identity.authorities),
            secret: secrets.map(pki::secret_line).collect(),
        })
    }

    /// The reply to a peer that renews its certificate: its present one says who it is. Reads the
    /// signer's files; of a node without a signer it is empty, and so from one that has just
    /// started and may not have received that the peer is revoked.
    pub fn reply_to(
        issuer: Option<&Arc<Self>>,
        from: &Peer,
        request: Vec<u8>,
    ) -> BoxFuture<'static, Reply> {
        // A peer that is not accepted yet asks again.
        let issuer = issuer.filter(|issuer| accepts_orders(from, &issuer.mesh));
        let admitted = from.admitted_at();
        let (Some(issuer), Some(admitted)) = (issuer.cloned(), admitted) else {
            return ready(Reply::Certificate(Vec::new())).boxed();
        };
        let (node, region, role) = (from.id.clone(), from.region.clone(), from.role);
        let sign = move || {
            let bearer = Bearer { node: node.as_str(), region: &region, role };
            issuer.renew(bearer, admitted, &request)
        };
        let signing = tokio::task::spawn_blocking(sign);
        async move { Reply::Certificate(signing.await.unwrap_or_default()) }.boxed()
    }

    /// Signs another certificate for this node in place of `identity`; empty if it cannot, for the
    /// reason in the log.
    pub fn renew_own(&self, identity: &Identity, request: &[u8]) -> Vec<u8> {
        let admitted = identity.chain.first().and_then(pki::admitted_at).unwrap_or_default();
        self.renew(identity.bearer(), admitted, request)
    }

    fn renew(&self, bearer: Bearer<'_>, admitted: Timestamp, request: &[u8]) -> Vec<u8> {
        let node = bearer.node;
        match self.sign(request, bearer, admitted) {
            Ok(certificate) => {
                tracing::info!(target: AUDIT, node, "renewed the certificate of a node");
                certificate.into_bytes()
            }
            Err(error) => {
                tracing::warn!(target: AUDIT, node, %error, "did not renew the certificate of a node");
                Vec::new()
            }
        }
    }

    /// The certificate and those up to the authority, as PEM, for a node that was `admitted` then.
    fn sign(
        &self,
        request: &[u8],
        bearer: Bearer<'_>,
        admitted: Timestamp,
    ) -> Result<String, Refused> {
        let revoked = self.revoked(bearer.node);
        if revoked.is_some_and(|until| admitted <= until) {
            return Err(Refused::Asker("the node is revoked".to_owned()));
        }
        let signer = self.signer().map_err(|error| Refused::Here(error.to_string()))?;
        let now = self.time();
        // One that began earlier would be of an earlier admission.
        let validity = validity(self.valid_for, now);
        let validity = Validity { not_before: validity.not_before.max(admitted), ..validity };
        let signed = signer.sign(request, bearer, admitted, validity, now.max(validity.not_before));
        signed.map(|chain| pki::to_pem(&chain)).map_err(|error| match error {
            SignError::Request(_) => Refused::Asker(error.to_string()),
            SignError::Refused(_) => Refused::Here(error.to_string()),
        })
    }

    /// How long the signer may sign at `now`; zero if its files could not be used.
    pub fn signer_left(&self, now: Timestamp) -> Span {
        self.signer_until.lock().since(now)
    }

    /// Reads the signer's files.
    pub(super) fn look(&self) -> Result<Validity, String> {
        let validity = self.signer().map(|signer| signer.validity());
        let until = validity.as_ref().map_or(Timestamp::from_secs(0), |it| it.not_after);
        *self.signer_until.lock() = until;
        validity.map_err(|error| error.to_string())
    }

    fn signer(&self) -> Result<Signer, pki::Error> {
        let authorities = &self.mesh.identity().authorities;
        pki::load_signer(&self.cert, &self.key, authorities, self.time())
    }

    fn time(&self) -> Timestamp {
        agreed_time_by(&*self.clock, &self.mesh)
    }
}

/// The dates of a certificate that is signed at `now`. One that is good for less than
/// [`BACKDATED`] begins as long before: a third of its time is left to be renewed in once it has
/// been in use.
fn validity(valid_for: Span, now: Timestamp) -> Validity {
    Validity { not_before: now.minus(BACKDATED.min(valid_for)), not_after: now.plus(valid_for) }
}

/// The published keys in a file.
fn read_keys(file: &Path) -> io::Result<Keys> {
    let mut text = Vec::new();
    pki::open_regular(file)?.take(KEYS_BYTES_MAX).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

fn asker(error: &dyn std::fmt::Display) -> Refused {
    Refused::Asker(error.to_string())
}

fn sha256(bytes: &[u8]) -> Digest {
    let mut sum = [0; 32];
    sum.copy_from_slice(digest(&SHA256, bytes).as_ref());
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_any_length_is_in_use_before_it_is_renewed() {
        let now = Timestamp::from_secs(1_767_225_600);
        for (minutes, due_after_secs) in [(1, 20), (29, 580), (60, 1_200), (24 * 60, 56_400)] {
            let validity = validity(Span::from_secs(minutes * 60), now);
            let due = validity.renewal_due_at().since(now);
            assert_eq!(due, Span::from_secs(due_after_secs), "{minutes}m");
        }
    }
}

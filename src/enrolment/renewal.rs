//! Renews this node's certificate before it expires, without an operator and without a restart.
//!
//! A certificate that a signer signed is renewed in the last third of its time: with a new key, by
//! a peer that has a signer, or by this node's own. Both files are replaced, and
//! [`certificates`](crate::reload::certificates) puts them in use. One that `tidegate ca issue`
//! made is renewed by whoever made it.

use std::sync::Arc;
use std::time::Duration;

use tidegate_cluster::environment::Clock;
use tidegate_cluster::mesh::codec::REVOCATIONS;
use tidegate_cluster::mesh::wire::{Call, Reply};
use tidegate_cluster::mesh::{Mesh, StreamClass};
use tidegate_cluster::pki::{self, Identity, Issued, IssuedFiles, NewKey, Overwrite, Tls};
use tidegate_limiter::units::{Span, Timestamp};
use tokio_util::sync::CancellationToken;

use super::Issuer;

/// How long a peer may take to sign.
const DEADLINE: Duration = Duration::from_secs(2);
/// Between two looks at the certificate, which may have been replaced by another one.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The longest and the shortest time between two attempts.
const PAUSE_MAX: Span = Span::from_secs(3_600);
const PAUSE_MIN: Span = Span::from_secs(1);
/// Attempts in the time that is left once a renewal is due.
const ATTEMPTS: u64 = 20;

/// The task that renews the certificate.
#[derive(Debug)]
pub struct Renewal {
    pub tls: Tls,
    pub mesh: Arc<Mesh>,
    pub clock: Arc<dyn Clock>,
    /// Of this node, if it signs.
    pub issuer: Option<Arc<Issuer>>,
}

impl Renewal {
    /// Renews the certificate again and again until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let mut last: Option<Attempt> = None;
        while stop.run_until_cancelled(tokio::time::sleep(LOOK_INTERVAL)).await.is_some() {
            let (identity, now) = (self.mesh.identity(), self.clock.system());
            let is_due = identity.is_of_signer() && identity.validity.is_renewal_due(now);
            if !is_due || last.is_some_and(|last| last.holds_back(&identity, now)) {
                continue;
            }
            last = Some(Attempt { not_after: identity.validity.not_after, at: now });
            match stop.run_until_cancelled(self.renew(&identity, now)).await {
                None => return,
                Some(Ok(signed_by)) => {
                    tracing::info!(%signed_by, "renewed this node's certificate");
                }
                Some(Err(error)) => tracing::warn!(
                    %error,
                    "failed to renew this node's certificate; trying again until it expires"
                ),
            }
        }
    }

    /// Returns who signed.
    async fn renew(&self, identity: &Identity, now: Timestamp) -> Result<String, String> {
        let (Some(cert), Some(key)) = (self.tls.cert.clone(), self.tls.key.clone()) else {
            return Err("tls.cert or tls.key is not set".to_owned());
        };
        let new_key = NewKey::generate().map_err(|error| error.to_string())?;
        let request = new_key.request().map_err(|error| error.to_string())?;
        let (signed_by, cert_pem) = self.signed(identity, &request, now).await?;
        let issued = Issued { cert_pem, key_pem: new_key.to_pem() };
        let files = IssuedFiles { cert, key };
        let write = move || {
            let _alone = files.cert.parent().and_then(|folder| pki::alone_in(folder, || {}));
            files.write(&issued, Overwrite::Renew)
        };
        let written = tokio::task::spawn_blocking(write).await;
        written.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        Ok(signed_by)
    }

    /// The certificate of the first that signs one which peers accept, this node before others.
    async fn signed(
        &self,
        identity: &Identity,
        request: &[u8],
        now: Timestamp,
    ) -> Result<(String, String), String> {
        let mut problem = None;
        let mut accepted = |signer: &str, signed: Vec<u8>| {
            let cert = text(signed)?;
            match identity.accept_renewed(&cert, now) {
                Ok(()) => Some((signer.to_owned(), cert)),
                Err(error) => {
                    problem = Some(format!("what {signer} has signed: {error}"));
                    None
                }
            }
        };
        if let Some(issuer) = self.issuer.clone() {
            let (own, request) = (identity.clone(), request.to_vec());
            let sign = move || issuer.renew_own(&own, &request);
            let signed = tokio::task::spawn_blocking(sign).await.unwrap_or_default();
            if let Some(signed) = accepted(&identity.node, signed) {
                return Ok(signed);
            }
        }
        // Edges last: most have no signer, and there may be many.
        let edges: Vec<_> = self.mesh.edges().iter().cloned().collect();
        for peer in self.mesh.peers().into_iter().chain(edges) {
            if peer.version < REVOCATIONS {
                continue;
            }
            let call = Call::Certificate(request.to_vec());
            let reply = self.mesh.call_peer(&peer, StreamClass::Control, call, DEADLINE).await;
            if let Ok(Reply::Certificate(signed)) = reply
                && let Some(signed) = accepted(peer.id.as_str(), signed)
            {
                return Ok(signed);
            }
        }
        Err(problem.unwrap_or_else(|| {
            "neither this node nor one that is connected has signed it: join.signer_cert is set at \
             none, or its log says why"
                .to_owned()
        }))
    }
}

fn text(signed: Vec<u8>) -> Option<String> {
    String::from_utf8(signed).ok().filter(|cert| !cert.is_empty())
}

/// An attempt to renew a certificate.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    /// Of the certificate.
    not_after: Timestamp,
    at: Timestamp,
}

impl Attempt {
    /// Whether it is too early for another one at `now`. It never is for another certificate.
    fn holds_back(self, identity: &Identity, now: Timestamp) -> bool {
        let not_after = identity.validity.not_after;
        let left = not_after.since(self.at).as_nanos() / ATTEMPTS;
        let pause = Span::from_nanos(left).clamp(PAUSE_MIN, PAUSE_MAX);
        not_after == self.not_after && self.at <= now && now < self.at.plus(pause)
    }
}

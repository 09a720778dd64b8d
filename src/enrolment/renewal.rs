//! Renews this node's certificate before it expires, without an operator and without a restart.
//!
//! A certificate that a signer signed is renewed in the last third of its time: with a new key, by
//! a peer that has a signer, or by this node's own. Both files are replaced, and
//! [`certificates`](crate::reload::certificates) puts them in use. One that `tidegate ca issue`
//! made is renewed by whoever made it.
//!
//! **Beside an operator.** A pair that a node starts with and that is not the one in use stays. Of
//! two files that are no pair one may be still to come: they are left alone once, until the next
//! attempt.
//!
//! **Clocks that differ.** A new certificate is good by the clock of this node, by which it starts,
//! and by those of its peers: by the middle one, or by both middle ones, of which nothing says
//! which is right. A node that hears no peer waits for one for the first half of the time in which
//! its certificate is to be renewed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate_cluster::environment::Clock;
use tidegate_cluster::mesh::codec::REVOCATIONS;
use tidegate_cluster::mesh::wire::{Call, Reply};
use tidegate_cluster::mesh::{Mesh, StreamClass};
use tidegate_cluster::pki::{self, Identity, Issued, IssuedFiles, NewKey, Overwrite, Tls};
use tidegate_cluster::{agreed_time, middle_times};
use tidegate_limiter::units::{Span, Timestamp};
use tokio_util::sync::CancellationToken;

use super::Issuer;

/// How long a peer may take to sign.
const DEADLINE: Duration = Duration::from_secs(2);
/// How long another process may keep this one from replacing the files.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
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
            let (identity, now) = (self.mesh.identity(), agreed_time(&self.mesh));
            let validity = identity.validity;
            let is_alone = self.mesh.peers().is_empty();
            let due =
                if is_alone { validity.renewal_half_over_at() } else { validity.renewal_due_at() };
            let is_due = identity.is_of_signer() && now >= due;
            if !is_due || last.is_some_and(|last| last.holds_back(validity.not_after, now)) {
                continue;
            }
            let not_after = validity.not_after;
            let had_halves = |last: Attempt| last.found_halves && last.not_after == not_after;
            let halves = if last.is_some_and(had_halves) { Halves::Replace } else { Halves::Wait };
            let mut attempt = Attempt { at: now, not_after, found_halves: false };
            match stop.run_until_cancelled(self.renew(&identity, halves)).await {
                None => return,
                Some(Ok((Written::Pair, signed_by))) => {
                    tracing::info!(%signed_by, "renewed this node's certificate");
                }
                Some(Ok((Written::NothingBesideAnother, _))) => tracing::info!(
                    "this node's certificate was replaced while a new one was signed, which is not \
                     used"
                ),
                Some(Ok((Written::NothingBesideHalves, _))) => {
                    attempt.found_halves = true;
                    tracing::warn!(
                        "tls.cert and tls.key are no pair: if you copy a new one, copy the other \
                         file, too; the next attempt to renew this node's certificate replaces both"
                    );
                }
                Some(Err(error)) => tracing::warn!(
                    %error,
                    "failed to renew this node's certificate; trying again until it expires"
                ),
            }
            last = Some(attempt);
        }
    }

    /// Returns what was written, and who signed.
    async fn renew(
        &self,
        identity: &Identity,
        halves: Halves,
    ) -> Result<(Written, String), String> {
        let (Some(cert), Some(key)) = (self.tls.cert.clone(), self.tls.key.clone()) else {
            return Err("tls.cert or tls.key is not set".to_owned());
        };
        if cert == key {
            let text = "tls.cert and tls.key are one file, of which only half would be replaced: \
                        give each a file of its own";
            return Err(text.to_owned());
        }
        let new_key = NewKey::generate().map_err(|error| error.to_string())?;
        let request = new_key.request().map_err(|error| error.to_string())?;
        let (signed_by, cert_pem) = self.signed(identity, &request).await?;
        let issued = Issued { cert_pem, key_pem: new_key.to_pem() };
        let (tls, identity) = (self.tls.clone(), identity.clone());
        let files = IssuedFiles { cert, key };
        let now = self.clock.system();
        let write = move || replace((&tls, &files), &issued, &identity, halves, now);
        let written = tokio::task::spawn_blocking(write).await;
        let written = written.map_err(|error| error.to_string())?;
        Ok((written.map_err(|error| error.to_string())?, signed_by))
    }

    /// The certificate of the first that signs one which peers accept, this node before others.
    async fn signed(
        &self,
        identity: &Identity,
        request: &[u8],
    ) -> Result<(String, String), String> {
        let mut problem = None;
        let mut accepted = |signer: &str, signed: Vec<u8>| {
            let cert = text(signed)?;
            let times = middle_times(&self.mesh, None).into_iter().chain([self.clock.system()]);
            let accept = |now| identity.accept_renewed(&cert, now);
            match times.into_iter().try_for_each(accept) {
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

/// What to do with a certificate and a key that are no pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Halves {
    /// An operator may be about to copy the other file.
    Wait,
    Replace,
}

/// What was written in place of a certificate and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Pair,
    /// There is another pair meanwhile, that an operator has put there, and that a node starts
    /// with.
    NothingBesideAnother,
    NothingBesideHalves,
}

/// Puts a new pair in place of that of `identity`.
fn replace(
    (tls, files): (&Tls, &IssuedFiles),
    issued: &Issued,
    identity: &Identity,
    halves: Halves,
    now: Timestamp,
) -> Result<Written, pki::Error> {
    let folder = files.cert.parent().unwrap_or_else(|| Path::new(""));
    // Anybody who can read the folder can lock it, and must not let the certificate expire.
    let _alone = pki::alone_in(folder, LOCK_PATIENCE, || {}).unwrap_or_else(|error| {
        tracing::warn!(%error, "renewing this node's certificate nevertheless");
        None
    });
    // As after a replacement that was interrupted. What is in the way of it, `write` names.
    let _ = files.complete();
    let is_same = identity.chain.first().is_some_and(|certificate| files.have(certificate));
    if !is_same && pki::load(tls, identity.bearer(), now).is_ok() {
        return Ok(Written::NothingBesideAnother);
    }
    if halves == Halves::Wait && !files.belong_together() {
        return Ok(Written::NothingBesideHalves);
    }
    files.write(issued, Overwrite::Renew).map(|()| Written::Pair)
}

fn text(signed: Vec<u8>) -> Option<String> {
    String::from_utf8(signed).ok().filter(|cert| !cert.is_empty())
}

/// An attempt to renew a certificate.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    at: Timestamp,
    /// Of the certificate that was to be renewed.
    not_after: Timestamp,
    /// It has written nothing, as the files were no pair.
    found_halves: bool,
}

impl Attempt {
    /// Whether it is too early at `now` for another one, of a certificate that ends then. It may be
    /// one that this attempt has brought: by a clock that is ahead of the signer's it is due again.
    fn holds_back(self, not_after: Timestamp, now: Timestamp) -> bool {
        let left = not_after.since(self.at).as_nanos() / ATTEMPTS;
        let pause = Span::from_nanos(left).clamp(PAUSE_MIN, PAUSE_MAX);
        self.at <= now && now < self.at.plus(pause)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use tidegate_cluster::pki::{Bearer, Role, Validity};

    use super::*;

    const BEGINS: Timestamp = Timestamp::from_secs(1_700_000_000);
    const BEARER: Bearer<'_> = Bearer { node: "n1", region: "eu", role: Role::Core };

    /// A folder with an authority.
    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        pki::init(dir.path(), validity(100), [7; 16]).unwrap();
        dir
    }

    fn validity(hours: u64) -> Validity {
        Validity { not_before: BEGINS, not_after: BEGINS.plus(Span::from_secs(hours * 3_600)) }
    }

    /// Issues a certificate that is valid for this many hours.
    fn issued(dir: &Path, hours: u64) -> IssuedFiles {
        pki::issue(dir, BEARER, validity(hours), Overwrite::Renew).unwrap()
    }

    fn tls(dir: &Path) -> Tls {
        let path = |name: &str| Some(dir.join(name));
        Tls {
            ca: path(pki::AUTHORITY_CERT),
            cert: path("n1.pem"),
            key: path("n1.key"),
            secret: path(pki::CLUSTER_SECRET),
        }
    }

    /// What a signer gives.
    fn renewed(dir: &Path) -> Issued {
        let of = tempfile::tempdir().unwrap();
        for name in [pki::AUTHORITY_CERT, pki::AUTHORITY_KEY] {
            fs::copy(dir.join(name), of.path().join(name)).unwrap();
        }
        let files = issued(of.path(), 48);
        let [cert_pem, key_pem] =
            [files.cert, files.key].map(|path| fs::read_to_string(path).unwrap());
        Issued { cert_pem, key_pem }
    }

    #[test]
    fn who_locks_the_folder_keeps_no_node_from_its_new_certificate() {
        let dir = folder();
        let (files, new) = (issued(dir.path(), 24), renewed(dir.path()));
        let lock = File::open(dir.path()).unwrap();
        lock.lock_shared().unwrap();
        let tls = tls(dir.path());
        let identity = pki::load(&tls, BEARER, BEGINS).unwrap();
        let written = replace((&tls, &files), &new, &identity, Halves::Wait, BEGINS).unwrap();
        assert_eq!(written, Written::Pair);
        assert_eq!(fs::read_to_string(&files.cert).unwrap(), new.cert_pem);
        assert!(files.belong_together());
    }

    #[test]
    fn a_file_that_an_operator_has_copied_alone_is_replaced_at_the_next_attempt() {
        let dir = folder();
        let (files, new) = (issued(dir.path(), 24), renewed(dir.path()));
        let tls = tls(dir.path());
        let identity = pki::load(&tls, BEARER, BEGINS).unwrap();
        for (path, put) in
            [(&files.key, renewed(dir.path()).key_pem), (&files.cert, new.cert_pem.clone())]
        {
            fs::write(path, &put).unwrap();
            let replace =
                |halves| replace((&tls, &files), &new, &identity, halves, BEGINS).unwrap();
            assert_eq!(replace(Halves::Wait), Written::NothingBesideHalves);
            assert_eq!(fs::read_to_string(path).unwrap(), put);
            assert_eq!(replace(Halves::Replace), Written::Pair);
            assert!(files.belong_together());
            issued(dir.path(), 24);
        }
    }

    #[test]
    fn what_an_operator_has_put_there_meanwhile_stays() {
        let dir = folder();
        issued(dir.path(), 24);
        let (tls, new) = (tls(dir.path()), renewed(dir.path()));
        let identity = pki::load(&tls, BEARER, BEGINS).unwrap();
        let files = issued(dir.path(), 99);
        let put = fs::read_to_string(&files.cert).unwrap();
        let replaced_at = |at| {
            replace((&tls, &files), &new, &identity, Halves::Wait, at).unwrap() == Written::Pair
        };
        assert!(!replaced_at(BEGINS));
        assert_eq!(fs::read_to_string(&files.cert).unwrap(), put);
        // What no node starts with is replaced: others can read its key, or it has ended.
        fs::set_permissions(&files.key, Permissions::from_mode(0o644)).unwrap();
        assert!(replaced_at(BEGINS));
        issued(dir.path(), 99);
        assert!(!replaced_at(BEGINS));
        assert!(replaced_at(BEGINS.plus(Span::from_secs(99 * 3_600 + 1))));
    }
}

//! Reloads the files of `[tls]` when they change: certificate, key, authorities, accepted secrets.
//!
//! The files are read every [`RELOAD_INTERVAL`], as those of the gRPC listener are: a certificate
//! that is put in use some seconds after its file has changed is early enough, with events or
//! without. All four are one value, which is verified as at the start and replaced at once.
//!
//! **Invariant:** files that a node would not start with (half a copy, the key of another
//! certificate, one that expired) change nothing but the status, the log and the metrics. A problem
//! is reported when a second read finds it too: files that are copied one after the other do not
//! fit together in between.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_cluster::environment::Clock;
use tidegate_cluster::mesh::Mesh;
use tidegate_cluster::pki::{self, Identity, Tls};
use tidegate_limiter::store::KeyHasher;
use tidegate_limiter::units::{Span, Timestamp};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::files::{RELOAD_INTERVAL, read_again};

/// How often the log names a certificate that is to be renewed.
const REMINDER_INTERVAL: Span = Span::from_secs(86_400);

/// What was read; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Handle(Arc<Mutex<Status>>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Changes of the files that were put in use.
    pub loads_ok: u64,
    /// Changes of the files that could not be used.
    pub loads_failed: u64,
    /// Why the present files are not in use.
    pub problem: Option<String>,
    /// Whether `tls.secret` begins with another secret than that of this node's keys, which is used
    /// from the next start on.
    pub has_next_secret: bool,
}

/// The task that reads the files.
#[derive(Debug)]
pub struct Watcher {
    pub tls: Tls,
    pub mesh: Arc<Mesh>,
    pub clock: Arc<dyn Clock>,
    /// Fingerprint of the secret under which this node hashes keys.
    pub secret: u64,
    pub handle: Handle,
}

impl Handle {
    pub fn status(&self) -> Status {
        self.0.lock().clone()
    }
}

impl Watcher {
    /// Reads the files again and again until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let (mut problem_before, mut reminded) = (None, None);
        while stop.run_until_cancelled(sleep(RELOAD_INTERVAL)).await.is_some() {
            let (tls, now, current) = (self.tls.clone(), self.clock.system(), self.mesh.identity());
            let path = tls.cert.clone().unwrap_or_default();
            let load = move || pki::load(&tls, current.bearer(), now);
            let Some(read) = stop.run_until_cancelled(read_again(&path, load)).await else {
                return;
            };
            let read = read.and_then(|read| read.map_err(|error| error.to_string()));
            let outcome = read.and_then(|identity| self.apply(identity));
            let problem = outcome.err();
            if problem.is_none() || problem == problem_before {
                self.report(problem.clone());
            }
            problem_before = problem;
            // By what has just been read: a node that renews its certificate itself has done so.
            remind(&self.mesh.identity(), now, &mut reminded);
        }
    }

    /// Uses what was read, unless it is in use.
    fn apply(&self, identity: Identity) -> Result<(), String> {
        let hasher = KeyHasher::new(identity.secret).with_domains(self.mesh.names_domains());
        let has_next_secret = hasher.fingerprint() != self.secret;
        let had_next_secret =
            std::mem::replace(&mut self.handle.0.lock().has_next_secret, has_next_secret);
        if has_next_secret && !had_next_secret {
            tracing::warn!(
                "tls.secret begins with another secret: this node hashes keys under it when it is \
                 restarted"
            );
        }
        let current = self.mesh.identity();
        if identity.has_certificate_of(&current) && identity.trusts_as(&current) {
            return Ok(());
        }
        let (until, authorities) = (identity.validity.not_after, identity.roots.len());
        self.mesh.replace_identity(identity).map_err(|error| error.to_string())?;
        self.handle.0.lock().loads_ok += 1;
        let until = pki::utc_date(until);
        tracing::info!(%until, authorities, "reloaded the files of [tls]");
        Ok(())
    }

    fn report(&self, problem: Option<String>) {
        let mut status = self.handle.0.lock();
        if status.problem == problem {
            return;
        }
        if let Some(error) = &problem {
            status.loads_failed += 1;
            tracing::error!(%error, "the files of [tls] are not in use; kept the previous ones");
        } else {
            tracing::info!("the files of [tls] are in use again");
        }
        status.problem = problem;
    }
}

/// Logs that the certificate is to be renewed, once a day.
fn remind(identity: &Identity, now: Timestamp, reminded: &mut Option<Timestamp>) {
    let is_recent = reminded.is_some_and(|at| now.since(at) < REMINDER_INTERVAL);
    // One of a signer renews itself, and says why it could not.
    if is_recent || identity.is_of_signer() || !identity.validity.is_renewal_due(now) {
        return;
    }
    *reminded = Some(now);
    let Identity { node, region, validity, .. } = identity;
    let until = pki::utc_date(validity.not_after);
    tracing::warn!(
        %until,
        "this node's certificate is to be renewed: peers refuse it from then on; run `tidegate \
         ca issue --node {node} --region {region} --renew` and copy both files, without a \
         restart"
    );
}

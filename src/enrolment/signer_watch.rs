//! How long this node's signer lasts: a metric, and a line a day in the log once it is to be
//! replaced. Nodes whose certificates it has signed cannot renew them beyond its end.

use std::sync::Arc;
use std::time::Duration;

use tidegate_cluster::environment::Clock;
use tidegate_cluster::pki;
use tidegate_limiter::units::{Span, Timestamp};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Issuer;

/// How often the signer's files are read.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// How often the log names a signer that is to be replaced.
const REMINDER_INTERVAL: Span = Span::from_secs(86_400);

/// The task that reads the files of the signer.
#[derive(Debug)]
pub struct SignerWatch {
    pub issuer: Arc<Issuer>,
    pub clock: Arc<dyn Clock>,
}

impl SignerWatch {
    /// Reads them again and again until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let (mut reminded, mut problem_before) = (None, None);
        loop {
            let issuer = self.issuer.clone();
            let look = tokio::task::spawn_blocking(move || issuer.look());
            let Some(looked) = stop.run_until_cancelled(look).await else { return };
            let validity = looked.unwrap_or_else(|panicked| Err(panicked.to_string()));
            let now = self.clock.system();
            let problem = match validity {
                Ok(validity) => {
                    remind(validity, now, &mut reminded);
                    None
                }
                Err(error) => Some(error),
            };
            if problem != problem_before
                && let Some(error) = &problem
            {
                tracing::error!(%error, "this node cannot sign certificates: join.signer_cert");
            }
            problem_before = problem;
            if stop.run_until_cancelled(sleep(LOOK_INTERVAL)).await.is_none() {
                return;
            }
        }
    }
}

fn remind(validity: pki::Validity, now: Timestamp, reminded: &mut Option<Timestamp>) {
    let is_recent = reminded.is_some_and(|at| now.since(at) < REMINDER_INTERVAL);
    if is_recent || !validity.is_renewal_due(now) {
        return;
    }
    *reminded = Some(now);
    let until = pki::utc_date(validity.not_after);
    tracing::warn!(
        %until,
        "the signer is to be replaced: no node joins or renews its certificate after it; run \
         `tidegate ca signer --renew` where ca.key is and copy both files, without a restart"
    );
}

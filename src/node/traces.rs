//! Where the traces of a node go.

#[cfg(feature = "otel")]
mod receiver;

use std::sync::Arc;

use tidegate_cluster::environment::Clock;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, UserError};
use crate::traces::Traces;

/// The task that sends what is recorded.
#[derive(Debug)]
pub(super) struct Export(#[cfg(feature = "otel")] Option<receiver::Export>);

/// Begins to record, if the configuration says where to send it.
///
/// # Errors
///
/// The receiver cannot be reached as configured, whatever it does: its authorities cannot be read.
#[cfg(feature = "otel")]
pub(super) fn start(config: &Config, clock: Arc<dyn Clock>) -> Result<(Traces, Export), UserError> {
    let Some(url) = config.traces.url() else { return Ok((Traces::default(), Export(None))) };
    let receiver = receiver::Receiver::new(&config.traces, url)?;
    let (traces, queue) = Traces::new(config.traces.sampling_rate, clock);
    Ok((traces, Export(Some(receiver::Export::new(config, receiver, queue)))))
}

/// As above, of a binary that records nothing.
#[cfg(not(feature = "otel"))]
pub(super) fn start(config: &Config, _: Arc<dyn Clock>) -> Result<(Traces, Export), UserError> {
    if config.traces.endpoint.is_some() {
        let problem = "traces.endpoint: this binary was built without the feature otel";
        return Err(UserError::new(problem, "remove it, or use a binary with traces"));
    }
    Ok((Traces::default(), Export()))
}

impl Export {
    /// Runs until `stop`, and sends what is left.
    pub(super) async fn run(self, stop: CancellationToken) {
        #[cfg(feature = "otel")]
        if let Some(export) = self.0 {
            return export.run(stop).await;
        }
        stop.cancelled().await;
    }
}

//! The admin listener: the state of this node and its view of the cluster.
//!
//! `/healthz` (liveness), `/readyz` (readiness), `/metrics`, `/status`, `/owner` and `POST /drain`.
//! Responses are JSON for operators and their scripts; names are only added.

pub mod report;
mod router;

pub use report::{OwnerReport, StatusReport};
pub use router::{AdminState, router};

/// The state behind `/status` and `/owner`.
pub trait Inspect: Send + Sync + 'static {
    /// The current view of the cluster.
    fn status(&self) -> StatusReport;

    /// The owner of a descriptor, given as key/value pairs, outermost first.
    fn owner(&self, domain: &str, entries: &[(String, String)]) -> OwnerReport;
}

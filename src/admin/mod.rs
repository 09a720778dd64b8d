//! The operator's door: how the cluster looks from this node.
//!
//! `/healthz` (alive), `/readyz` (send traffic here), `/metrics`, `/status` and `/owner`. It serves
//! people and their scripts, so its answers are JSON with names that do not change. It decides
//! nothing and changes nothing.

pub mod debug;
pub mod report;
mod router;

pub use report::{OwnerReport, StatusReport};
pub use router::{Listeners, router};

/// What the node tells about itself and the cluster.
pub trait Inspect: Send + Sync + 'static {
    /// The cluster as this node sees it now.
    fn status(&self) -> StatusReport;

    /// Who decides a descriptor, given as key/value pairs, outermost first.
    fn owner(&self, domain: &str, entries: &[(String, String)]) -> OwnerReport;
}

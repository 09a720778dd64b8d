//! The admin listener: the state of this node and its view of the cluster.
//!
//! `/healthz` (liveness), `/readyz` (readiness), `/metrics`, `/status`, `/members`, `/regions`,
//! `/owner`, `/blocked`, and what an operator orders: `POST /drain`, `/bootstrap`, `/forget` and
//! `/regions/lost`. Responses are JSON for operators and their scripts; names are only added.

mod access;
pub mod blocked;
mod operate;
pub mod report;
mod router;

pub use access::{Access, NodeClient};
pub use blocked::{BlockedReport, BlockedSource, WatchBlocked};
pub use operate::{Operate, Refusal};
pub use report::{DrainReport, Inspect, MembersReport, OwnerReport, RegionsReport, StatusReport};
pub use router::{AdminState, router};

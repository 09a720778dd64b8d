//! The admin listener: the state of this node and its view of the cluster.
//!
//! `/healthz` (liveness), `/readyz` (readiness), `/metrics`, `/status`, `/members`, `/regions`,
//! `/owner`, `/key`, `/blocked`, and what an operator orders: `POST /drain`, `/bootstrap`,
//! `/forget`, `/regions/lost` and those about a [`key`]. Responses are JSON for operators and their
//! scripts; names are only added.

pub mod blocked;
pub mod key;
mod node_client;
mod operate;
pub mod report;
mod router;

pub use blocked::{BlockedReport, BlockedSource, WatchBlocked};
pub use node_client::{NodeClient, Reach};
pub use operate::{Operate, Refusal};
pub use report::{DrainReport, Inspect, MembersReport, OwnerReport, RegionsReport, StatusReport};
pub use router::{AdminState, router};

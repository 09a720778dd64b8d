//! The admin listener: the state of this node and its view of the cluster.
//!
//! `/healthz` (liveness), `/readyz` (readiness), `/metrics`, `/status`, `/owner` and `POST /drain`.
//! Responses are JSON for operators and their scripts; names are only added.

pub mod report;
mod router;

pub use report::{Inspect, OwnerReport, StatusReport};
pub use router::{AdminState, router};

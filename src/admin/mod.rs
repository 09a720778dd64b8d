//! The admin listener: the state of this node and its view of the cluster.
//!
//! `/healthz` (liveness), `/readyz` (readiness), `/metrics`, `/status`, `/members`, `/regions`,
//! `/owner`, `/key`, `/events`, `/blocked`, the dashboard (`/ui/`), and what an operator orders:
//! `POST /drain`, `/bootstrap`, `/forget`, `/regions/lost`, and those about a [`key`] and about
//! [`certificates`]. [`routes`] has all of them, with the role that each needs. Responses are JSON
//! for operators and their scripts; names are only added.

pub mod access;
pub mod blocked;
pub mod certificates;
pub mod dashboard;
mod event_client;
mod event_reader;
mod event_stream;
pub mod events;
pub mod key;
mod node_client;
mod operate;
pub mod report;
mod router;
pub mod snapshot;
pub mod tokens;

pub use access::{Access, Role, Tokens};
pub use blocked::{BlockedReport, BlockedSource, WatchBlocked};
pub use event_client::{EventStream, Listener};
pub use event_stream::STREAMS_MAX;
pub use events::Overview;
pub use node_client::{NodeClient, Reach, innermost};
pub use operate::{Operate, Refusal};
pub use report::{DrainReport, Inspect, MembersReport, OwnerReport, RegionsReport, StatusReport};
pub use router::{AdminState, Route, router, routes};

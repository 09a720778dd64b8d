//! Edges: nodes beside services, thousands of them, that own nothing and vote nowhere.
//!
//! An edge is in no map and in no gossip. It *follows* [`HOMES`] cores of its region, its *homes*:
//! each sends it what it knows of the cluster ([`ClusterView`]), and again after each change. From
//! that the edge knows the owner of every key, and calls owners itself, over connections that it
//! opens when it uses them.
//!
//! ```text
//! edge ── follow, every 5 s ──▶ home       edge ── check, eventual counts ──▶ owner
//!      ◀────── the map ────────                 ◀─── verdict, grant, rest ────
//! ```
//!
//! To an owner an edge is one more node that uses a key: it holds grants and counts under an actor
//! of its own. What a core does not take from it are states, gossip, maps and range transfers.
//!
//! | module | content |
//! |---|---|
//! | `homes` | which cores an edge follows |
//! | `follower` | the edge: its homes, what they sent, its lease |
//! | `followers` | who follows a core, and what is due to whom |
//! | `publisher` | the core: sends what followers lack |
//!
//! [`ClusterView`]: crate::mesh::wire::ClusterView

mod follower;
mod followers;
mod homes;
mod publisher;

use std::time::Duration;

pub use follower::{Follower, Options};
pub use homes::HOMES;
pub use publisher::{Publisher, Sources};

/// How often an edge says that it follows a core, and pings one that it does not call.
pub const FOLLOW_INTERVAL: Duration = Duration::from_secs(5);

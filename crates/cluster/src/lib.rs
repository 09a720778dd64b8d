//! The cluster of equal peers: the I/O around `tidegate-ownership`, and the exchange of counts.
//!
//! This crate decides no request. It publishes which keys this node may decide, as
//! [`ownership::Ownership`] and a shared topology, and carries calls, counters and states between
//! nodes.
//!
//! | module | content |
//! |---|---|
//! | [`environment`] | what a node takes from outside: time, randomness, sockets |
//! | [`incarnation`] | this node's id and generation |
//! | [`pki`] | the cluster's certificate authority and node certificates |
//! | [`per_address`] | a bound on what one remote address holds at once |
//! | [`ticks`] | timers of one node that expire together |
//! | [`mesh`] | QUIC connections, the wire format, calls |
//! | `agreed_time` | the time that most machines show |
//! | [`encoding`] | values as bytes |
//! | [`consensus`] | agreeing on the cluster map, and what a node keeps of it |
//! | [`membership`] | the cluster map in force: founding, joining, leaving, proposing changes |
//! | [`gossip`] | each node's metadata, and addresses to dial |
//! | [`ownership`] | drives the ownership state machines |
//! | [`global`] | the lease of the region, by the global map |
//! | [`edge`] | nodes that own nothing: the cores that they follow, and what those send them |
//! | `comparison` | sets of orders that become the same at all nodes |
//! | [`interventions`] | orders of operators about single keys |
//! | [`revocations`] | certificates that are refused |
//! | [`replication`] | copies of strict states on other nodes, and their repair |
//! | [`sync`] | exchange of per-actor counters of eventual rules |

mod agreed_time;
pub mod backoff;
mod changes;
mod comparison;
pub mod consensus;
pub mod edge;
pub mod encoding;
pub mod environment;
pub mod global;
pub mod gossip;
mod home_copies;
pub mod incarnation;
pub mod interventions;
pub mod membership;
pub mod mesh;
pub mod ownership;
pub mod per_address;
pub mod pki;
pub mod replication;
pub mod revocations;
pub mod sync;
pub mod ticks;

pub use agreed_time::{agreed_time, agreed_time_by, agreed_time_without, middle_times};
pub use comparison::Announced;

/// Adds to a statistic. Relaxed: statistics order nothing.
fn count(counter: &std::sync::atomic::AtomicU64, n: u64) {
    counter.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
}

//! The mesh: one mutually authenticated QUIC connection between every two cores, and some from
//! edges to cores.
//!
//! One UDP port carries everything that nodes exchange: forwarded checks, per-actor counters,
//! strict states, range transfers and gossip. [`Mesh`] is the handle; [`Mesh::run`] owns the tasks.
//! The layers, each of which uses only those above it:
//!
//! | module | content |
//! |---|---|
//! | [`codec`], [`bounded_vec`] | frames: length, version, bincode |
//! | [`wire`] | the messages |
//! | [`tls`], `hello` | who may connect, and as which node |
//! | `credentials` | the certificates in use |
//! | `refused_certificate` | what is logged of a failed handshake |
//! | `silence` | for how long a peer has been silent |
//! | `traffic` | what is sent, by kind of message |
//! | `rpc_stream` | calls and replies on one stream, many in flight |
//! | `peer`, `registry` | an established peer; the table of peers, and the back-off of dials |
//! | `connection` | the tasks of one connection: serve, write, ping; what a node does for peers |
//! | `handle` | the handle; accepting and dialing |
//! | `replaced_certificates` | certificates and authorities that are replaced while it runs |
//!
//! Two nodes may dial each other at the same time. Both sides then keep the connection that the
//! lower node id dialed, so they agree without a message; a newer incarnation of a peer always
//! replaces an older one. A node whose generation grows while it runs closes its connections: its
//! peers know it by the generation in its hello, and reject the counters of any other actor.
//!
//! **Invariant:** a peer is in the registry only after an accepted hello in both directions, so
//! nothing that a stranger sends reaches [`Service`].

pub mod bounded_vec;
pub mod codec;
mod connection;
mod credentials;
mod handle;
mod hello;
mod peer;
mod refused_certificate;
mod registry;
mod replaced_certificates;
mod rpc_stream;
mod silence;
pub mod tls;
mod traffic;
pub mod wire;

pub use connection::{Service, ServiceReply};
pub use handle::{Counters, Error, Mesh, Options, Tasks};
pub use hello::{Error as HelloError, HELLO_TIMEOUT};
pub use peer::{Peer, UNREACHABLE_AFTER, running};
pub use registry::Edges;
pub use rpc_stream::{CallError, IN_FLIGHT_MAX, StreamClass};
pub use silence::PING_INTERVAL;
pub use traffic::{Kind, Traffic};
pub use wire::{EDGES_MAX, PEERS_MAX};

//! What a node takes from outside: time, randomness, sockets, and a disk for the cluster map.
//!
//! A node is built from one [`Environment`]. The real one is made in `src/node/system.rs`, the only
//! file that reads the system's clocks or asks the system for randomness. The simulator provides
//! its own, and so runs whole nodes deterministically.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use tidegate_limiter::units::{Monotonic, Timestamp};
use tidegate_ownership::Versions;

use crate::consensus::Disk;

#[derive(Clone, Debug)]
pub struct Environment {
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    pub net: Arc<dyn Net>,
    /// Where the cluster map is kept.
    pub disk: Arc<dyn Disk>,
    /// The versions of the wire format: [`VERSIONS`](crate::mesh::codec::VERSIONS), except in
    /// simulated upgrades.
    pub versions: Versions,
}

/// The node's clocks.
pub trait Clock: Debug + Send + Sync {
    /// Time since some moment before the node was built, by a clock that is never set and goes on
    /// while the machine is suspended. Leases end by it.
    fn monotonic(&self) -> Monotonic;

    /// Wall-clock time. Never runs backwards, whatever the system clock does, except by
    /// [`Clock::step`].
    fn now(&self) -> Timestamp;

    /// The system clock, uncorrected: what peers exchange to measure their offsets.
    fn system(&self) -> Timestamp;

    /// Makes [`Clock::now`] approach the system clock plus `correction_ns`, without running
    /// backwards.
    fn slew(&self, correction_ns: i64);

    /// Sets [`Clock::now`] to the system clock plus `correction_ns` at once, also backwards. Only
    /// for a node that has decided nothing yet.
    fn step(&self, correction_ns: i64);
}

/// A source of random bytes.
pub trait Entropy: Debug + Send + Sync {
    /// # Errors
    ///
    /// Fails only when the system has no randomness.
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()>;
}

/// Sockets for the mesh, and the runtime that drives their timers.
#[async_trait]
pub trait Net: Debug + Send + Sync {
    /// Binds the UDP socket of the mesh.
    async fn bind_udp(&self, addr: SocketAddr) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>>;

    /// The timers and tasks of quinn.
    fn quinn_runtime(&self) -> Arc<dyn quinn::Runtime>;

    /// Resolves `host:port`. May take seconds.
    async fn resolve(&self, host_port: &str) -> io::Result<Vec<SocketAddr>>;
}

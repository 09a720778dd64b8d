//! The three things a node takes from the outside world: time, randomness, sockets.
//!
//! A node is built from one [`Environment`]. The real one is made in `node.rs` and is the only place that
//! reads a clock or asks the system for randomness; a simulator brings its own and runs whole nodes
//! deterministically. Nothing below `node.rs` reaches around it.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use tidegate_limiter::units::Timestamp;

/// Everything a node takes from outside.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Makes random bytes.
    pub entropy: Arc<dyn Entropy>,
    /// Opens sockets.
    pub net: Arc<dyn Net>,
}

/// The node's decision clock.
pub trait Clock: Debug + Send + Sync {
    /// Now. Never goes backwards between two calls, whatever the system clock does, but by
    /// [`Clock::set`].
    fn now(&self) -> Timestamp;

    /// What the system clock says, uncorrected: what peers compare in their hello.
    fn system(&self) -> Timestamp;

    /// From now on [`Clock::now`] is to follow the system clock plus `correction_ns`, and to get
    /// there without going back.
    fn steer(&self, correction_ns: i64);

    /// Likewise, but at once and backwards too: for a node that has decided nothing yet.
    fn set(&self, correction_ns: i64);
}

/// A source of random bytes.
pub trait Entropy: Debug + Send + Sync {
    /// Fills `bytes`. Fails only when the system has no randomness to give.
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()>;
}

/// Sockets for the mesh and the runtime that drives its timers.
#[async_trait]
pub trait Net: Debug + Send + Sync {
    /// Binds the mesh's one UDP socket.
    async fn bind_udp(&self, addr: SocketAddr) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>>;

    /// The timers and tasks that quinn runs on.
    fn quinn_runtime(&self) -> Arc<dyn quinn::Runtime>;

    /// Looks up the addresses that `host:port` stands for. May take seconds.
    async fn resolve(&self, host_port: &str) -> io::Result<Vec<SocketAddr>>;
}

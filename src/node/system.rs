//! The system's [`Environment`]: its clocks, randomness and sockets. No other code reads them.

#![allow(clippy::disallowed_methods, reason = "this is the one place that reads the clocks")]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use quinn::Runtime;
use rustix::time::{ClockId, clock_gettime};
use tidegate_cluster::consensus::MemoryDisk;
use tidegate_cluster::environment::{Clock, Entropy, Environment, Net};
use tidegate_cluster::mesh::codec::VERSIONS;
use tidegate_limiter::units::{Monotonic, Span, Timestamp};
use tokio_util::sync::CancellationToken;

use super::clock::{COMPARE_INTERVAL, Discipline};
use super::udp::MeshSocket;

/// The decision clock of this process.
#[derive(Debug)]
pub struct SystemClock {
    /// By [`boot_time`].
    start: Span,
    discipline: ArcSwap<Discipline>,
    /// Added to the system clock before the decision clock follows it, nanoseconds.
    correction_ns: AtomicI64,
}

#[derive(Debug)]
struct SystemEntropy;

#[derive(Debug)]
struct SystemNet;

/// The environment of this process, with a disk in memory. The clock needs [`SystemClock::run`].
pub fn system_environment() -> (Environment, Arc<SystemClock>) {
    let clock = Arc::new(SystemClock::new());
    let environment = Environment {
        clock: clock.clone(),
        entropy: Arc::new(SystemEntropy),
        net: Arc::new(SystemNet),
        disk: Arc::new(MemoryDisk::default()),
        versions: VERSIONS,
    };
    (environment, clock)
}

impl SystemClock {
    fn new() -> Self {
        let discipline = Discipline::new(Span::ZERO, system_time());
        Self {
            start: boot_time(),
            discipline: ArcSwap::from_pointee(discipline),
            correction_ns: AtomicI64::new(0),
        }
    }

    /// Compares the decision clock with the system clock once a second until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(COMPARE_INTERVAL.to_std());
        // After a stall, a burst of comparisons would count as ten seconds of evidence.
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            // Repeated when the clock was stepped in between.
            self.discipline.rcu(|clock| clock.compared(self.elapsed(), self.followed()));
        }
    }

    /// Corrected system clock minus decision clock, nanoseconds.
    pub fn error(&self) -> i64 {
        self.discipline.load().error()
    }

    /// The time that the decision clock follows.
    fn followed(&self) -> Timestamp {
        let correction_ns = self.correction_ns.load(Ordering::Relaxed);
        Timestamp::from_nanos(system_time().as_nanos().saturating_add_signed(correction_ns))
    }

    fn elapsed(&self) -> Span {
        Span::from_nanos(boot_time().as_nanos().saturating_sub(self.start.as_nanos()))
    }
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Monotonic {
        Monotonic::START.plus(self.elapsed())
    }

    fn now(&self) -> Timestamp {
        self.discipline.load().now(self.elapsed())
    }

    fn system(&self) -> Timestamp {
        system_time()
    }

    fn slew(&self, correction_ns: i64) {
        self.correction_ns.store(correction_ns, Ordering::Relaxed);
    }

    fn step(&self, correction_ns: i64) {
        self.slew(correction_ns);
        let clock = Discipline::new(self.elapsed(), self.followed());
        self.discipline.store(Arc::new(clock));
    }
}

/// Since the machine was booted. Unlike `CLOCK_MONOTONIC`, which [`std::time::Instant`] reads, it
/// counts the time that the machine was suspended: others have taken over by then.
fn boot_time() -> Span {
    let time = clock_gettime(ClockId::Boottime);
    let part = |number: i64| u64::try_from(number).unwrap_or_default();
    let nanos = part(time.tv_sec).saturating_mul(1_000_000_000);
    Span::from_nanos(nanos.saturating_add(part(time.tv_nsec)))
}

/// A clock before 1970 reads as 1970.
fn system_time() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::EPOCH.plus(since_epoch.into())
}

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        getrandom::fill(bytes).map_err(io::Error::from)
    }
}

#[async_trait]
impl Net for SystemNet {
    async fn bind_udp(&self, addr: SocketAddr) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>> {
        let socket = std::net::UdpSocket::bind(addr)?;
        Ok(Arc::new(MeshSocket::new(socket)?))
    }

    fn quinn_runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(quinn::TokioRuntime)
    }

    async fn resolve(&self, host_port: &str) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host(host_port).await?.collect())
    }
}

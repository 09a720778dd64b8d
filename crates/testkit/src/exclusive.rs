//! How many tests of one binary run real processes at once. Most of them wait most of the time, for
//! a lease, a timeout or the end of a partition, so two cores carry a few; a test that measures, or
//! that keeps both cores busy, is the only one outside of network namespaces.

use std::fs;

use tokio::runtime;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Tests whose processes share the loopback of the host.
const HOST_MAX: u32 = 3;
/// Tests in network namespaces of their own.
const NAMESPACES_MAX: u32 = 2;

static HOST: Semaphore = Semaphore::const_new(HOST_MAX as usize);
static NAMESPACES: Semaphore = Semaphore::const_new(NAMESPACES_MAX as usize);

/// The right to use the machine, or a part of it, as long as it is held.
#[derive(Debug)]
pub struct Exclusive(#[expect(dead_code, reason = "held, not read")] SemaphorePermit<'static>);

/// Waits for a part of the machine.
pub async fn share() -> Exclusive {
    let permits = if is_in_namespace() { &NAMESPACES } else { &HOST };
    Exclusive(permits.acquire().await.expect("never closed"))
}

/// Waits until no other test of this binary uses the machine, outside of namespaces.
pub async fn alone() -> Exclusive {
    Exclusive(HOST.acquire_many(HOST_MAX).await.expect("never closed"))
}

/// [`share`], outside of a runtime.
pub fn blocking_share() -> Exclusive {
    blocking(share())
}

/// [`alone`], outside of a runtime.
pub fn blocking_alone() -> Exclusive {
    blocking(alone())
}

fn blocking(lock: impl Future<Output = Exclusive>) -> Exclusive {
    let runtime = runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime without drivers").block_on(lock)
}

/// Whether this thread is in another network namespace than the process.
fn is_in_namespace() -> bool {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).ok();
    namespace("thread-self") != namespace("self")
}

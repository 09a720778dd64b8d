//! One test at a time: two cores carry one cluster of processes, and a test that measures must not
//! run beside another. Tests in a network namespace of their own wait for leases and partitions
//! most of the time: two of these run beside one of the others.

use std::fs;

use tokio::sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit};

static HOST: Mutex<()> = Mutex::const_new(());
static NAMESPACES: Semaphore = Semaphore::const_new(2);

/// The right to use the machine, as long as it is held.
#[derive(Debug)]
pub enum Exclusive {
    Host(MutexGuard<'static, ()>),
    Namespace(SemaphorePermit<'static>),
}

/// Waits until no other test of this binary holds the machine, or its part of it.
pub async fn lock() -> Exclusive {
    if is_in_namespace() {
        Exclusive::Namespace(NAMESPACES.acquire().await.expect("never closed"))
    } else {
        Exclusive::Host(HOST.lock().await)
    }
}

/// The same outside of a runtime, and of a namespace.
pub fn blocking_lock() -> Exclusive {
    Exclusive::Host(HOST.blocking_lock())
}

/// Whether this thread is in another network namespace than the process.
fn is_in_namespace() -> bool {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).ok();
    namespace("thread-self") != namespace("self")
}

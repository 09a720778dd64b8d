//! One test at a time: two cores carry one cluster of processes, and a test that measures must not
//! run beside another. Tests in a network namespace of their own wait for leases and partitions
//! most of the time: one of these runs beside one of the others.

use std::fs;

use tokio::sync::{Mutex, MutexGuard};

static HOST: Mutex<()> = Mutex::const_new(());
static NAMESPACE: Mutex<()> = Mutex::const_new(());

/// Waits until no other test of this binary holds the machine.
pub async fn lock() -> MutexGuard<'static, ()> {
    if is_in_namespace() { NAMESPACE.lock().await } else { HOST.lock().await }
}

/// The same outside of a runtime.
pub fn blocking_lock() -> MutexGuard<'static, ()> {
    if is_in_namespace() { NAMESPACE.blocking_lock() } else { HOST.blocking_lock() }
}

/// Whether this thread is in another network namespace than the process.
fn is_in_namespace() -> bool {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).ok();
    namespace("thread-self") != namespace("self")
}

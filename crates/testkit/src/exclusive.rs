//! One test at a time: two cores carry one cluster of processes, and a test that measures must not
//! run beside another.

use tokio::sync::{Mutex, MutexGuard};

static EXCLUSIVE: Mutex<()> = Mutex::const_new(());

/// Waits until no other test of this binary holds the machine.
pub async fn lock() -> MutexGuard<'static, ()> {
    EXCLUSIVE.lock().await
}

/// The same outside of a runtime.
pub fn blocking_lock() -> MutexGuard<'static, ()> {
    EXCLUSIVE.blocking_lock()
}

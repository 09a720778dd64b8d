//! One request at a server, from before it is sent until its response has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::OwnedSemaphorePermit;

/// Requests at one server; clones share the count.
#[derive(Clone, Debug, Default)]
pub(super) struct Load(Arc<AtomicUsize>);

/// Counts as a request until it is dropped.
#[derive(Debug)]
pub(super) struct InFlight {
    load: Load,
    /// One of the requests at all servers.
    _permit: Arc<OwnedSemaphorePermit>,
}

impl Load {
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl InFlight {
    pub(super) fn new(load: &Load, permit: &Arc<OwnedSemaphorePermit>) -> Self {
        load.0.fetch_add(1, Ordering::Relaxed);
        Self { load: load.clone(), _permit: Arc::clone(permit) }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.load.0.fetch_sub(1, Ordering::Relaxed);
    }
}

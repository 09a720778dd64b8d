//! What one request takes up of its server: its part of the load, a place, a permit. It is held by
//! the response and by the body of the request, whichever ends last.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::OwnedSemaphorePermit;

use super::adaptive_limit::Slot;

/// Requests at one server; clones share the count.
#[derive(Clone, Debug, Default)]
pub(super) struct Load(Arc<AtomicUsize>);

/// Given back when it is dropped.
#[derive(Debug)]
pub(super) struct AtServer {
    load: Load,
    /// Its place among those of its server, if they are limited.
    slot: Option<Slot>,
    /// One of the requests at all servers.
    _permit: Arc<OwnedSemaphorePermit>,
}

impl Load {
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl AtServer {
    pub(super) fn new(load: &Load, slot: Option<Slot>, permit: &Arc<OwnedSemaphorePermit>) -> Self {
        load.0.fetch_add(1, Ordering::Relaxed);
        Self { load: load.clone(), slot, _permit: Arc::clone(permit) }
    }

    pub(super) fn slot(&self) -> Option<&Slot> {
        self.slot.as_ref()
    }

    /// Its place is free: what passes now is not a request.
    pub(super) fn is_tunnel(&mut self) {
        self.slot = None;
    }
}

impl Drop for AtServer {
    fn drop(&mut self) {
        self.load.0.fetch_sub(1, Ordering::Relaxed);
    }
}

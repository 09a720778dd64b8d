//! How many fine windows a store has, how many it may have, and the memory they take.
//!
//! Each fine window holds a [`Place`] for as long as it lives. Relaxed atomics suffice: the numbers
//! order nothing else. **Invariant:** never more than `max` places are taken at a time, clones
//! aside.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The fine windows of a store.
#[derive(Debug, Default)]
pub struct FineKeys {
    max: usize,
    keys: AtomicUsize,
    bytes: AtomicUsize,
}

/// One of the fine windows of a [`FineKeys`], counted until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    fine_keys: Arc<FineKeys>,
    bytes: u32,
}

// === impl FineKeys ===

impl FineKeys {
    /// Room for the fine windows of `max` keys.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, ..Self::default() })
    }

    /// Keys that have a fine window.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Memory of all fine windows.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// A place for one more, if there is room.
    pub(super) fn take(self: &Arc<Self>) -> Option<Place> {
        let one_more = |keys: usize| (keys < self.max).then_some(keys + 1);
        self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Place { fine_keys: Arc::clone(self), bytes: 0 })
    }
}

// === impl Place ===

impl Place {
    #[inline]
    pub(super) fn resize(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if bytes != self.bytes {
            self.fine_keys.bytes.fetch_add(bytes as usize, Ordering::Relaxed);
            self.fine_keys.bytes.fetch_sub(self.bytes as usize, Ordering::Relaxed);
            self.bytes = bytes;
        }
    }
}

/// A clone lives for the length of a merge, and may exceed the bound.
impl Clone for Place {
    fn clone(&self) -> Self {
        self.fine_keys.keys.fetch_add(1, Ordering::Relaxed);
        self.fine_keys.bytes.fetch_add(self.bytes as usize, Ordering::Relaxed);
        Self { fine_keys: Arc::clone(&self.fine_keys), bytes: self.bytes }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.fine_keys.keys.fetch_sub(1, Ordering::Relaxed);
        self.fine_keys.bytes.fetch_sub(self.bytes as usize, Ordering::Relaxed);
    }
}

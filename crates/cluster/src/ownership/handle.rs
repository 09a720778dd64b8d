//! What this node may decide now, as read by each strict decision.
//!
//! Written when a lease is renewed or a range changes hands, read inside the lock of each decision:
//! one atomic load for the lease, one for the ranges, and a binary search.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tidegate_limiter::policy::Scope;
use tidegate_limiter::units::Monotonic;
use tidegate_ownership::Epoch;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;
use tokio::time::Instant;

/// What this node may decide, per ring; cheap to clone.
#[derive(Clone, Debug)]
pub struct Ownership {
    /// By [`Scope`].
    rings: Arc<[PublishedRing; 2]>,
    start: Instant,
}

#[derive(Debug, Default)]
struct PublishedRing {
    /// [`Monotonic`], nanoseconds.
    lease_until: AtomicU64,
    owned_ranges: ArcSwap<OwnedRanges>,
}

/// What this node decides of one ring while it has the lease, and what it handed over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedRanges {
    pub epoch: Epoch,
    /// The ranges that this node holds and has not frozen for a handoff.
    pub decides: Ranges,
    /// The ranges that were handed over, and to which node.
    pub transferred: Vec<(Ranges, NodeId)>,
}

impl Ownership {
    /// A node that decides nothing yet.
    pub fn new() -> Self {
        Self { rings: Arc::default(), start: Instant::now() }
    }

    /// A node without a cluster: it decides everything, without a lease.
    pub fn standalone() -> Self {
        let ownership = Self::new();
        for scope in [Scope::Region, Scope::Global] {
            let owned_ranges = OwnedRanges { decides: Ranges::all(), ..OwnedRanges::default() };
            ownership.set_owned_ranges(scope, owned_ranges);
            ownership.set_lease(scope, Monotonic::NEVER);
        }
        ownership
    }

    /// Whether this node may decide the key at `token` now. To be called inside the lock under
    /// which the decision is made: after a freeze every lock is taken once, which waits for all
    /// decisions that were made before it.
    pub fn decides(&self, scope: Scope, token: u64) -> bool {
        self.has_lease(scope)
            && self.rings[scope as usize].owned_ranges.load().decides.contains(token)
    }

    /// Whether a quorum recognises this node.
    pub fn has_lease(&self, scope: Scope) -> bool {
        let until = self.rings[scope as usize].lease_until.load(Ordering::Relaxed);
        // A standalone node does not read the clock.
        until == Monotonic::NEVER.as_nanos() || self.monotonic().as_nanos() < until
    }

    /// The node that this node handed the key at `token` to.
    pub fn transferred_to(&self, scope: Scope, token: u64) -> Option<NodeId> {
        let owned_ranges = self.rings[scope as usize].owned_ranges.load();
        let mut transferred = owned_ranges.transferred.iter();
        transferred.find(|(ranges, _)| ranges.contains(token)).map(|(_, to)| to.clone())
    }

    pub fn owned_ranges(&self, scope: Scope) -> Arc<OwnedRanges> {
        self.rings[scope as usize].owned_ranges.load_full()
    }

    pub fn set_owned_ranges(&self, scope: Scope, owned_ranges: OwnedRanges) {
        self.rings[scope as usize].owned_ranges.store(Arc::new(owned_ranges));
    }

    pub fn set_lease(&self, scope: Scope, until: Monotonic) {
        self.rings[scope as usize].lease_until.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// Now, as time since this value was created.
    pub fn monotonic(&self) -> Monotonic {
        self.monotonic_at(Instant::now())
    }

    pub fn monotonic_at(&self, instant: Instant) -> Monotonic {
        let since = instant.saturating_duration_since(self.start);
        Monotonic::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Default for Ownership {
    fn default() -> Self {
        Self::new()
    }
}

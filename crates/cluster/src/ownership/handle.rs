//! What this node may decide at this moment, as every strict decision asks it.
//!
//! Written when a lease is renewed or a range changes hands, read inside the lock of each decision:
//! one atomic load for the lease, one for the ranges, and a binary search.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tidegate_limiter::policy::Scope;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;
use tidegate_ownership::{Epoch, Monotonic};
use tokio::time::Instant;

/// What this node may decide, on each ring; cheap to clone.
#[derive(Clone, Debug)]
pub struct Ownership {
    rings: Arc<[Ring; 2]>,
    start: Instant,
}

#[derive(Debug)]
struct Ring {
    /// Nanoseconds since the start.
    lease_until: AtomicU64,
    owned_ranges: ArcSwap<OwnedRanges>,
}

/// The ranges of one ring, seen from this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedRanges {
    /// Where this node stands.
    pub epoch: Epoch,
    /// What it decides: held, and not frozen.
    pub decides: Ranges,
    /// What it handed over under this epoch, and to whom.
    pub given: Vec<(Ranges, NodeId)>,
}

impl Ownership {
    /// Of a node that decides nothing yet.
    pub fn new() -> Self {
        let ring = || Ring { lease_until: AtomicU64::new(0), owned_ranges: ArcSwap::default() };
        Self { rings: Arc::new([ring(), ring()]), start: Instant::now() }
    }

    /// Of a node that stands alone: it decides everything, for ever.
    pub fn alone() -> Self {
        let ownership = Self::new();
        for scope in [Scope::Region, Scope::Global] {
            ownership.hold(scope, OwnedRanges { decides: Ranges::all(), ..OwnedRanges::default() });
            ownership.ring(scope).lease_until.store(u64::MAX, Ordering::Relaxed);
        }
        ownership
    }

    /// Whether this node may decide the key at `token` now. Ask it inside the lock that the
    /// decision is made under: a freeze takes every lock once after it, and so finds all that was
    /// decided.
    pub fn owns(&self, scope: Scope, token: u64) -> bool {
        self.has_lease(scope) && self.ring(scope).owned_ranges.load().decides.contains(token)
    }

    /// Whether a quorum recognises this node.
    pub fn has_lease(&self, scope: Scope) -> bool {
        let until = self.ring(scope).lease_until.load(Ordering::Relaxed);
        // Whoever stands alone need not look at the clock.
        until == u64::MAX || self.monotonic().as_nanos() < until
    }

    /// Whom this node handed the key at `token` to, if it did.
    pub fn holder(&self, scope: Scope, token: u64) -> Option<NodeId> {
        let owned_ranges = self.ring(scope).owned_ranges.load();
        let given = owned_ranges.given.iter().find(|(ranges, _)| ranges.contains(token));
        given.map(|(_, to)| to.clone())
    }

    /// The ranges of one ring.
    pub fn owned_ranges(&self, scope: Scope) -> Arc<OwnedRanges> {
        self.ring(scope).owned_ranges.load_full()
    }

    /// Replaces the ranges of one ring.
    pub fn hold(&self, scope: Scope, owned_ranges: OwnedRanges) {
        self.ring(scope).owned_ranges.store(Arc::new(owned_ranges));
    }

    /// The lease of one ring runs until then.
    pub fn lease(&self, scope: Scope, until: Monotonic) {
        self.ring(scope).lease_until.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// Now.
    pub fn monotonic(&self) -> Monotonic {
        self.monotonic_at(Instant::now())
    }

    /// That instant as the machines count time: since this value was made.
    pub fn monotonic_at(&self, instant: Instant) -> Monotonic {
        let since = instant.saturating_duration_since(self.start);
        Monotonic::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    fn ring(&self, scope: Scope) -> &Ring {
        match scope {
            Scope::Region => &self.rings[0],
            Scope::Global => &self.rings[1],
        }
    }
}

impl Default for Ownership {
    fn default() -> Self {
        Self::new()
    }
}

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
use tidegate_ownership::{Epoch, Moment};
use tokio::time::Instant;

/// What this node may decide, on each ring; cheap to clone.
#[derive(Clone, Debug)]
pub struct Tenancy {
    rings: Arc<[Ring; 2]>,
    start: Instant,
}

#[derive(Debug)]
struct Ring {
    /// Nanoseconds since the start.
    lease_until: AtomicU64,
    holding: ArcSwap<Holding>,
}

/// The ranges of one ring, seen from this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Where this node stands.
    pub epoch: Epoch,
    /// What it decides: held, and not frozen.
    pub decides: Ranges,
    /// What it handed over under this epoch, and to whom.
    pub given: Vec<(Ranges, NodeId)>,
}

impl Tenancy {
    /// Of a node that decides nothing yet.
    pub fn new() -> Self {
        let ring = || Ring { lease_until: AtomicU64::new(0), holding: ArcSwap::default() };
        Self { rings: Arc::new([ring(), ring()]), start: Instant::now() }
    }

    /// Of a node that stands alone: it decides everything, for ever.
    pub fn alone() -> Self {
        let tenancy = Self::new();
        for scope in [Scope::Region, Scope::Global] {
            tenancy.hold(scope, Holding { decides: Ranges::all(), ..Holding::default() });
            tenancy.ring(scope).lease_until.store(u64::MAX, Ordering::Relaxed);
        }
        tenancy
    }

    /// Whether this node may decide the key at `place` now. Ask it inside the lock that the
    /// decision is made under: a freeze takes every lock once after it, and so finds all that was
    /// decided.
    pub fn permits(&self, scope: Scope, place: u64) -> bool {
        self.has_lease(scope) && self.ring(scope).holding.load().decides.contains(place)
    }

    /// Whether a quorum recognises this node.
    pub fn has_lease(&self, scope: Scope) -> bool {
        let until = self.ring(scope).lease_until.load(Ordering::Relaxed);
        // Whoever stands alone need not look at the clock.
        until == u64::MAX || self.moment().as_nanos() < until
    }

    /// Whom this node handed the key at `place` to, if it did.
    pub fn holder(&self, scope: Scope, place: u64) -> Option<NodeId> {
        let holding = self.ring(scope).holding.load();
        let given = holding.given.iter().find(|(ranges, _)| ranges.contains(place));
        given.map(|(_, to)| to.clone())
    }

    /// The ranges of one ring.
    pub fn holding(&self, scope: Scope) -> Arc<Holding> {
        self.ring(scope).holding.load_full()
    }

    /// Replaces the ranges of one ring.
    pub fn hold(&self, scope: Scope, holding: Holding) {
        self.ring(scope).holding.store(Arc::new(holding));
    }

    /// The lease of one ring runs until then.
    pub fn lease(&self, scope: Scope, until: Moment) {
        self.ring(scope).lease_until.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// Now.
    pub fn moment(&self) -> Moment {
        self.moment_of(Instant::now())
    }

    /// That instant as the machines count time: since this value was made.
    pub fn moment_of(&self, instant: Instant) -> Moment {
        let since = instant.saturating_duration_since(self.start);
        Moment::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    fn ring(&self, scope: Scope) -> &Ring {
        match scope {
            Scope::Region => &self.rings[0],
            Scope::Global => &self.rings[1],
        }
    }
}

impl Default for Tenancy {
    fn default() -> Self {
        Self::new()
    }
}

//! What this node may decide now, as read by each strict decision.
//!
//! Written when a lease is renewed or a range changes hands, read inside the lock of each decision:
//! one atomic load and a binary search, for a global key also the hashes of its home. Lease and
//! ranges are published as one value, because they are valid only together: a lease that begins
//! anew comes with the ranges that the node dropped, and a reader that saw it with the ranges of
//! before would decide keys that others own.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_limiter::policy::Scope;
use tidegate_limiter::units::Monotonic;
use tidegate_ownership::Epoch;
use tidegate_ownership::homes::Homes;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;

use crate::environment::Clock;
use crate::replication::Decides;

/// What this node may decide; cheap to clone.
#[derive(Clone, Debug)]
pub struct Ownership {
    right: Arc<ArcSwap<RingRight>>,
    clock: Arc<dyn Clock>,
}

/// What this node may decide, and until when.
#[derive(Clone, Debug, Default)]
pub struct RingRight {
    pub leases: Leases,
    pub owned_ranges: Arc<OwnedRanges>,
    /// When these ranges were published: what other owners granted in them is not known here.
    pub since: Monotonic,
    /// How often a lease had ended before it was renewed.
    interruptions: Interruptions,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Interruptions {
    own: u64,
    region: u64,
}

/// That a node decides a key: the same as long as no lease was interrupted, in which time no other
/// node has decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerm(Interruptions);

/// When leases end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    /// That of this node.
    pub own: Monotonic,
    /// That of its region, without which it decides no global key.
    pub region: Monotonic,
}

/// What this node decides while it has the lease, and what it handed over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedRanges {
    pub epoch: Epoch,
    /// The ranges that this node holds and has not frozen for a handoff.
    pub decides: Ranges,
    /// The ranges that were handed over, and to which node.
    pub transferred: Vec<(Ranges, NodeId)>,
    /// Which global keys are decided in this region.
    pub homes: Homes,
}

impl Ownership {
    /// A node that decides nothing yet.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { right: Arc::default(), clock }
    }

    /// A node without a cluster: it decides everything, without a lease.
    pub fn standalone(clock: Arc<dyn Clock>) -> Self {
        let ownership = Self::new(clock);
        let homes = Homes::new(String::new(), Vec::new());
        let owned_ranges = OwnedRanges { decides: Ranges::all(), homes, ..OwnedRanges::default() };
        ownership.publish(Leases { own: Monotonic::NEVER, region: Monotonic::NEVER }, owned_ranges);
        ownership
    }

    /// Whether this node may decide the key at `token`, its position on the ring, now. To be called
    /// inside the lock under which the decision is made: after a freeze every lock is taken once,
    /// which waits for all decisions that were made before it.
    pub fn decides(&self, scope: Scope, token: u64) -> bool {
        self.decides_by(&self.right.load(), scope, token)
    }

    /// As [`Ownership::decides`], to be compared later: what was decided under one term, and is
    /// confirmed under it, no other node has decided meanwhile.
    pub fn lease_term(&self, scope: Scope, token: u64) -> Option<LeaseTerm> {
        let right = self.right.load();
        let Interruptions { own, region } = right.interruptions;
        let region = if scope == Scope::Global { region } else { 0 };
        let lease_term = LeaseTerm(Interruptions { own, region });
        self.decides_by(&right, scope, token).then_some(lease_term)
    }

    fn decides_by(&self, right: &RingRight, scope: Scope, token: u64) -> bool {
        let OwnedRanges { decides, homes, .. } = &*right.owned_ranges;
        let is_of_region = || homes.decides(token) && self.is_before(right.leases.region);
        self.is_before(right.leases.own)
            && decides.contains(token)
            && (scope == Scope::Region || is_of_region())
    }

    /// Whether a majority of the voters grants this node a lease.
    pub fn has_lease(&self) -> bool {
        self.is_before(self.right.load().leases.own)
    }

    /// Whether a majority of the global voters grants this node's region a lease; always true where
    /// no global map is agreed on.
    pub fn has_region_lease(&self) -> bool {
        self.is_before(self.right.load().leases.region)
    }

    fn is_before(&self, until: Monotonic) -> bool {
        // A standalone node does not read the clock.
        until == Monotonic::NEVER || self.monotonic() < until
    }

    /// The node that this node handed the key at `token` to.
    pub fn transferred_to(&self, token: u64) -> Option<NodeId> {
        let right = self.right.load();
        let mut transferred = right.owned_ranges.transferred.iter();
        transferred.find(|(ranges, _)| ranges.contains(token)).map(|(_, to)| to.clone())
    }

    pub fn owned_ranges(&self) -> Arc<OwnedRanges> {
        Arc::clone(&self.right.load().owned_ranges)
    }

    /// The lease and the ranges as one value.
    pub fn right(&self) -> Arc<RingRight> {
        self.right.load_full()
    }

    /// Publishes a lease together with the ranges that are held under it. Only one thread at a time
    /// may publish.
    pub fn publish(&self, leases: Leases, owned_ranges: OwnedRanges) {
        let (owned_ranges, since) = (Arc::new(owned_ranges), self.monotonic());
        let interruptions = self.interruptions(since);
        self.right.store(Arc::new(RingRight { leases, owned_ranges, since, interruptions }));
    }

    /// Publishes other ends of the leases; the ranges stay.
    pub fn renew(&self, leases: Leases) {
        let right = self.right();
        if right.leases != leases {
            let interruptions = self.interruptions(self.monotonic());
            self.right.store(Arc::new(RingRight { leases, interruptions, ..(*right).clone() }));
        }
    }

    /// With those of the leases that have ended by now.
    fn interruptions(&self, now: Monotonic) -> Interruptions {
        let RingRight { leases, interruptions, .. } = &**self.right.load();
        Interruptions {
            own: interruptions.own + u64::from(leases.own <= now),
            region: interruptions.region + u64::from(leases.region <= now),
        }
    }

    /// Now, by the clock of the lease.
    pub fn monotonic(&self) -> Monotonic {
        self.clock.monotonic()
    }
}

impl Decides for Ownership {
    fn decides(&self, scope: Scope, token: u64) -> bool {
        Self::decides(self, scope, token)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tidegate_limiter::units::Timestamp;

    use super::*;

    /// A clock a nanosecond after its start.
    #[derive(Debug)]
    struct Stopped;

    impl Clock for Stopped {
        fn monotonic(&self) -> Monotonic {
            Monotonic::from_nanos(1)
        }

        fn now(&self) -> Timestamp {
            Timestamp::EPOCH
        }

        fn system(&self) -> Timestamp {
            Timestamp::EPOCH
        }

        fn slew(&self, _: i64) {}

        fn step(&self, _: i64) {}
    }

    /// A lease that was interrupted begins anew without ranges. The writer alternates between a
    /// lease that has expired, with all ranges, and one that is valid, with none.
    #[test]
    fn no_reader_sees_a_new_lease_with_the_ranges_of_the_old_one() {
        const ROUNDS: usize = 200_000;
        let ownership = Ownership::new(Arc::new(Stopped));
        let all = OwnedRanges { decides: Ranges::all(), ..OwnedRanges::default() };
        let is_done = AtomicBool::new(false);
        let leases = |own| Leases { own, region: Monotonic::NEVER };
        ownership.publish(leases(Monotonic::START), all.clone());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    assert!(!ownership.decides(Scope::Region, 7));
                    let right = ownership.right();
                    let has_all = right.owned_ranges.decides == Ranges::all();
                    assert_ne!(right.leases.own == Monotonic::NEVER, has_all);
                }
            });
            for _ in 0..ROUNDS {
                ownership.publish(leases(Monotonic::NEVER), OwnedRanges::default());
                ownership.publish(leases(Monotonic::START), all.clone());
            }
            is_done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_lease_term_ends_when_its_lease_was_interrupted() {
        let ownership = Ownership::standalone(Arc::new(Stopped));
        let lease_terms =
            || [Scope::Region, Scope::Global].map(|scope| ownership.lease_term(scope, 7));
        let (later, never, over) = (Monotonic::from_nanos(9), Monotonic::NEVER, Monotonic::START);
        let before = lease_terms();
        assert!(before.iter().all(Option::is_some));
        ownership.renew(Leases { own: later, region: never });
        let ranges = OwnedRanges::clone(&ownership.owned_ranges());
        ownership.publish(Leases { own: never, region: never }, ranges.clone());
        assert_eq!(lease_terms(), before, "a renewal in time and a change of ranges are none");
        ownership.renew(Leases { own: never, region: over });
        assert_eq!(lease_terms(), [before[0], None]);
        ownership.renew(Leases { own: never, region: never });
        assert_eq!(lease_terms()[0], before[0]);
        assert_ne!(lease_terms()[1], before[1]);
        ownership.renew(Leases { own: over, region: never });
        assert_eq!(lease_terms(), [None, None]);
        ownership.publish(Leases { own: never, region: never }, ranges);
        assert!(lease_terms()[0].is_some_and(|lease_term| before[0] != Some(lease_term)));
    }

    #[test]
    fn a_renewed_lease_keeps_the_ranges() {
        let ownership = Ownership::standalone(Arc::new(Stopped));
        let decides = || [Scope::Region, Scope::Global].map(|scope| ownership.decides(scope, 7));
        assert_eq!(decides(), [true, true]);
        let (never, over) = (Monotonic::NEVER, Monotonic::START);
        ownership.renew(Leases { own: over, region: never });
        assert_eq!(decides(), [false, false]);
        ownership.renew(Leases { own: never, region: over });
        assert_eq!(decides(), [true, false], "global keys need the lease of the region");
        ownership.renew(Leases { own: never, region: never });
        assert_eq!(decides(), [true, true]);
    }
}

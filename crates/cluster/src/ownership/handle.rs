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
use tidegate_ownership::homes::Homes;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;
use tidegate_ownership::{Epoch, MemberId};

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
    /// How often the lease of the region had ended before it was renewed.
    region_interruptions: u64,
}

/// The time from which on nothing that a node counts for a key is displaced by another owner: what
/// it hands over in order goes on there with all counts. Another node takes a key over without them
/// only from a member that was evicted, and one that returns has another id. So a lease that ends
/// and begins anew ends no term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerTerm {
    member: Option<MemberId>,
    /// Of a global key: another region may have decided it between two leases of this one.
    region_interruptions: u64,
}

/// What has become of an [`OwnerTerm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The node decides the key, or has handed it over in order.
    Decides,
    /// It has no lease: it may decide the key again, or lose it.
    Waits,
    /// Another node may decide the key, or have decided it.
    Lost,
}

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
    /// This node's admission to the map.
    pub member: Option<MemberId>,
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

    /// As [`Ownership::decides`]: the term in which it is decided, for [`Ownership::standing`].
    pub fn owner_term(&self, scope: Scope, token: u64) -> Option<OwnerTerm> {
        let right = self.right.load();
        self.decides_by(&right, scope, token).then(|| right.owner_term(scope))
    }

    /// What has become of a term of a key with this scope.
    pub fn standing(&self, scope: Scope, term: OwnerTerm) -> Standing {
        let right = self.right.load();
        if right.owner_term(scope) != term {
            Standing::Lost
        } else if self.has_leases(&right, scope) {
            Standing::Decides
        } else {
            Standing::Waits
        }
    }

    fn decides_by(&self, right: &RingRight, scope: Scope, token: u64) -> bool {
        let OwnedRanges { decides, homes, .. } = &*right.owned_ranges;
        self.has_leases(right, scope)
            && decides.contains(token)
            && (scope == Scope::Region || homes.decides(token))
    }

    fn has_leases(&self, right: &RingRight, scope: Scope) -> bool {
        self.is_before(right.leases.own)
            && (scope == Scope::Region || self.is_before(right.leases.region))
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

    /// Whether nothing but ranges is missing to this node for global keys: its region has a lease,
    /// and it is agreed which keys are at home in it.
    pub fn may_hold_global_keys(&self) -> bool {
        let right = self.right.load();
        self.is_before(right.leases.region) && right.owned_ranges.homes.are_agreed()
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
        let region_interruptions = self.region_interruptions(since);
        let right = RingRight { leases, owned_ranges, since, region_interruptions };
        self.right.store(Arc::new(right));
    }

    /// Publishes other ends of the leases; the ranges stay.
    pub fn renew(&self, leases: Leases) {
        let right = self.right();
        if right.leases != leases {
            let region_interruptions = self.region_interruptions(self.monotonic());
            let right = RingRight { leases, region_interruptions, ..(*right).clone() };
            self.right.store(Arc::new(right));
        }
    }

    /// With that of a lease that has ended by now.
    fn region_interruptions(&self, now: Monotonic) -> u64 {
        let RingRight { leases, region_interruptions, .. } = &**self.right.load();
        region_interruptions + u64::from(leases.region <= now)
    }

    /// Now, by the clock of the lease.
    pub fn monotonic(&self) -> Monotonic {
        self.clock.monotonic()
    }
}

impl RingRight {
    fn owner_term(&self, scope: Scope) -> OwnerTerm {
        let region_interruptions =
            if scope == Scope::Global { self.region_interruptions } else { 0 };
        OwnerTerm { member: self.owned_ranges.member, region_interruptions }
    }
}

impl Decides for Ownership {
    fn has_lease(&self, scope: Scope) -> bool {
        self.has_leases(&self.right.load(), scope)
    }

    fn decides(&self, scope: Scope, token: u64) -> bool {
        Self::decides(self, scope, token)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tidegate_limiter::units::Timestamp;
    use tidegate_ownership::ranges::Range;

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

    const OWN: Scope = Scope::Region;
    const ALWAYS: Leases = Leases { own: Monotonic::NEVER, region: Monotonic::NEVER };

    #[test]
    fn a_term_goes_on_when_a_lease_is_interrupted_and_ends_with_that_of_the_region() {
        let ownership = Ownership::standalone(Arc::new(Stopped));
        let term_of = |scope| ownership.owner_term(scope, 7).expect("it is decided here");
        let terms = [OWN, Scope::Global].map(term_of);
        let standing = || {
            let [own, global] = terms;
            let of = |scope, term| ownership.standing(scope, term);
            (of(OWN, own), of(Scope::Global, global))
        };
        let over = Monotonic::START;
        for (own, region, expected) in [
            (Monotonic::from_nanos(9), ALWAYS.region, (Standing::Decides, Standing::Decides)),
            (over, ALWAYS.region, (Standing::Waits, Standing::Waits)),
            (ALWAYS.own, ALWAYS.region, (Standing::Decides, Standing::Decides)),
            (ALWAYS.own, over, (Standing::Decides, Standing::Waits)),
            // Another region may have decided it.
            (ALWAYS.own, ALWAYS.region, (Standing::Decides, Standing::Lost)),
        ] {
            ownership.renew(Leases { own, region });
            assert_eq!(standing(), expected, "{own:?} {region:?}");
        }
    }

    #[test]
    fn a_term_goes_on_with_what_is_handed_over_and_ends_with_the_admission() {
        let ownership = Ownership::standalone(Arc::new(Stopped));
        let half = Ranges::of([Range { first: 0, last: 1 << 62 }]);
        let (inside, outside) = (7, 1 << 63);
        let terms = || [inside, outside].map(|token| ownership.owner_term(OWN, token));
        let standing = |terms: [Option<OwnerTerm>; 2]| {
            let of = |term: Option<OwnerTerm>| {
                ownership.standing(OWN, term.expect("it was decided here"))
            };
            (of(terms[0]), of(terms[1]))
        };
        let all = OwnedRanges::clone(&ownership.owned_ranges());
        let before = terms();
        // Frozen for a handoff that fails.
        ownership.publish(ALWAYS, OwnedRanges { decides: half.clone(), ..all.clone() });
        assert_eq!(standing(before), (Standing::Decides, Standing::Decides));
        ownership.publish(ALWAYS, all.clone());
        assert_eq!(standing(before), (Standing::Decides, Standing::Decides));
        let released = OwnedRanges { decides: half, ..all.clone() };
        ownership.publish(ALWAYS, released);
        assert_eq!(standing(before), (Standing::Decides, Standing::Decides), "in order");
        ownership.publish(ALWAYS, all.clone());
        let before = terms();
        for id in 2..70 {
            ownership.publish(ALWAYS, OwnedRanges { member: Some(MemberId(id)), ..all.clone() });
            assert_eq!(standing(before), (Standing::Lost, Standing::Lost), "evicted and admitted");
        }
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

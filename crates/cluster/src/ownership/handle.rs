//! What this node may decide now, as read by each strict decision.
//!
//! Written when a lease is renewed or a range changes hands, read inside the lock of each decision:
//! one atomic load and a binary search, for a global key also the hashes of its home. Lease and
//! ranges are published as one value, because they are valid only together: a lease that begins
//! anew comes with the ranges that the node dropped, and a reader that saw it with the ranges of
//! before would decide keys that others own.

use std::collections::VecDeque;
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
    losses: Arc<Losses>,
    /// How often the lease of the region had ended before it was renewed.
    region_interruptions: u64,
}

/// The time in which a node is the owner of a key: the same as long as it has not lost it, in which
/// time no other node has decided it. A lease that ends and begins anew is no loss: another node
/// takes over only what was released, or was held by a member that the map has no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerTerm {
    losses: u64,
    /// Of a global key; another region may have decided it between two leases of this one.
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

/// The ranges that this node has lost since its start, in order.
#[derive(Clone, Debug, Default)]
struct Losses {
    /// The latest, with their numbers; at most [`LOSSES_MAX`].
    latest: VecDeque<(Ranges, u64)>,
    /// The number of the last loss that is not among them: each key may have been in it.
    forgotten: u64,
}

/// Losses that are told apart by their ranges. Beyond it a term may end early.
const LOSSES_MAX: usize = 64;

impl Losses {
    fn and(&self, lost: Ranges) -> Self {
        let mut losses = self.clone();
        let last = losses.latest.back().map_or(losses.forgotten, |(_, number)| *number);
        losses.latest.push_back((lost, last + 1));
        if losses.latest.len() > LOSSES_MAX
            && let Some((_, number)) = losses.latest.pop_front()
        {
            losses.forgotten = number;
        }
        losses
    }

    /// The number of the last one that `token` was in.
    fn of(&self, token: u64) -> u64 {
        let mut latest = self.latest.iter().rev();
        let found = latest.find(|(ranges, _)| ranges.contains(token));
        found.map_or(self.forgotten, |(_, number)| *number)
    }
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
    /// The ranges that this node holds.
    pub held: Ranges,
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
        let (decides, held) = (Ranges::all(), Ranges::all());
        let owned_ranges = OwnedRanges { decides, held, homes, ..OwnedRanges::default() };
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
        self.decides_by(&right, scope, token).then(|| right.owner_term(scope, token))
    }

    /// Whether this node is still the owner of `token` that it was in `term`.
    pub fn standing(&self, scope: Scope, token: u64, term: OwnerTerm) -> Standing {
        let right = self.right.load();
        if right.owner_term(scope, token) != term {
            Standing::Lost
        } else if self.has_leases(&right, scope) {
            Standing::Decides
        } else {
            Standing::Waits
        }
    }

    /// Whether this node holds the key under a lease; it may be handing it over.
    pub fn holds(&self, scope: Scope, token: u64) -> bool {
        let right = self.right.load();
        let _ = token;
        self.has_leases(&right, scope)
    }

    fn decides_by(&self, right: &RingRight, scope: Scope, token: u64) -> bool {
        let OwnedRanges { decides, homes, .. } = &*right.owned_ranges;
        self.is_before(right.leases.own)
            && decides.contains(token)
            && (scope == Scope::Region
                || homes.decides(token) && self.is_before(right.leases.region))
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
        let losses = self.losses(&owned_ranges);
        let right = RingRight { leases, owned_ranges, since, losses, region_interruptions };
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

    /// With what was held by an admission that is over.
    fn losses(&self, next: &OwnedRanges) -> Arc<Losses> {
        let right = self.right.load();
        let OwnedRanges { held, member, .. } = &*right.owned_ranges;
        // What is handed over in order has all counts with it.
        let lost = if *member == next.member { Ranges::EMPTY } else { held.clone() };
        if lost.is_empty() { Arc::clone(&right.losses) } else { Arc::new(right.losses.and(lost)) }
    }

    /// Now, by the clock of the lease.
    pub fn monotonic(&self) -> Monotonic {
        self.clock.monotonic()
    }
}

impl RingRight {
    fn owner_term(&self, scope: Scope, token: u64) -> OwnerTerm {
        let region_interruptions =
            if scope == Scope::Global { self.region_interruptions } else { 0 };
        OwnerTerm { losses: self.losses.of(token), region_interruptions }
    }
}

impl Decides for Ownership {
    fn holds(&self, scope: Scope, token: u64) -> bool {
        Self::holds(self, scope, token)
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
            let of = |scope, term| ownership.standing(scope, 7, term);
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
    fn a_term_ends_when_the_range_is_lost_or_the_admission_is_another() {
        let ownership = Ownership::standalone(Arc::new(Stopped));
        let half = Ranges::of([Range { first: 0, last: 1 << 62 }]);
        let (inside, outside) = (7, 1 << 63);
        let terms = || [inside, outside].map(|token| ownership.owner_term(OWN, token));
        let standing = |terms: [Option<OwnerTerm>; 2]| {
            let of = |(token, term): (u64, Option<OwnerTerm>)| {
                ownership.standing(OWN, token, term.expect("it was decided here"))
            };
            (of((inside, terms[0])), of((outside, terms[1])))
        };
        let all = OwnedRanges::clone(&ownership.owned_ranges());
        let before = terms();
        // Frozen for a handoff that fails.
        ownership.publish(ALWAYS, OwnedRanges { decides: half.clone(), ..all.clone() });
        assert_eq!(standing(before), (Standing::Decides, Standing::Decides));
        ownership.publish(ALWAYS, all.clone());
        assert_eq!(standing(before), (Standing::Decides, Standing::Decides));
        let released = OwnedRanges { decides: half.clone(), held: half, ..all.clone() };
        ownership.publish(ALWAYS, released);
        assert_eq!(standing(before), (Standing::Decides, Standing::Decides), "in order");
        ownership.publish(ALWAYS, all.clone());
        let before = terms();
        ownership.publish(ALWAYS, OwnedRanges { member: Some(MemberId(2)), ..all });
        assert_eq!(standing(before), (Standing::Lost, Standing::Lost), "evicted and admitted");
    }

    #[test]
    fn beyond_the_bound_of_losses_every_term_ends() {
        let part = |n: u64| Ranges::of([Range { first: n << 32, last: (n << 32) + 100 }]);
        let mut losses = Losses::default();
        for n in 1..=LOSSES_MAX as u64 {
            losses = losses.and(part(n));
        }
        assert_eq!((losses.of(7), losses.of((1 << 32) + 7)), (0, 1));
        losses = losses.and(part(100));
        assert_eq!((losses.of(7), losses.of((2 << 32) + 7)), (1, 2), "the first is forgotten");
        assert_eq!(losses.latest.len(), LOSSES_MAX);
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

//! Per-actor counters: the hits of every node in every slice of a window.
//!
//! # Idea
//!
//! In eventual mode every node decides locally and counts **only in its own counter**; the counters
//! of the others arrive a little later. A counter has one writer and only grows, so two copies of
//! it are joined by taking the maximum, whatever was lost, repeated or reordered on the network.
//!
//! # Formula
//!
//! Time is cut into slices of `window / sub_windows`. Each slice is a PN-counter made of two
//! G-counters, hits and refunds:
//!
//! ```text
//! value(slice) = max(0, Σ used[actor] − Σ refunded[actor])
//! merge        : used[actor] = max(used[actor], theirs[actor]);  the same for refunded
//! ```
//!
//! The newest `sub_windows + 1` slices matter; merging a newer slice drops the older ones.
//!
//! # Example
//!
//! A and B both hold `{A: 3, B: 4}` = 7. A admits 2 more and sends `{A: 5}`, B admits 1 and sends
//! `{B: 5}`. A node that receives both, in any order and any number of times, holds
//! `{A: 5, B: 5}` = 10.
//!
//! # Bound
//!
//! Until nodes have exchanged their counters each may admit up to the limit; over-admission is at
//! most the arrival rate of the cluster times the staleness. A counter holds at most
//! [`ACTOR_COUNT_MAX`]; at that value its slice reads as full, because further hits could not be
//! sent. A slice holds at most [`ACTORS_MAX`] actors; a merge drops further ones and reports how
//! many.
//!
//! Source: Shapiro et al., "A comprehensive study of convergent and commutative replicated data
//! types", INRIA RR-7506, 2011, section 3.1.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use crdts::{Dot, VClock};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::actor::ActorId;
use super::delta::{self, ACTOR_COUNT_MAX, ACTORS_MAX, Delta, DeltaSlice, shape_of};
use super::pn_counter::{self, MergeStats, PnCounter};
use crate::quota::Quota;
use crate::units::{Span, Timestamp};

/// The per-actor counters of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Delta", into = "Delta")]
pub struct ActorCounters {
    slice_ns: u64,
    slices_kept: u8,
    /// Newest first, sparse: a slice is present only if an actor counted in it. Most rules need
    /// two, which are stored inline to save a cache miss.
    slices: SmallVec<[Slice; 2]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Slice {
    index: u64,
    hits: PnCounter,
}

impl ActorCounters {
    /// Empty counters with the slices of `quota`.
    pub fn new(quota: &Quota) -> Self {
        let (slice_ns, slices_kept) = shape_of(quota);
        Self { slice_ns, slices_kept, slices: SmallVec::new() }
    }

    /// Whether they have the slices that `quota` counts in.
    pub fn fits(&self, quota: &Quota) -> bool {
        (self.slice_ns, self.slices_kept) == shape_of(quota)
    }

    /// The hits of slice `index`, all actors together.
    pub fn sum(&self, index: u64) -> u64 {
        self.slices.iter().find(|slice| slice.index == index).map_or(0, |slice| slice.hits.value())
    }

    /// The actors that counted or refunded in any slice.
    pub fn actors(&self) -> BTreeSet<ActorId> {
        let clocks =
            self.slices.iter().flat_map(|slice| [slice.hits.used(), slice.hits.refunded()]);
        clocks.flat_map(|clock| clock.dots.keys().copied()).collect()
    }

    /// All counters, for a peer.
    pub fn to_delta(&self) -> Delta {
        self.delta(self.slices.iter().map(Slice::to_delta))
    }

    /// The counters of the actors that `is_included` selects, in all slices: an earlier message may
    /// have been lost, or its receiver restarted, longer ago than a slice is long.
    pub fn delta_of(&self, is_included: impl Fn(ActorId) -> bool) -> Delta {
        let part = |clock: &VClock<ActorId>| VClock {
            dots: clock
                .dots
                .iter()
                .filter(|(actor, _)| is_included(**actor))
                .map(|(actor, count)| (*actor, *count))
                .collect(),
        };
        let slices = self.slices.iter().map(|slice| DeltaSlice {
            index: slice.index,
            used: part(slice.hits.used()),
            refunded: part(slice.hits.refunded()),
        });
        self.delta(slices.filter(|slice| !slice.is_empty()))
    }

    /// The counts as another region receives them: the counters of all local actors summed into one
    /// counter of `region`. The sum only grows, because each of its parts does; so a local actor
    /// must stay local after its node has left.
    pub fn region_view(&self, region: ActorId, is_local: impl Fn(ActorId) -> bool) -> Delta {
        let collapse = |clock: &VClock<ActorId>| -> VClock<ActorId> {
            let mut local = clock.clone();
            local.dots.retain(|actor, _| is_local(*actor));
            let sum = pn_counter::sum(&local).min(ACTOR_COUNT_MAX);
            (sum > 0).then(|| Dot::new(region, sum)).into_iter().collect()
        };
        let mut view = self.delta(self.slices.iter().map(|slice| DeltaSlice {
            index: slice.index,
            used: collapse(slice.hits.used()),
            refunded: collapse(slice.hits.refunded()),
        }));
        view.drop_empty();
        view
    }

    /// Merges a peer's counters. A delta of another shape belongs to another rule and is ignored.
    ///
    /// The delta must have passed [`Delta::validate`].
    pub fn merge(&mut self, delta: &Delta) -> MergeStats {
        // One entry stays reserved for the local actor, which is never refused.
        self.merge_within(delta, ACTORS_MAX - 1)
    }

    fn merge_within(&mut self, delta: &Delta, actors_max: usize) -> MergeStats {
        let mut stats = MergeStats::default();
        if (self.slice_ns, self.slices_kept) != (delta.slice_ns, delta.slices_kept) {
            return stats;
        }
        for theirs in delta.slices.iter().filter(|slice| !slice.is_empty()) {
            let Some(mine) = self.slice_mut(theirs.index) else { continue };
            stats = stats.and(mine.hits.merge(theirs, actors_max));
        }
        stats
    }

    /// From this instant on no counter matters.
    pub fn expires_at(&self) -> Timestamp {
        let Some(newest) = self.newest() else { return Timestamp::EPOCH };
        let end = newest.saturating_add(u64::from(self.slices_kept));
        Timestamp::from_nanos(end.saturating_mul(self.slice_ns))
    }

    /// Length of a slice in nanoseconds.
    pub(super) fn slice_ns(&self) -> u64 {
        self.slice_ns
    }

    /// The slice that a request at `now` counts in; never older than the newest one present.
    pub(super) fn index_at(&self, now: Timestamp) -> u64 {
        (now.as_nanos() / self.slice_ns.max(1)).max(self.newest().unwrap_or(0))
    }

    /// The values of slice `index` and those before it, endless.
    pub(super) fn newest_first(&self, index: u64) -> impl Iterator<Item = u64> {
        let mut slices = self.slices.iter().peekable();
        (0..).map(move |age| {
            let wanted = index.checked_sub(age);
            slices
                .next_if(|slice| Some(slice.index) == wanted)
                .map_or(0, |slice| slice.hits.value())
        })
    }

    /// Adds `hits` to the counter of `me` in slice `index`.
    pub(super) fn charge(&mut self, me: ActorId, hits: u64, index: u64) {
        if let Some(slice) = self.slice_mut(index) {
            slice.hits.charge(me, hits);
        }
    }

    /// Refunds hits in the counters of `me` in the `depth` slices up to `index`, the newest first,
    /// at most what they hold.
    pub(super) fn refund(&mut self, me: ActorId, mut refund: u64, index: u64, depth: usize) {
        let in_view = |slice: &&mut Slice| index - slice.index < depth as u64;
        for slice in self.slices.iter_mut().take_while(in_view) {
            refund -= slice.hits.refund(me, refund);
        }
    }

    /// Joins another copy of the same counter. Of two shapes the finer stays.
    pub(super) fn join(&mut self, other: Self) {
        match (self.slices_kept, self.slice_ns).cmp(&(other.slices_kept, other.slice_ns)) {
            Ordering::Less => *self = other,
            Ordering::Greater => {}
            Ordering::Equal => {
                self.merge(&other.to_delta());
            }
        }
    }

    /// Number of the newest slice present.
    pub(super) fn newest(&self) -> Option<u64> {
        self.slices.first().map(|slice| slice.index)
    }

    /// The slice `index`, created if necessary; `None` when it is too old to matter.
    fn slice_mut(&mut self, index: u64) -> Option<&mut Slice> {
        let kept = u64::from(self.slices_kept);
        let newest = self.newest().unwrap_or(index);
        if newest.saturating_sub(index) >= kept {
            return None;
        }
        if index > newest {
            self.slices.retain(|slice| index - slice.index < kept);
        }
        let at = self.slices.partition_point(|slice| slice.index > index);
        if self.slices.get(at).is_none_or(|slice| slice.index != index) {
            self.slices.insert(at, Slice { index, hits: PnCounter::default() });
        }
        self.slices.get_mut(at)
    }

    fn delta(&self, slices: impl Iterator<Item = DeltaSlice>) -> Delta {
        Delta { slice_ns: self.slice_ns, slices_kept: self.slices_kept, slices: slices.collect() }
    }
}

impl Slice {
    fn to_delta(&self) -> DeltaSlice {
        DeltaSlice {
            index: self.index,
            used: self.hits.used().clone(),
            refunded: self.hits.refunded().clone(),
        }
    }
}

impl TryFrom<Delta> for ActorCounters {
    type Error = delta::Error;

    /// Applies the bounds of a delta, except those that need a clock.
    fn try_from(delta: Delta) -> Result<Self, delta::Error> {
        delta.validate(&delta::Bounds {
            now: Timestamp::NEVER,
            ahead_max: Span::ZERO,
            actors_max: ACTORS_MAX,
        })?;
        let mut actor_counters = Self {
            slice_ns: delta.slice_ns,
            slices_kept: delta.slices_kept,
            slices: SmallVec::new(),
        };
        actor_counters.merge_within(&delta, ACTORS_MAX);
        Ok(actor_counters)
    }
}

impl From<ActorCounters> for Delta {
    fn from(actor_counters: ActorCounters) -> Self {
        actor_counters.to_delta()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Algorithm;

    const A: ActorId = ActorId::new(1);
    const B: ActorId = ActorId::new(2);
    const REGION: ActorId = ActorId::new(100);

    fn actor_counters() -> ActorCounters {
        let quota = Quota::simple(Algorithm::SlidingWindowCounter, 100, Span::from_secs(60));
        ActorCounters::new(&quota.expect("a valid quota"))
    }

    #[test]
    fn the_worked_example_holds() {
        let mut both = actor_counters();
        both.charge(A, 3, 7);
        both.charge(B, 4, 7);
        let (mut at_a, mut at_b) = (both.clone(), both.clone());
        at_a.charge(A, 2, 7);
        at_b.charge(B, 1, 7);
        for delta in [
            at_b.delta_of(|actor| actor == B),
            at_a.delta_of(|actor| actor == A),
            at_b.delta_of(|actor| actor == B),
        ] {
            both.merge(&delta);
        }
        assert_eq!(both.sum(7), 10);
        assert!(!both.merge(&at_a.delta_of(|actor| actor == A)).changed);
    }

    #[test]
    fn a_newer_slice_drops_the_old_ones_for_good() {
        let mut old = actor_counters();
        old.charge(A, 3, 7);
        let mut late = old.clone();
        late.charge(A, 1, 9);
        assert_eq!((late.sum(7), late.sum(9)), (0, 1));
        late.merge(&old.to_delta());
        assert_eq!((late.sum(7), late.sum(9)), (0, 1));
    }

    #[test]
    fn a_delta_of_one_actor_covers_every_slice() {
        let quota = Quota::new(crate::quota::QuotaParts {
            algorithm: Algorithm::SlidingWindowCounter,
            limit: 100,
            window: Span::from_secs(60),
            burst: 100,
            sub_windows: 3,
            queue: None,
        });
        let mut mine = ActorCounters::new(&quota.expect("a valid quota"));
        for index in 7..10 {
            mine.charge(A, 5, index);
            mine.charge(B, 1, index);
        }
        mine.refund(A, 7, 9, 4);
        let mut received = ActorCounters { slices: SmallVec::new(), ..mine.clone() };
        received.merge(&mine.delta_of(|actor| actor == A));
        assert_eq!((received.sum(9), received.sum(8), received.sum(7)), (0, 4, 5));
        assert_eq!(received.actors(), BTreeSet::from([A]));
    }

    #[test]
    fn a_region_view_has_one_counter() {
        let mut here = actor_counters();
        here.charge(A, 3, 7);
        here.charge(B, 4, 7);
        here.charge(ActorId::new(200), 50, 7);
        let view = here.region_view(REGION, |actor| actor == A || actor == B);
        let mut there = actor_counters();
        there.merge(&view);
        assert_eq!((there.sum(7), there.actors()), (7, BTreeSet::from([REGION])));
    }

    #[test]
    fn further_actors_are_refused_at_the_bound_but_never_the_local_one() {
        let mut mine = actor_counters();
        for actor in 0..ACTORS_MAX as u64 + 5 {
            let mut peer = actor_counters();
            peer.charge(ActorId::new(1_000 + actor), 1, 7);
            let stats = mine.merge(&peer.to_delta());
            assert_eq!(stats.refused, usize::from(actor >= ACTORS_MAX as u64 - 1));
        }
        mine.charge(A, 1, 7);
        assert_eq!(mine.sum(7), ACTORS_MAX as u64);
        assert_eq!(ActorCounters::try_from(mine.to_delta()), Ok(mine));
    }

    #[test]
    fn a_delta_fits_the_quota_that_it_counts_for() {
        let quota =
            |secs| Quota::simple(Algorithm::FixedWindow, 1, Span::from_secs(secs)).expect("valid");
        let delta = ActorCounters::new(&quota(60)).to_delta();
        assert!(delta.fits(&quota(60)));
        assert!(!delta.fits(&quota(61)));
    }
}

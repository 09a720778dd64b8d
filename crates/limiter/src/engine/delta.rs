//! Per-actor counters on the wire: the part of an eventual counter that one node sends to another.
//!
//! A delta is a plain value: slices of two vector clocks each (hits and refunds by actor), newest
//! first. It carries absolute counts, not increments, so a lost, repeated or reordered delta does
//! not change the result. It must pass [`Delta::validate`] before it is merged: a per-actor counter
//! only grows, so one absurd value would stay until its window is over.

use std::fmt;
use std::ops::Range;

use crdts::VClock;
use serde::{Deserialize, Serialize};

use crate::quota::{Quota, SUB_WINDOWS_MAX, WINDOW_MAX, WINDOW_MIN};
use crate::units::{Span, Timestamp};

/// Largest value of one per-actor counter. No limit is larger.
pub const ACTOR_COUNT_MAX: u64 = u32::MAX as u64;
/// Most actors in one slice, the local one included: for starts that cannot be folded into a total,
/// because the name of their node does not return.
pub const ACTORS_MAX: usize = 1024;

/// One writer of per-actor counters: a node in one of its starts, or a region as another region
/// sees it. Or the *total* of a node: all of its starts up to one of them, summed up. Or the *rest*
/// of a node: all other writers, summed up.
///
/// A restarted node is a new actor. So a per-actor counter only ever grows, although the count that
/// the node held in memory is lost.
///
/// Actors are ordered by writer, then by start, and a total comes right after its last start: what
/// it contains are the smaller actors of its writer. A rest comes after all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ActorId {
    writer: u64,
    /// Twice the start, and one more for a total; [`Self::REST`] for a rest.
    start: u64,
}

impl ActorId {
    /// No node gets to this start: generations are milliseconds.
    const REST: u64 = u64::MAX - 1;

    /// A writer that starts only once.
    pub const fn new(writer: u64) -> Self {
        Self { writer, start: 0 }
    }

    /// A writer in the start of this number, of which the lower 63 bits count.
    pub const fn of_start(writer: u64, start: u64) -> Self {
        Self { writer, start: start << 1 }
    }

    /// The total of all starts up to this one.
    #[must_use]
    pub const fn total(self) -> Self {
        Self { start: self.start | 1, ..self }
    }

    pub const fn is_total(self) -> bool {
        self.start & 1 == 1
    }

    /// Everything that other writers than this one counted.
    #[must_use]
    pub const fn rest(self) -> Self {
        Self { start: Self::REST, ..self }
    }

    pub const fn is_rest(self) -> bool {
        self.start == Self::REST
    }

    pub const fn writer(self) -> u64 {
        self.writer
    }

    /// The number of the start; of a total that of the last one.
    pub const fn start(self) -> u64 {
        self.start >> 1
    }

    /// The actors of the same writer that are smaller.
    pub(super) fn earlier(self) -> Range<Self> {
        Self { start: 0, ..self }..self
    }
}

impl fmt::Display for ActorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_rest() {
            return write!(f, "all but {:016x}", self.writer);
        }
        let kind = if self.is_total() { "total " } else { "" };
        write!(f, "{kind}{:016x}.{}", self.writer, self.start())
    }
}

/// All or some of the per-actor counters of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// Length of a slice in nanoseconds.
    pub slice_ns: u64,
    /// Number of slices that matter, counted back from the newest.
    pub slices_kept: u8,
    /// Newest first. Slices without counters are left out.
    pub slices: Vec<DeltaSlice>,
}

/// The per-actor counters of one slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeltaSlice {
    /// Number of the slice since the epoch.
    pub index: u64,
    /// Hits by actor.
    pub used: VClock<ActorId>,
    /// Refunded hits, by the actor that refunded them.
    pub refunded: VClock<ActorId>,
}

/// What a delta from a peer may contain.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Local time.
    pub now: Timestamp,
    /// How far a peer's clock may be ahead. A slice beyond that would push the present ones out.
    pub ahead_max: Span,
    /// Most actors in one slice, for hits and for refunds each.
    pub actors_max: usize,
}

/// Why a delta is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No quota has slices of this length and number.
    #[error("{slices_kept} slices of {slice_ns} ns match no valid quota; delta rejected")]
    Shape { slice_ns: u64, slices_kept: u8 },
    /// More slices than the delta itself says matter.
    #[error("{0} slices are more than the delta keeps; delta rejected")]
    Slices(usize),
    /// Slices out of order, repeated, or too old to matter.
    #[error("slice {0} is out of order or too old for the newest slice; delta rejected")]
    Order(u64),
    /// A slice that begins later than clocks may differ.
    #[error("slice {0} lies in the future; check the clock of the peer")]
    Future(u64),
    /// More actors than [`Bounds::actors_max`].
    #[error("{0} actors in one slice exceed the bound; delta rejected")]
    Actors(usize),
    /// A count of zero, or above what any limit can use.
    #[error("a count of {0} is outside 1 to {ACTOR_COUNT_MAX}; delta rejected")]
    Count(u64),
}

impl Delta {
    /// Checks everything that merging this delta could grow.
    ///
    /// # Errors
    ///
    /// Returns the first [`Error`] found. The delta must then not be merged.
    pub fn validate(&self, bounds: &Bounds) -> Result<(), Error> {
        let Self { slice_ns, slices_kept, ref slices } = *self;
        let window_slices = u64::from(slices_kept.saturating_sub(1));
        let window = slice_ns.saturating_mul(window_slices);
        let is_window = (WINDOW_MIN.as_nanos()..=WINDOW_MAX.as_nanos()).contains(&window);
        if window_slices == 0 || window_slices > u64::from(SUB_WINDOWS_MAX) || !is_window {
            return Err(Error::Shape { slice_ns, slices_kept });
        }
        if slices.len() > usize::from(slices_kept) {
            return Err(Error::Slices(slices.len()));
        }
        let last = bounds.now.plus(bounds.ahead_max).as_nanos() / slice_ns;
        let newest = slices.first().map_or(0, |slice| slice.index);
        if newest > last {
            return Err(Error::Future(newest));
        }
        let mut below = newest.saturating_add(1);
        for slice in slices {
            if slice.index >= below || newest - slice.index >= u64::from(slices_kept) {
                return Err(Error::Order(slice.index));
            }
            below = slice.index;
            validate_counts(&slice.used, bounds)?;
            validate_counts(&slice.refunded, bounds)?;
        }
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// Keeps only the counters of the actors that `is_kept` selects. A peer is authoritative for
    /// its own counter and a region for its own, not for others.
    pub fn retain_actors(&mut self, mut is_kept: impl FnMut(ActorId) -> bool) {
        for slice in &mut self.slices {
            slice.used.dots.retain(|actor, _| is_kept(*actor));
            slice.refunded.dots.retain(|actor, _| is_kept(*actor));
        }
        self.slices.retain(|slice| !slice.is_empty());
    }

    /// The newest total of `writer` in any slice.
    pub fn total_of(&self, writer: u64) -> Option<ActorId> {
        self.slices.iter().filter_map(|slice| slice.total_of(writer)).max()
    }

    /// Size in a message: one unit per counter and one per slice.
    pub fn weight(&self) -> usize {
        self.slices.iter().map(DeltaSlice::weight).sum()
    }

    /// Drops the oldest slices until the weight is at most `weight_max`.
    pub fn keep_newest(&mut self, weight_max: usize) {
        let mut weight = 0;
        self.slices.retain(|slice| {
            weight += slice.weight();
            weight <= weight_max
        });
    }

    /// An empty delta of the same shape.
    #[must_use]
    pub fn without_slices(&self) -> Self {
        Self { slice_ns: self.slice_ns, slices_kept: self.slices_kept, slices: Vec::new() }
    }
}

impl DeltaSlice {
    fn weight(&self) -> usize {
        1 + self.used.dots.len() + self.refunded.dots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.used.is_empty() && self.refunded.is_empty()
    }

    /// The newest total of `writer`.
    pub(super) fn total_of(&self, writer: u64) -> Option<ActorId> {
        let all = ActorId { writer, start: 0 }..=ActorId { writer, start: u64::MAX };
        let newest = |clock: &VClock<ActorId>| {
            clock.dots.range(all.clone()).rev().map(|(actor, _)| *actor).find(|it| it.is_total())
        };
        newest(&self.used).max(newest(&self.refunded))
    }
}

/// Length in nanoseconds and number of the slices that `quota` needs: those of a window, and one
/// that overlaps it in part.
pub(super) fn shape_of(quota: &Quota) -> (u64, u8) {
    (quota.slice().as_nanos(), quota.sub_windows().max(1).saturating_add(1))
}

fn validate_counts(clock: &VClock<ActorId>, bounds: &Bounds) -> Result<(), Error> {
    if clock.dots.len() > bounds.actors_max {
        return Err(Error::Actors(clock.dots.len()));
    }
    match clock.dots.values().find(|&&count| !(1..=ACTOR_COUNT_MAX).contains(&count)) {
        Some(&count) => Err(Error::Count(count)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds =
        Bounds { now: Timestamp::from_secs(600), ahead_max: Span::from_secs(30), actors_max: 3 };

    fn delta(slices: &[(u64, &[(u64, u64)])]) -> Delta {
        let slice = |&(index, counts): &(u64, &[(u64, u64)])| DeltaSlice {
            index,
            used: VClock { dots: counts.iter().map(|&(a, n)| (ActorId::new(a), n)).collect() },
            refunded: VClock::new(),
        };
        let slices = slices.iter().map(slice).collect();
        Delta { slice_ns: Span::from_secs(60).as_nanos(), slices_kept: 2, slices }
    }

    #[test]
    fn a_valid_delta_passes() {
        let sound = delta(&[(10, &[(1, 5), (2, ACTOR_COUNT_MAX)]), (9, &[(1, 7)])]);
        assert_eq!(sound.validate(&BOUNDS), Ok(()));
        assert_eq!(delta(&[]).validate(&BOUNDS), Ok(()));
    }

    #[test]
    fn a_delta_that_would_poison_a_counter_is_rejected() {
        let four: &[(u64, u64)] = &[(1, 1), (2, 1), (3, 1), (4, 1)];
        for (poison, error) in [
            (delta(&[(10, &[(1, u64::MAX)])]), Error::Count(u64::MAX)),
            (delta(&[(10, &[(1, ACTOR_COUNT_MAX + 1)])]), Error::Count(ACTOR_COUNT_MAX + 1)),
            (delta(&[(10, &[(1, 0)])]), Error::Count(0)),
            (delta(&[(10, four)]), Error::Actors(4)),
            (delta(&[(11, &[(1, 1)])]), Error::Future(11)),
            (delta(&[(u64::MAX, &[(1, 1)])]), Error::Future(u64::MAX)),
            (delta(&[(10, &[]), (10, &[])]), Error::Order(10)),
            (delta(&[(9, &[]), (10, &[])]), Error::Order(10)),
            (delta(&[(10, &[]), (8, &[])]), Error::Order(8)),
            (delta(&[(10, &[]), (9, &[]), (8, &[])]), Error::Slices(3)),
        ] {
            assert_eq!(poison.validate(&BOUNDS), Err(error));
        }
    }

    #[test]
    fn slices_of_no_quota_are_rejected() {
        for (slice_ns, slices_kept) in [
            (0, 2),
            (1, 2),
            (u64::MAX, 2),
            (1_000_000_000, 0),
            (1_000_000_000, 1),
            (1_000_000_000, 62),
        ] {
            let shapeless = Delta { slice_ns, slices_kept, slices: Vec::new() };
            assert_eq!(shapeless.validate(&BOUNDS), Err(Error::Shape { slice_ns, slices_kept }));
        }
    }

    #[test]
    fn a_delta_can_be_cut_to_the_counters_of_one_actor() {
        let mut mixed = delta(&[(10, &[(1, 5), (2, 6)]), (9, &[(2, 7)])]);
        mixed.retain_actors(|actor| actor == ActorId::new(1));
        assert_eq!(mixed, delta(&[(10, &[(1, 5)])]));
    }
}

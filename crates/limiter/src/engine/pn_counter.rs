//! The hits of one slice by actor: two G-counters, hits and refunds, and their difference.
//!
//! `value = max(0, Σ used − Σ refunded)` is cached, so a decision does not add up the counters. Two
//! nodes may refund the same hit at the same time; the difference then stops at zero.

use crdts::{CmRDT, Dot, VClock};

use super::actor::ActorId;
use super::delta::{ACTOR_COUNT_MAX, DeltaSlice};

/// What a merge of per-actor counters did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeStats {
    /// Whether any counter grew.
    pub changed: bool,
    /// Counters that were dropped because the slice already holds
    /// [`ACTORS_MAX`](super::delta::ACTORS_MAX) actors.
    pub refused: usize,
}

impl MergeStats {
    pub(super) fn and(self, other: Self) -> Self {
        Self { changed: self.changed || other.changed, refused: self.refused + other.refused }
    }
}

/// Hits and refunds of every actor, and their difference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PnCounter {
    used: VClock<ActorId>,
    refunded: VClock<ActorId>,
    value: u64,
}

impl PnCounter {
    /// Hits less refunds. A saturated counter may stand for more hits than it can hold, so refunds
    /// no longer lower the value.
    pub(super) fn value(&self) -> u64 {
        self.value
    }

    /// Hits by actor.
    pub(super) fn used(&self) -> &VClock<ActorId> {
        &self.used
    }

    /// Refunds by actor.
    pub(super) fn refunded(&self) -> &VClock<ActorId> {
        &self.refunded
    }

    /// Adds to the hits of `me`.
    pub(super) fn charge(&mut self, me: ActorId, hits: u64) {
        increase(&mut self.used, me, hits);
        self.refresh();
    }

    /// Adds to the refunds of `me`, at most the value. Returns how much was refunded.
    pub(super) fn refund(&mut self, me: ActorId, refund: u64) -> u64 {
        let part = refund.min(self.value);
        if part > 0 {
            increase(&mut self.refunded, me, part);
            self.refresh();
        }
        part
    }

    /// Takes the maximum of every counter, for at most `actors_max` actors.
    pub(super) fn merge(&mut self, theirs: &DeltaSlice, actors_max: usize) -> MergeStats {
        let used = merge_clock(&mut self.used, &theirs.used, actors_max);
        let refunded = merge_clock(&mut self.refunded, &theirs.refunded, actors_max);
        self.refresh();
        used.and(refunded)
    }

    fn refresh(&mut self) {
        let (used, refunded) = (sum(&self.used), sum(&self.refunded));
        let is_saturated = self.used.dots.values().any(|count| *count >= ACTOR_COUNT_MAX);
        self.value = if is_saturated { used } else { used.saturating_sub(refunded) };
    }
}

/// The sum over all actors.
pub(super) fn sum(clock: &VClock<ActorId>) -> u64 {
    clock.dots.values().fold(0, |sum, count| sum.saturating_add(*count))
}

fn increase(clock: &mut VClock<ActorId>, me: ActorId, by: u64) {
    let count = clock.get(&me).saturating_add(by).min(ACTOR_COUNT_MAX);
    clock.apply(Dot::new(me, count));
}

fn merge_clock(
    mine: &mut VClock<ActorId>,
    theirs: &VClock<ActorId>,
    actors_max: usize,
) -> MergeStats {
    let mut stats = MergeStats::default();
    for (actor, count) in &theirs.dots {
        let known = mine.get(actor);
        if *count <= known {
            continue;
        }
        if known == 0 && mine.dots.len() >= actors_max {
            stats.refused += 1;
            continue;
        }
        stats.changed = true;
        mine.apply(Dot::new(*actor, *count));
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ActorId = ActorId::new(1);
    const B: ActorId = ActorId::new(2);

    fn delta(counter: &PnCounter) -> DeltaSlice {
        let (used, refunded) = (counter.used.clone(), counter.refunded.clone());
        DeltaSlice { index: 0, used, refunded }
    }

    #[test]
    fn concurrent_refunds_of_one_hit_leave_zero() {
        let mut here = PnCounter::default();
        here.charge(A, 1);
        let mut there = here.clone();
        assert_eq!((here.refund(A, 5), there.refund(B, 5)), (1, 1));
        here.merge(&delta(&there), 10);
        assert_eq!(here.value(), 0);
    }

    #[test]
    fn a_saturated_counter_stays_full_after_a_refund() {
        let mut counter = PnCounter::default();
        counter.charge(A, u64::MAX);
        counter.refund(A, u64::MAX);
        assert_eq!(counter.value(), ACTOR_COUNT_MAX);
    }

    #[test]
    fn further_actors_are_refused_at_the_bound() {
        let mut counter = PnCounter::default();
        counter.charge(A, 1);
        let mut other = PnCounter::default();
        other.charge(B, 7);
        let refused = MergeStats { changed: false, refused: 1 };
        assert_eq!(counter.merge(&delta(&other), 1), refused);
        assert_eq!(counter.value(), 1);
    }
}

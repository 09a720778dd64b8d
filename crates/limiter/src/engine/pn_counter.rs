//! One bucket's hits by actor: two G-counters, hits and refunds, and their difference.
//!
//! `value = max(0, Σ used − Σ refunded)`, kept beside the columns so that an ask need not add them
//! up. Two nodes may give the same hit back at the same time; the difference then stops at zero.

use crdts::{CmRDT, Dot, VClock};

use super::ActorId;
use super::actor_counters::{ACTOR_COUNT_MAX, Merged};
use super::delta::DeltaBucket;

/// Hits and refunds of every actor, and what they come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PnCounter {
    used: VClock<ActorId>,
    refunded: VClock<ActorId>,
    value: u64,
}

impl PnCounter {
    /// Hits less refunds. A column at its end hides how much more was used, so it reads as full.
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

    /// Adds to `me`'s hits.
    pub(super) fn charge(&mut self, me: ActorId, hits: u64) {
        grow(&mut self.used, me, hits);
        self.refresh();
    }

    /// Adds to `me`'s refunds, at most the value. Returns how much was given back.
    pub(super) fn give_back(&mut self, me: ActorId, refund: u64) -> u64 {
        let part = refund.min(self.value);
        if part > 0 {
            grow(&mut self.refunded, me, part);
            self.refresh();
        }
        part
    }

    /// Takes the larger of every column, up to `columns_max` columns.
    pub(super) fn merge(&mut self, theirs: &DeltaBucket, columns_max: usize) -> Merged {
        let used = merge_clock(&mut self.used, &theirs.used, columns_max);
        let refunded = merge_clock(&mut self.refunded, &theirs.refunded, columns_max);
        self.refresh();
        used.and(refunded)
    }

    fn refresh(&mut self) {
        let (used, refunded) = (sum(&self.used), sum(&self.refunded));
        let is_blind = self.used.dots.values().any(|column| *column >= ACTOR_COUNT_MAX);
        self.value = if is_blind { used } else { used.saturating_sub(refunded) };
    }
}

/// All columns together.
pub(super) fn sum(clock: &VClock<ActorId>) -> u64 {
    clock.dots.values().fold(0, |sum, column| sum.saturating_add(*column))
}

fn grow(clock: &mut VClock<ActorId>, me: ActorId, by: u64) {
    let column = clock.get(&me).saturating_add(by).min(ACTOR_COUNT_MAX);
    clock.apply(Dot::new(me, column));
}

fn merge_clock(mine: &mut VClock<ActorId>, theirs: &VClock<ActorId>, columns_max: usize) -> Merged {
    let mut merged = Merged::default();
    for (actor, column) in &theirs.dots {
        let known = mine.get(actor);
        if *column <= known {
            continue;
        }
        if known == 0 && mine.dots.len() >= columns_max {
            merged.refused += 1;
            continue;
        }
        merged.changed = true;
        mine.apply(Dot::new(*actor, *column));
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ActorId = ActorId::new(1);
    const B: ActorId = ActorId::new(2);

    fn wire(counter: &PnCounter) -> DeltaBucket {
        let (used, refunded) = (counter.used.clone(), counter.refunded.clone());
        DeltaBucket { index: 0, used, refunded }
    }

    #[test]
    fn a_refund_that_two_nodes_made_at_once_leaves_zero() {
        let mut here = PnCounter::default();
        here.charge(A, 1);
        let mut there = here.clone();
        assert_eq!((here.give_back(A, 5), there.give_back(B, 5)), (1, 1));
        here.merge(&wire(&there), 10);
        assert_eq!(here.value(), 0);
    }

    #[test]
    fn a_column_at_its_end_reads_as_full_whatever_was_given_back() {
        let mut counter = PnCounter::default();
        counter.charge(A, u64::MAX);
        counter.give_back(A, u64::MAX);
        assert_eq!(counter.value(), ACTOR_COUNT_MAX);
    }

    #[test]
    fn further_columns_are_refused_at_the_bound() {
        let mut counter = PnCounter::default();
        counter.charge(A, 1);
        let mut other = PnCounter::default();
        other.charge(B, 7);
        let refused = Merged { changed: false, refused: 1 };
        assert_eq!(counter.merge(&wire(&other), 1), refused);
        assert_eq!(counter.value(), 1);
    }
}

//! Columns on the wire: what one node tells another of an eventual counter.
//!
//! A delta is a plain value: buckets of two vector clocks each (hits and refunds by actor), newest
//! first. It carries absolute counts, not increments, so that a lost, repeated or reordered delta
//! changes nothing in the end. Before it is merged it has to pass [`Delta::validate`]: a column
//! only ever grows, so a single absurd value would stay until its window is over.

use crdts::VClock;
use serde::{Deserialize, Serialize};

use super::ActorId;
use super::actor_counters::{ACTOR_COUNT_MAX, shape_of};
use crate::quota::{Quota, SUB_WINDOWS_MAX, WINDOW_MAX, WINDOW_MIN};
use crate::units::{Span, Timestamp};

/// The columns of one counter, or a part of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// Length of a bucket in ns.
    pub bucket_ns: u64,
    /// How many buckets matter, counted back from the newest.
    pub keep: u8,
    /// Newest first; buckets without columns are left out.
    pub buckets: Vec<DeltaBucket>,
}

/// The columns of one bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeltaBucket {
    /// Number of the bucket since the epoch.
    pub index: u64,
    /// Hits by actor.
    pub used: VClock<ActorId>,
    /// Hits given back, by the actor that gave them back.
    pub refunded: VClock<ActorId>,
}

/// What a delta from a peer may be.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// This node's time.
    pub now: Timestamp,
    /// How far a peer's clock may be ahead. A bucket beyond that would push the present ones out.
    pub ahead_max: Span,
    /// Most columns of one bucket, of hits and of refunds each.
    pub columns_max: usize,
}

/// Why a delta is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No quota has buckets like these.
    #[error("{keep} buckets of {bucket_ns} ns belong to no valid quota; refuse the peer's delta")]
    Shape {
        /// The length given.
        bucket_ns: u64,
        /// The number given.
        keep: u8,
    },
    /// More buckets than matter.
    #[error("{0} buckets are more than the delta itself says matter; refuse it")]
    Buckets(usize),
    /// Buckets out of order, repeated, or too old to matter.
    #[error("bucket {0} is out of order or too old for the delta's newest; refuse it")]
    Order(u64),
    /// A bucket that has not begun yet, beyond what clocks may differ.
    #[error("bucket {0} lies in the future; check the peer's clock")]
    Future(u64),
    /// More columns than bounded.
    #[error("{0} columns in one bucket are more than allowed; raise the bound or refuse the peer")]
    ActorCounters(usize),
    /// A column of zero, which says nothing, or above what any limit can use.
    #[error("a column of {0} is outside 1 to {ACTOR_COUNT_MAX}; refuse the peer's delta")]
    Column(u64),
}

impl Delta {
    /// Whether a peer may say this. Everything it can grow is bounded here, before it is merged.
    pub fn validate(&self, bounds: &Bounds) -> Result<(), Error> {
        let Self { bucket_ns, keep, ref buckets } = *self;
        let slices = u64::from(keep.saturating_sub(1));
        let window = bucket_ns.saturating_mul(slices);
        let is_window = (WINDOW_MIN.as_nanos()..=WINDOW_MAX.as_nanos()).contains(&window);
        if slices == 0 || slices > u64::from(SUB_WINDOWS_MAX) || !is_window {
            return Err(Error::Shape { bucket_ns, keep });
        }
        if buckets.len() > usize::from(keep) {
            return Err(Error::Buckets(buckets.len()));
        }
        let last = bounds.now.plus(bounds.ahead_max).as_nanos() / bucket_ns;
        let newest = buckets.first().map_or(0, |bucket| bucket.index);
        if newest > last {
            return Err(Error::Future(newest));
        }
        let mut below = newest.saturating_add(1);
        for bucket in buckets {
            if bucket.index >= below || newest - bucket.index >= u64::from(keep) {
                return Err(Error::Order(bucket.index));
            }
            below = bucket.index;
            validate_columns(&bucket.used, bounds)?;
            validate_columns(&bucket.refunded, bounds)?;
        }
        Ok(())
    }

    /// Whether it counts what `quota` counts, slice by slice.
    pub fn is_of(&self, quota: &Quota) -> bool {
        (self.bucket_ns, self.keep) == shape_of(quota)
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Keeps only the columns of the actors that `is_kept` names: a peer may speak for itself and a
    /// region for its own column, not for others.
    pub fn retain_actors(&mut self, mut is_kept: impl FnMut(ActorId) -> bool) {
        for bucket in &mut self.buckets {
            bucket.used.dots.retain(|actor, _| is_kept(*actor));
            bucket.refunded.dots.retain(|actor, _| is_kept(*actor));
        }
        self.drop_empty();
    }

    /// How much room it takes in a message: its columns, and one for every bucket.
    pub fn weight(&self) -> usize {
        self.buckets.iter().map(DeltaBucket::weight).sum()
    }

    /// Leaves out the oldest buckets until it weighs at most `weight_max`.
    pub fn keep_newest(&mut self, weight_max: usize) {
        let mut weight = 0;
        self.buckets.retain(|bucket| {
            weight += bucket.weight();
            weight <= weight_max
        });
    }

    /// Says nothing of the same counter.
    #[must_use]
    pub fn without_buckets(&self) -> Self {
        Self { bucket_ns: self.bucket_ns, keep: self.keep, buckets: Vec::new() }
    }

    /// Leaves out buckets that say nothing.
    pub(super) fn drop_empty(&mut self) {
        self.buckets.retain(|bucket| !bucket.is_empty());
    }
}

impl DeltaBucket {
    fn weight(&self) -> usize {
        1 + self.used.dots.len() + self.refunded.dots.len()
    }

    /// Whether it has no column at all.
    pub fn is_empty(&self) -> bool {
        self.used.is_empty() && self.refunded.is_empty()
    }
}

fn validate_columns(actor_counters: &VClock<ActorId>, bounds: &Bounds) -> Result<(), Error> {
    if actor_counters.dots.len() > bounds.columns_max {
        return Err(Error::ActorCounters(actor_counters.dots.len()));
    }
    match actor_counters.dots.values().find(|&&column| !(1..=ACTOR_COUNT_MAX).contains(&column)) {
        Some(&column) => Err(Error::Column(column)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ActorCounters;
    use crate::quota::Algorithm;

    const BOUNDS: Bounds =
        Bounds { now: Timestamp::from_secs(600), ahead_max: Span::from_secs(30), columns_max: 3 };

    fn delta(buckets: &[(u64, &[(u64, u64)])]) -> Delta {
        let bucket = |&(index, actor_counters): &(u64, &[(u64, u64)])| DeltaBucket {
            index,
            used: VClock {
                dots: actor_counters.iter().map(|&(a, n)| (ActorId::new(a), n)).collect(),
            },
            refunded: VClock::new(),
        };
        let buckets = buckets.iter().map(bucket).collect();
        Delta { bucket_ns: Span::from_secs(60).as_nanos(), keep: 2, buckets }
    }

    #[test]
    fn what_a_sound_peer_says_is_let_through() {
        let sound = delta(&[(10, &[(1, 5), (2, ACTOR_COUNT_MAX)]), (9, &[(1, 7)])]);
        assert_eq!(sound.validate(&BOUNDS), Ok(()));
        assert_eq!(delta(&[]).validate(&BOUNDS), Ok(()));
    }

    #[test]
    fn what_would_poison_a_counter_is_refused() {
        let four: &[(u64, u64)] = &[(1, 1), (2, 1), (3, 1), (4, 1)];
        for (poison, error) in [
            (delta(&[(10, &[(1, u64::MAX)])]), Error::Column(u64::MAX)),
            (delta(&[(10, &[(1, ACTOR_COUNT_MAX + 1)])]), Error::Column(ACTOR_COUNT_MAX + 1)),
            (delta(&[(10, &[(1, 0)])]), Error::Column(0)),
            (delta(&[(10, four)]), Error::ActorCounters(4)),
            (delta(&[(11, &[(1, 1)])]), Error::Future(11)),
            (delta(&[(u64::MAX, &[(1, 1)])]), Error::Future(u64::MAX)),
            (delta(&[(10, &[]), (10, &[])]), Error::Order(10)),
            (delta(&[(9, &[]), (10, &[])]), Error::Order(10)),
            (delta(&[(10, &[]), (8, &[])]), Error::Order(8)),
            (delta(&[(10, &[]), (9, &[]), (8, &[])]), Error::Buckets(3)),
        ] {
            assert_eq!(poison.validate(&BOUNDS), Err(error));
        }
    }

    #[test]
    fn buckets_of_no_quota_are_refused() {
        for (bucket_ns, keep) in [
            (0, 2),
            (1, 2),
            (u64::MAX, 2),
            (1_000_000_000, 0),
            (1_000_000_000, 1),
            (1_000_000_000, 62),
        ] {
            let shapeless = Delta { bucket_ns, keep, buckets: Vec::new() };
            assert_eq!(shapeless.validate(&BOUNDS), Err(Error::Shape { bucket_ns, keep }));
        }
    }

    #[test]
    fn a_peer_can_be_held_to_its_own_columns() {
        let mut said = delta(&[(10, &[(1, 5), (2, 6)]), (9, &[(2, 7)])]);
        said.retain_actors(|actor| actor == ActorId::new(1));
        assert_eq!(said, delta(&[(10, &[(1, 5)])]));
    }

    #[test]
    fn a_delta_knows_the_quota_it_counts_for() {
        let quota =
            |secs| Quota::simple(Algorithm::FixedWindow, 1, Span::from_secs(secs)).expect("valid");
        let said = ActorCounters::new(&quota(60)).wire();
        assert!(said.is_of(&quota(60)));
        assert!(!said.is_of(&quota(61)));
    }
}

//! Columns: every node's own share of the hits of every slice of a window.
//!
//! # Idea
//!
//! In eventual mode every node decides on the spot and counts **only in its own column**; it hears
//! of the others' columns a little later. Because nobody else writes a column and it only grows,
//! two copies of it are joined by taking the larger, whatever was lost, repeated or reordered on
//! the way.
//!
//! # Formula
//!
//! Time is cut into buckets of `window / sub_windows`. Each bucket is a PN-counter made of two
//! G-counters, hits and refunds:
//!
//! ```text
//! value(bucket) = max(0, Σ used[actor] − Σ refunded[actor])
//! merge         : used[actor] = max(used[actor], theirs[actor]);  refunded likewise
//! ```
//!
//! The newest `sub_windows + 1` buckets matter; merging with a newer bucket rolls the older ones
//! out.
//!
//! # Example
//!
//! A and B both knew `{A: 3, B: 4}` = 7. A admits 2 more and says `{A: 5}`, B admits 1 and says
//! `{B: 5}`. Whoever hears both, in any order and any number of times, holds `{A: 5, B: 5}` = 10.
//!
//! # Bound
//!
//! While nodes have not heard of each other each may admit up to the limit; over-admission is at
//! most the cluster's arrival rate times the staleness. A column holds at most [`ACTOR_COUNT_MAX`]; one
//! that has reached it reads as a full bucket, because more hits could not be told. A bucket holds
//! at most [`ACTORS_MAX`] columns; a merge refuses further ones and says how many.
//!
//! Source: Shapiro et al., "A comprehensive study of convergent and commutative replicated data
//! types", INRIA RR-7506, 2011, section 3.1.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use crdts::{Dot, VClock};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::ActorId;
use super::delta::{self, Delta, DeltaBucket};
use super::pn_counter::{self, PnCounter};
use crate::quota::Quota;
use crate::units::{Span, Timestamp};

/// The most a column can say: no limit is larger.
pub const ACTOR_COUNT_MAX: u64 = u32::MAX as u64;
/// Most columns of a bucket, the own one included. A cluster has tens of nodes; a node that
/// restarts within a long window leaves a column of its former generation behind.
pub const ACTORS_MAX: usize = 1024;

/// The columns of one counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Delta", into = "Delta")]
pub struct ActorCounters {
    bucket_ns: u64,
    keep: u8,
    /// Newest first, without gaps filled: a bucket stands here only if it has a column. Most rules
    /// need two, and those are read without a further wait for memory.
    buckets: SmallVec<[Bucket; 2]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Bucket {
    index: u64,
    hits: PnCounter,
}

/// What a merge did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Whether anything was news.
    pub changed: bool,
    /// Columns that found no place; their hits are not seen here.
    pub refused: usize,
}

impl Merged {
    /// Both together.
    pub(super) fn and(self, other: Self) -> Self {
        Self { changed: self.changed || other.changed, refused: self.refused + other.refused }
    }
}

/// Length and number of the buckets that `quota` needs.
pub(super) fn shape_of(quota: &Quota) -> (u64, u8) {
    let slices = quota.sub_windows().max(1);
    ((quota.window().as_nanos() / u64::from(slices)).max(1), slices.saturating_add(1))
}

impl ActorCounters {
    /// No hits yet.
    pub fn new(quota: &Quota) -> Self {
        let (bucket_ns, keep) = shape_of(quota);
        Self { bucket_ns, keep, buckets: SmallVec::new() }
    }

    /// Whether they count what `quota` counts, slice by slice.
    pub fn is_of(&self, quota: &Quota) -> bool {
        (self.bucket_ns, self.keep) == shape_of(quota)
    }

    /// The hits of bucket `index`, all actors together.
    pub fn sum(&self, index: u64) -> u64 {
        self.buckets
            .iter()
            .find(|bucket| bucket.index == index)
            .map_or(0, |bucket| bucket.hits.value())
    }

    /// Everybody who has a column.
    pub fn actors(&self) -> BTreeSet<ActorId> {
        let clocks =
            self.buckets.iter().flat_map(|bucket| [bucket.hits.used(), bucket.hits.refunded()]);
        clocks.flat_map(|clock| clock.dots.keys().copied()).collect()
    }

    /// All of it, for a peer.
    pub fn wire(&self) -> Delta {
        self.delta(self.buckets.iter().map(Bucket::wire))
    }

    /// What `me` counted and gave back.
    pub fn own(&self, me: ActorId) -> Delta {
        self.part(|actor| actor == me)
    }

    /// The columns of those that `is_part` names, in all buckets: a message may have been lost, or
    /// its receiver started anew, longer ago than a bucket is long.
    pub fn part(&self, is_part: impl Fn(ActorId) -> bool) -> Delta {
        let part = |clock: &VClock<ActorId>| VClock {
            dots: clock.dots.iter().filter(|(actor, _)| is_part(**actor)).map(copied).collect(),
        };
        let buckets = self.buckets.iter().map(|bucket| DeltaBucket {
            index: bucket.index,
            used: part(bucket.hits.used()),
            refunded: part(bucket.hits.refunded()),
        });
        self.delta(buckets.filter(|bucket| !bucket.is_empty()))
    }

    /// The same counts as another region is told them: all columns of local actors as one column of
    /// `region`. It only grows, because each of its parts does; so an actor that was local stays
    /// local when its node has left.
    pub fn region_view(&self, region: ActorId, is_local: impl Fn(ActorId) -> bool) -> Delta {
        let collapse = |clock: &VClock<ActorId>| -> VClock<ActorId> {
            let mut local = clock.clone();
            local.dots.retain(|actor, _| is_local(*actor));
            let sum = pn_counter::sum(&local).min(ACTOR_COUNT_MAX);
            (sum > 0).then(|| Dot::new(region, sum)).into_iter().collect()
        };
        let mut view = self.delta(self.buckets.iter().map(|bucket| DeltaBucket {
            index: bucket.index,
            used: collapse(bucket.hits.used()),
            refunded: collapse(bucket.hits.refunded()),
        }));
        view.drop_empty();
        view
    }

    /// Takes in what a peer says. Buckets of another shape are another rule's and are left alone.
    ///
    /// Give it only what [`Delta::validate`] has let through.
    pub fn merge(&mut self, delta: &Delta) -> Merged {
        // One place stays free for this node's own column, which is never refused.
        self.merge_within(delta, ACTORS_MAX - 1)
    }

    fn merge_within(&mut self, delta: &Delta, columns_max: usize) -> Merged {
        let mut merged = Merged::default();
        if (self.bucket_ns, self.keep) != (delta.bucket_ns, delta.keep) {
            return merged;
        }
        for theirs in delta.buckets.iter().filter(|bucket| !bucket.is_empty()) {
            let Some(mine) = self.bucket(theirs.index) else { continue };
            merged = merged.and(mine.hits.merge(theirs, columns_max));
        }
        merged
    }

    /// When nothing of it matters any more.
    pub fn absent_at(&self) -> Timestamp {
        let Some(newest) = self.newest() else { return Timestamp::EPOCH };
        let end = newest.saturating_add(u64::from(self.keep));
        Timestamp::from_nanos(end.saturating_mul(self.bucket_ns))
    }

    /// Length of a bucket in ns.
    pub(super) fn bucket_ns(&self) -> u64 {
        self.bucket_ns
    }

    /// The bucket that an ask at `now` counts in: never an older one than was seen already.
    pub(super) fn index_at(&self, now: Timestamp) -> u64 {
        (now.as_nanos() / self.bucket_ns.max(1)).max(self.newest().unwrap_or(0))
    }

    /// The values of bucket `index` and those before it, without end.
    pub(super) fn newest_first(&self, index: u64) -> impl Iterator<Item = u64> {
        let mut buckets = self.buckets.iter().peekable();
        (0..).map(move |age| {
            let wanted = index.checked_sub(age);
            buckets
                .next_if(|bucket| Some(bucket.index) == wanted)
                .map_or(0, |bucket| bucket.hits.value())
        })
    }

    /// Adds `hits` to `me`'s column of bucket `index`.
    pub(super) fn charge(&mut self, me: ActorId, hits: u64, index: u64) {
        if let Some(bucket) = self.bucket(index) {
            bucket.hits.charge(me, hits);
        }
    }

    /// Gives `refund` hits back in `me`'s columns of the `depth` buckets up to `index`, the newest
    /// first, at most what is there.
    pub(super) fn give_back(&mut self, me: ActorId, mut refund: u64, index: u64, depth: usize) {
        let in_view = |bucket: &&mut Bucket| index - bucket.index < depth as u64;
        for bucket in self.buckets.iter_mut().take_while(in_view) {
            refund -= bucket.hits.give_back(me, refund);
        }
    }

    /// Joins with another copy of the same counter. Of two shapes the finer stays.
    pub(super) fn join(&mut self, other: Self) {
        match (self.keep, self.bucket_ns).cmp(&(other.keep, other.bucket_ns)) {
            Ordering::Less => *self = other,
            Ordering::Greater => {}
            Ordering::Equal => {
                self.merge(&other.wire());
            }
        }
    }

    /// Number of the newest bucket with a column.
    pub(super) fn newest(&self) -> Option<u64> {
        self.buckets.first().map(|bucket| bucket.index)
    }

    /// The bucket `index`, made if need be; `None` when it is too old to matter.
    fn bucket(&mut self, index: u64) -> Option<&mut Bucket> {
        let keep = u64::from(self.keep);
        let newest = self.newest().unwrap_or(index);
        if newest.saturating_sub(index) >= keep {
            return None;
        }
        if index > newest {
            self.buckets.retain(|bucket| index - bucket.index < keep);
        }
        let at = self.buckets.partition_point(|bucket| bucket.index > index);
        if self.buckets.get(at).is_none_or(|bucket| bucket.index != index) {
            self.buckets.insert(at, Bucket { index, hits: PnCounter::default() });
        }
        self.buckets.get_mut(at)
    }

    fn delta(&self, buckets: impl Iterator<Item = DeltaBucket>) -> Delta {
        Delta { bucket_ns: self.bucket_ns, keep: self.keep, buckets: buckets.collect() }
    }
}

fn copied((actor, column): (&ActorId, &u64)) -> (ActorId, u64) {
    (*actor, *column)
}

impl Bucket {
    fn wire(&self) -> DeltaBucket {
        DeltaBucket {
            index: self.index,
            used: self.hits.used().clone(),
            refunded: self.hits.refunded().clone(),
        }
    }
}

impl TryFrom<Delta> for ActorCounters {
    type Error = delta::Error;

    /// Holds a whole state to the bounds of a delta, except that it knows no clock.
    fn try_from(delta: Delta) -> Result<Self, delta::Error> {
        delta.validate(&delta::Bounds {
            now: Timestamp::NEVER,
            ahead_max: Span::ZERO,
            columns_max: ACTORS_MAX,
        })?;
        let mut actor_counters =
            Self { bucket_ns: delta.bucket_ns, keep: delta.keep, buckets: SmallVec::new() };
        actor_counters.merge_within(&delta, ACTORS_MAX);
        Ok(actor_counters)
    }
}

impl From<ActorCounters> for Delta {
    fn from(actor_counters: ActorCounters) -> Self {
        actor_counters.wire()
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
        for delta in [at_b.own(B), at_a.own(A), at_b.own(B)] {
            both.merge(&delta);
        }
        assert_eq!(both.sum(7), 10);
        assert!(!both.merge(&at_a.own(A)).changed);
    }

    #[test]
    fn a_newer_bucket_rolls_the_old_ones_out_and_they_do_not_come_back() {
        let mut old = actor_counters();
        old.charge(A, 3, 7);
        let mut late = old.clone();
        late.charge(A, 1, 9);
        assert_eq!((late.sum(7), late.sum(9)), (0, 1));
        late.merge(&old.wire());
        assert_eq!((late.sum(7), late.sum(9)), (0, 1));
    }

    #[test]
    fn own_columns_are_sent_of_every_bucket() {
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
        mine.give_back(A, 7, 9, 4);
        let mut heard = ActorCounters { buckets: SmallVec::new(), ..mine.clone() };
        heard.merge(&mine.own(A));
        assert_eq!((heard.sum(9), heard.sum(8), heard.sum(7)), (0, 4, 5));
        assert_eq!(heard.actors(), BTreeSet::from([A]));
    }

    #[test]
    fn a_region_speaks_with_one_column() {
        let mut here = actor_counters();
        here.charge(A, 3, 7);
        here.charge(B, 4, 7);
        here.charge(ActorId::new(200), 50, 7);
        let said = here.region_view(REGION, |actor| actor == A || actor == B);
        let mut there = actor_counters();
        there.merge(&said);
        assert_eq!((there.sum(7), there.actors()), (7, BTreeSet::from([REGION])));
    }

    #[test]
    fn further_columns_are_refused_at_the_bound_but_never_the_own() {
        let mut mine = actor_counters();
        for actor in 0..ACTORS_MAX as u64 + 5 {
            let mut peer = actor_counters();
            peer.charge(ActorId::new(1_000 + actor), 1, 7);
            let merged = mine.merge(&peer.wire());
            assert_eq!(merged.refused, usize::from(actor >= ACTORS_MAX as u64 - 1));
        }
        mine.charge(A, 1, 7);
        assert_eq!(mine.sum(7), ACTORS_MAX as u64);
        assert_eq!(ActorCounters::try_from(mine.wire()), Ok(mine));
    }
}

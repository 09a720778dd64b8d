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
//! The value is cached, so a decision does not add up the counters. Two nodes may refund the same
//! hit at the same time; the difference then stops at zero. The newest `sub_windows + 1` slices
//! matter; merging a newer slice drops the older ones.
//!
//! # Example
//!
//! A and B both hold `{A: 3, B: 4}` = 7. A admits 2 more and sends `{A: 5}`, B admits 1 and sends
//! `{B: 5}`. A node that receives both, in any order and any number of times, holds
//! `{A: 5, B: 5}` = 10.
//!
//! # Totals
//!
//! A restarted node counts as another actor, so a slice would grow with each start. Once a node has
//! all counters of its earlier starts it *folds* them: their sum becomes one counter, the *total*
//! of the node up to and including the last of these starts. A total contains each earlier counter
//! of its node, whose late copies are dropped:
//!
//! ```text
//! merge of a node : the total of the largest start, of equal ones the larger count,
//!                   and the counters of later starts
//! ```
//!
//! Example: `{a1: 3, a2: 4, a3: 1}` is folded before start 3 to `{total a2: 7, a3: 1}` = 8. A late
//! `{a1: 3}` changes nothing.
//!
//! When a node has all of them is decided elsewhere; see docs/adr/0045-departed-counters.md.
//!
//! # The rest
//!
//! Only the owner of a key, and one replica, need to know *who* counted. Every other node is sent
//! one number beside its own counter, the *rest*: what all other writers counted, as the owner knew
//! it. So neither memory nor messages grow with the square of the nodes that use a key. For an
//! owner a rest only grows, and it is never more than the truth; so it is merged like a counter,
//! also when another owner sends the next one. Both what the actors counted and what a writer and
//! its rest counted are lower bounds of the hits, and the larger is taken:
//!
//! ```text
//! used(slice) = max(Σ used[actor], used[rest of w] + Σ used[actors of w])
//! ```
//!
//! Example: the owner holds `{A: 5, B: 4, C: 1}` and sends `{rest of B: 6}` to B, which holds
//! `{B: 7}` meanwhile: 13, where all messages together would make it 13 as well.
//!
//! # Bound
//!
//! Until nodes have exchanged their counters each may admit up to the limit; over-admission is at
//! most the arrival rate of the cluster times the staleness. A counter holds at most
//! [`ACTOR_COUNT_MAX`]; at that value its slice reads as full, because further hits could not be
//! sent. A slice holds at most [`ACTORS_MAX`] actors, one of them reserved for this node; a merge
//! drops further ones and reports how many.
//!
//! Source: Shapiro et al., "A comprehensive study of convergent and commutative replicated data
//! types", INRIA RR-7506, 2011, section 3.1.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use crdts::{CmRDT, Dot, VClock};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::delta::{self, ACTOR_COUNT_MAX, ACTORS_MAX, ActorId, Delta, DeltaSlice, shape_of};
use super::slices::Slices;
use crate::quota::Quota;
use crate::units::{Span, Timestamp};

/// The per-actor counters of one key.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Delta", into = "Delta")]
pub struct ActorCounters {
    slice_ns: u64,
    slices_kept: u8,
    unannounced: Unannounced,
    /// Newest first, sparse: a slice is present only if an actor counted in it. Most rules need
    /// two, which are stored inline to save a cache miss.
    slices: SmallVec<[Slice; 2]>,
}

/// What the local actor has counted since its count was last sent to a peer. It is no part of the
/// counters: two nodes with the same counters may differ in it.
#[derive(Clone, Copy, Debug, Default)]
struct Unannounced {
    hits: u32,
    /// They are due for an announcement once more than this is used.
    due_above: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Slice {
    counts: DeltaSlice,
    /// Hits less refunds. A saturated counter may stand for more hits than it can hold, so refunds
    /// no longer lower the value.
    value: u64,
}

/// What a merge of per-actor counters did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeStats {
    /// Whether any counter grew.
    pub changed: bool,
    /// Counters that were dropped because the slice is full; those of a total stay as they are.
    pub refused: usize,
}

impl ActorCounters {
    /// Empty counters with the slices of `quota`.
    pub fn new(quota: &Quota) -> Self {
        let (slice_ns, slices_kept) = shape_of(quota);
        Self::empty(slice_ns, slices_kept)
    }

    /// Whether they have the slices that `quota` counts in.
    pub fn fits(&self, quota: &Quota) -> bool {
        (self.slice_ns, self.slices_kept) == shape_of(quota)
    }

    /// The hits of slice `index`, all actors together.
    pub fn sum(&self, index: u64) -> u64 {
        self.slices.iter().find(|slice| slice.counts.index == index).map_or(0, |slice| slice.value)
    }

    /// The actors that counted or refunded in any slice.
    pub fn actors(&self) -> BTreeSet<ActorId> {
        let counts = self.slices.iter().map(|slice| &slice.counts);
        let clocks = counts.flat_map(|counts| [&counts.used, &counts.refunded]);
        clocks.flat_map(|clock| clock.dots.keys().copied()).collect()
    }

    /// All counters, for a peer.
    pub fn to_delta(&self) -> Delta {
        self.delta(self.slices.iter().map(|slice| slice.counts.clone()))
    }

    /// The counters of the actors that `is_included` selects. In all slices, because a message that
    /// was lost, or a restart of the receiver, may lie more than one slice back. Never a rest,
    /// which an owner sends to its writer alone.
    pub fn delta_of(&self, is_included: impl Fn(ActorId) -> bool) -> Delta {
        self.view(|clock| {
            let included = counted(clock).filter(|(actor, _)| is_included(**actor));
            VClock { dots: included.map(|(actor, count)| (*actor, *count)).collect() }
        })
    }

    /// The counters as a node receives them that counts as `actor` and does not have to know who
    /// else counted: the rest of its writer, and what that counted in earlier starts.
    pub fn rest_of(&self, actor: ActorId) -> Delta {
        self.view(|clock| {
            let (mut known, mut rest) = (VClock::default(), 0_u64);
            for (it, count) in counted(clock).filter(|(it, _)| **it != actor) {
                if it.writer() == actor.writer() {
                    known.apply(Dot::new(*it, *count));
                } else {
                    rest = rest.saturating_add(*count);
                }
            }
            if rest > 0 {
                known.apply(Dot::new(actor.rest(), rest.min(ACTOR_COUNT_MAX)));
            }
            known
        })
    }

    /// The counts as another region receives them: the counters of all local actors summed into one
    /// counter of `region`. The sum only grows, because each of its parts does; so a local actor
    /// must stay local after its node has left.
    pub fn region_view(&self, region: ActorId, is_local: impl Fn(ActorId) -> bool) -> Delta {
        self.view(|clock| {
            let local = counted(clock).filter(|(actor, _)| is_local(**actor));
            let sum = sum(local.map(|(_, count)| count)).min(ACTOR_COUNT_MAX);
            (sum > 0).then(|| Dot::new(region, sum)).into_iter().collect()
        })
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
            mine.merge(theirs, actors_max, &mut stats);
        }
        stats
    }

    /// Folds the counters of the writer of `first_kept` in earlier starts into one total, in the
    /// slices that `is_complete` selects: those whose counters of these starts are all here.
    /// Returns whether anything was folded; a single counter is left as it is.
    pub fn fold(&mut self, first_kept: ActorId, is_complete: impl Fn(u64) -> bool) -> bool {
        let mut changed = false;
        for slice in self.slices.iter_mut().filter(|slice| is_complete(slice.counts.index)) {
            changed |= slice.fold(first_kept);
        }
        changed
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
                .next_if(|slice| Some(slice.counts.index) == wanted)
                .map_or(0, |slice| slice.value)
        })
    }

    /// Adds `hits` to the counter of `me` in slice `index`.
    pub(super) fn charge(&mut self, me: ActorId, hits: u64, index: u64) {
        if let Some(slice) = self.slice_mut(index) {
            slice.charge(me, hits);
            let hits = u32::try_from(hits).unwrap_or(u32::MAX);
            self.unannounced.hits = self.unannounced.hits.saturating_add(hits);
        }
    }

    /// Whether the hits that peers do not know are due, of a limit of which `remaining` of `limit`
    /// are left: if they are more than one part in `divisor` of what is left. Zero is never.
    pub(crate) fn note_remaining(&mut self, remaining: u32, limit: u32, divisor: u32) -> bool {
        let part = self.unannounced.hits.saturating_mul(divisor);
        self.unannounced.due_above = limit.saturating_sub(part);
        part > remaining
    }

    /// Whether hits that peers do not know are due after a merge, because others have used more of
    /// the limit since.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        let Unannounced { hits, due_above } = self.unannounced;
        hits > 0 && self.used_at(now) > u64::from(due_above)
    }

    /// The counters as they are now are being sent to a peer.
    pub(crate) fn announced(&mut self) {
        self.unannounced = Unannounced::default();
    }

    /// The hits of the window that ends at `now`, by the formula of the sliding window counter.
    fn used_at(&self, now: Timestamp) -> u64 {
        let index = self.index_at(now);
        let counts: SmallVec<[u64; 16]> =
            self.newest_first(index).take(usize::from(self.slices_kept)).collect();
        Slices { slice_ns: self.slice_ns.max(1), index, counts: &counts, now }.used_ceil()
    }

    /// Refunds hits in the counters of `me` in the `depth` slices up to `index`, the newest first,
    /// at most what they hold.
    pub(super) fn refund(&mut self, me: ActorId, mut refund: u64, index: u64, depth: usize) {
        let in_view = |slice: &&mut Slice| index - slice.counts.index < depth as u64;
        for slice in self.slices.iter_mut().take_while(in_view) {
            refund -= slice.refund(me, refund);
        }
    }

    /// Joins another copy of the same counter. Of two shapes the one with more slices stays, then
    /// the one with longer slices.
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
        self.slices.first().map(|slice| slice.counts.index)
    }

    /// The slice `index`, created if necessary; `None` when it is too old to matter.
    fn slice_mut(&mut self, index: u64) -> Option<&mut Slice> {
        let kept = u64::from(self.slices_kept);
        let newest = self.newest().unwrap_or(index);
        if newest.saturating_sub(index) >= kept {
            return None;
        }
        if index > newest {
            self.slices.retain(|slice| index - slice.counts.index < kept);
        }
        let at = self.slices.partition_point(|slice| slice.counts.index > index);
        if self.slices.get(at).is_none_or(|slice| slice.counts.index != index) {
            let counts = DeltaSlice { index, used: VClock::default(), refunded: VClock::default() };
            self.slices.insert(at, Slice { counts, value: 0 });
        }
        self.slices.get_mut(at)
    }

    /// The part of each clock that `part` returns, without the slices that are then empty.
    fn view(&self, part: impl Fn(&VClock<ActorId>) -> VClock<ActorId>) -> Delta {
        let slices = self.slices.iter().map(|Slice { counts, .. }| DeltaSlice {
            index: counts.index,
            used: part(&counts.used),
            refunded: part(&counts.refunded),
        });
        self.delta(slices.filter(|slice| !slice.is_empty()))
    }

    fn empty(slice_ns: u64, slices_kept: u8) -> Self {
        let (unannounced, slices) = (Unannounced::default(), SmallVec::new());
        Self { slice_ns, slices_kept, unannounced, slices }
    }

    fn delta(&self, slices: impl Iterator<Item = DeltaSlice>) -> Delta {
        Delta { slice_ns: self.slice_ns, slices_kept: self.slices_kept, slices: slices.collect() }
    }
}

impl Slice {
    /// Adds to the hits of `me`.
    fn charge(&mut self, me: ActorId, hits: u64) {
        increase(&mut self.counts.used, me, hits);
        self.refresh();
    }

    /// Adds to the refunds of `me`, at most the value. Returns how much was refunded.
    fn refund(&mut self, me: ActorId, refund: u64) -> u64 {
        let part = refund.min(self.value);
        if part > 0 {
            increase(&mut self.counts.refunded, me, part);
            self.refresh();
        }
        part
    }

    /// Takes the newest total of every writer and the maximum of every counter that is not in one,
    /// for at most `actors_max` actors.
    fn merge(&mut self, theirs: &DeltaSlice, actors_max: usize, stats: &mut MergeStats) {
        for clock in [&theirs.used, &theirs.refunded] {
            for total in clock.dots.keys().filter(|actor| actor.is_total()) {
                self.take_total(*total, theirs, actors_max, stats);
            }
        }
        let (used, refunded) = (&theirs.used, &theirs.refunded);
        merge_clock(&mut self.counts, |counts| &mut counts.used, used, actors_max, stats);
        merge_clock(&mut self.counts, |counts| &mut counts.refunded, refunded, actors_max, stats);
        self.refresh();
    }

    /// Replaces what `total` contains by it, if it is newer than the own one and has room. Both
    /// clocks at once: a refund that stayed behind its hit would admit another one.
    fn take_total(
        &mut self,
        total: ActorId,
        theirs: &DeltaSlice,
        actors_max: usize,
        stats: &mut MergeStats,
    ) {
        if self.counts.total_of(total.writer()).is_some_and(|own| own >= total) {
            return;
        }
        let DeltaSlice { used, refunded, .. } = &mut self.counts;
        let both = [(&mut *used, &theirs.used), (&mut *refunded, &theirs.refunded)];
        let has_room = both.iter().all(|(mine, theirs)| {
            let kept = mine.dots.len() - mine.dots.range(total.earlier()).count();
            kept < actors_max || !theirs.dots.contains_key(&total)
        });
        if !has_room {
            return;
        }
        for (mine, theirs) in both {
            remove_earlier(mine, total);
            mine.apply(theirs.dot(total));
        }
        stats.changed = true;
    }

    /// Returns whether anything was folded.
    fn fold(&mut self, first_kept: ActorId) -> bool {
        let DeltaSlice { used, refunded, .. } = &mut self.counts;
        let both = [used, refunded];
        let earlier = || both.iter().flat_map(|clock| clock.dots.range(first_kept.earlier()));
        let (first, last) = (earlier().map(|dot| dot.0).min(), earlier().map(|dot| dot.0).max());
        let Some(total) = last.filter(|_| first != last).map(|last| last.total()) else {
            return false;
        };
        for clock in both {
            let count = remove_earlier(clock, first_kept).min(ACTOR_COUNT_MAX);
            clock.apply(Dot::new(total, count));
        }
        self.refresh();
        true
    }

    fn refresh(&mut self) {
        let DeltaSlice { used, refunded, .. } = &self.counts;
        let is_saturated = used.dots.values().any(|count| *count >= ACTOR_COUNT_MAX);
        let (used, refunded) = (known(used), known(refunded));
        self.value = if is_saturated { used } else { used.saturating_sub(refunded) };
    }
}

/// The counters of actors: all but a rest.
fn counted(clock: &VClock<ActorId>) -> impl Iterator<Item = (&ActorId, &u64)> {
    clock.dots.iter().filter(|(actor, _)| !actor.is_rest())
}

/// The most that is known to be counted: by all actors, or by one writer and its rest.
fn known(clock: &VClock<ActorId>) -> u64 {
    let (mut all, mut with_rest) = (0_u64, 0);
    // Those of one writer, of which the rest is the last.
    let (mut writer, mut of_writer) = (None, 0_u64);
    for (actor, count) in &clock.dots {
        if writer != Some(actor.writer()) {
            (writer, of_writer) = (Some(actor.writer()), 0);
        }
        of_writer = of_writer.saturating_add(*count);
        if actor.is_rest() {
            with_rest = of_writer.max(with_rest);
        } else {
            all = all.saturating_add(*count);
        }
    }
    all.max(with_rest)
}

fn sum<'a>(counts: impl Iterator<Item = &'a u64>) -> u64 {
    counts.fold(0, |sum, count| sum.saturating_add(*count))
}

fn increase(clock: &mut VClock<ActorId>, me: ActorId, by: u64) {
    let count = clock.get(&me).saturating_add(by).min(ACTOR_COUNT_MAX);
    clock.apply(Dot::new(me, count));
}

/// Removes the counters of the same writer before `actor`, and returns their sum.
fn remove_earlier(clock: &mut VClock<ActorId>, actor: ActorId) -> u64 {
    let earlier: SmallVec<[ActorId; 4]> =
        clock.dots.range(actor.earlier()).map(|(actor, _)| *actor).collect();
    let removed = earlier.iter().filter_map(|actor| clock.dots.remove(actor));
    removed.fold(0, u64::saturating_add)
}

fn merge_clock(
    counts: &mut DeltaSlice,
    clock: impl Fn(&mut DeltaSlice) -> &mut VClock<ActorId>,
    theirs: &VClock<ActorId>,
    actors_max: usize,
    stats: &mut MergeStats,
) {
    for (actor, count) in &theirs.dots {
        let mine = clock(counts);
        let known = mine.get(actor);
        if *count <= known {
            continue;
        }
        if known == 0 {
            let is_full = mine.dots.len() >= actors_max;
            // What is here is in no total: such counters were removed when the total came.
            if counts.total_of(actor.writer()).is_some_and(|total| *actor < total) {
                continue;
            }
            if is_full {
                stats.refused += 1;
                continue;
            }
        }
        stats.changed = true;
        clock(counts).apply(Dot::new(*actor, *count));
    }
}

impl TryFrom<Delta> for ActorCounters {
    type Error = delta::Error;

    /// Applies the bounds of a delta, except those that need a clock.
    fn try_from(delta: Delta) -> Result<Self, delta::Error> {
        let (now, ahead_max) = (Timestamp::NEVER, Span::ZERO);
        delta.validate(&delta::Bounds { now, ahead_max, actors_max: ACTORS_MAX })?;
        let mut actor_counters = Self::empty(delta.slice_ns, delta.slices_kept);
        actor_counters.merge_within(&delta, ACTORS_MAX);
        Ok(actor_counters)
    }
}

/// By the counters alone.
impl PartialEq for ActorCounters {
    fn eq(&self, other: &Self) -> bool {
        let counters = |it: &Self| (it.slice_ns, it.slices_kept);
        counters(self) == counters(other) && self.slices == other.slices
    }
}

impl Eq for ActorCounters {}

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
        let mut received = ActorCounters::empty(mine.slice_ns, mine.slices_kept);
        received.merge(&mine.delta_of(|actor| actor == A));
        assert_eq!((received.sum(9), received.sum(8), received.sum(7)), (0, 4, 5));
        assert_eq!(received.actors(), BTreeSet::from([A]));
    }

    #[test]
    fn concurrent_refunds_of_one_hit_leave_zero() {
        let mut here = actor_counters();
        here.charge(A, 1, 7);
        let mut there = here.clone();
        here.refund(A, 5, 7, 1);
        there.refund(B, 5, 7, 1);
        assert_eq!((here.sum(7), there.sum(7)), (0, 0));
        here.merge(&there.to_delta());
        assert_eq!(here.sum(7), 0);
    }

    #[test]
    fn a_saturated_counter_stays_full_after_a_refund() {
        let mut mine = actor_counters();
        mine.charge(A, u64::MAX, 7);
        mine.refund(A, u64::MAX, 7, 1);
        assert_eq!(mine.sum(7), ACTOR_COUNT_MAX);
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

    const C: ActorId = ActorId::new(3);

    /// What the owner of the module's example knows, and what B holds.
    fn owner_and_b() -> (ActorCounters, ActorCounters) {
        let (mut owner, mut at_b) = (actor_counters(), actor_counters());
        for (actor, hits) in [(A, 5), (B, 4), (C, 1)] {
            owner.charge(actor, hits, 7);
        }
        at_b.charge(B, 7, 7);
        (owner, at_b)
    }

    #[test]
    fn a_rest_is_one_counter_and_as_much_as_all_the_others() {
        let (owner, mut at_b) = owner_and_b();
        let rest = owner.rest_of(B);
        assert_eq!(rest.weight(), 2, "one slice, one counter");
        assert!(at_b.merge(&rest).changed);
        assert!(!at_b.merge(&rest).changed);
        assert_eq!(at_b.sum(7), 13);
        let mut with_all = owner_and_b().1;
        with_all.merge(&owner.delta_of(|actor| actor != B));
        assert_eq!(with_all.sum(7), 13);
        assert!(at_b.delta_of(|actor| actor != B).is_empty(), "what it knows of others, it keeps");
        assert!(at_b.region_view(REGION, |actor| actor != B).is_empty());
    }

    #[test]
    fn the_larger_of_a_rest_and_the_counters_in_it_is_taken() {
        let (owner, mut at_b) = owner_and_b();
        at_b.merge(&owner.rest_of(B));
        // B owns the key from now on: the others send their counters, one after the other.
        at_b.merge(&owner.delta_of(|actor| actor == A));
        assert_eq!(at_b.sum(7), 13, "some of the rest twice");
        let mut more = owner.clone();
        more.charge(C, 3, 7);
        at_b.merge(&more.delta_of(|actor| actor == C));
        assert_eq!(at_b.sum(7), 16);
        assert_eq!(at_b.rest_of(A).slices[0].used.get(&A.rest()), 11);
    }

    #[test]
    fn a_writer_is_sent_its_earlier_starts_beside_its_rest() {
        let (first, second) = (ActorId::of_start(9, 1), ActorId::of_start(9, 2));
        let (mut owner, mut restarted) = (actor_counters(), actor_counters());
        owner.charge(first, 3, 7);
        owner.charge(A, 4, 7);
        owner.charge(A, 1, 8);
        restarted.charge(second, 1, 8);
        restarted.merge(&owner.rest_of(second));
        assert_eq!((restarted.sum(7), restarted.sum(8)), (7, 2));
        assert!(!restarted.fold(second, |_| true), "a rest is no start");
    }

    #[test]
    fn refunds_of_the_rest_count() {
        let (mut owner, mut at_b) = owner_and_b();
        owner.refund(C, 2, 7, 1);
        at_b.merge(&owner.rest_of(B));
        assert_eq!(at_b.sum(7), 11);
    }

    #[test]
    fn hits_are_due_when_they_are_a_large_part_of_what_is_left() {
        let mut mine = actor_counters();
        mine.charge(A, 3, 7);
        assert!(!mine.note_remaining(97, 100, 30));
        mine.charge(A, 1, 7);
        assert!(mine.note_remaining(96, 100, 30), "4 × 30 > 96");
        mine.announced();
        assert!(!mine.note_remaining(96, 100, 30));
        mine.charge(A, 2, 7);
        assert!(!mine.note_remaining(94, 100, 30));
        // Others use what is left: 60 of 100 makes 40, less than 2 × 30.
        let now = Timestamp::from_secs(7 * 60);
        let mut others = actor_counters();
        others.charge(B, 34, 7);
        mine.merge(&others.to_delta());
        assert!(!mine.is_due(now), "40 of 100 are used");
        others.charge(B, 1, 7);
        mine.merge(&others.to_delta());
        assert!(mine.is_due(now), "41 of 100 are used");
        mine.announced();
        assert!(!mine.is_due(now));
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
    fn counters_fit_the_quota_that_they_count_for() {
        let quota =
            |secs| Quota::simple(Algorithm::FixedWindow, 1, Span::from_secs(secs)).expect("valid");
        let theirs = ActorCounters::new(&quota(60)).to_delta();
        let received = ActorCounters::try_from(theirs).expect("a valid delta");
        assert!(received.fits(&quota(60)));
        assert!(!received.fits(&quota(61)));
    }
}

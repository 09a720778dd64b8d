//! The sliding window counter over `N` slices: the boxed state and its step.
//!
//! The formula stands in `engine/slots.rs`, the idea in `sliding_window_counter`. Counts are kept
//! newest first, one more than there are slices, because the oldest overlaps in part. Slices may be
//! as short as a millisecond, so their numbers are 64 bits wide.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::State;
use super::slots::{Slots, give_back};
use super::verdict::Verdict;
use crate::quota::{Quota, SUB_WINDOWS_MAX, WINDOW_MAX};
use crate::units::{Hits, Timestamp};

/// Hits of the last `N + 1` slices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct SubWindows {
    slot_ns: u64,
    index: u64,
    counts: Box<[u32]>,
}

/// Most counts of one state: every slice that a quota can ask for, and the overlap.
const COUNTS_MAX: usize = SUB_WINDOWS_MAX as usize + 1;

/// Why bytes from outside are no state of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Fewer than three counts (two slices and the overlap), or more than a quota can ask for.
    #[error("{0} counts are outside 3 to {COUNTS_MAX}; the sender is broken")]
    Slices(usize),
    /// A slice of no length, or longer than the longest window.
    #[error("a slice of {0} ns is outside 1 ns to 400 days; the sender is broken")]
    Length(u64),
}

/// Asks for `hits` at `now` and counts them.
pub(super) fn decide(state: &mut State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
    let fits = matches!(state, State::SubWindows(slots) if slots.is_of(quota));
    let verdict = preview(state, quota, hits, now);
    if hits == Hits::PEEK || !verdict.allowed || (hits.refund() > 0 && !fits) {
        return verdict;
    }
    if !fits {
        *state = State::SubWindows(Box::new(SubWindows::new(quota)));
    }
    if let State::SubWindows(slots) = state {
        slots.roll(now);
        slots.count(hits);
    }
    verdict
}

/// The verdict that [`decide`] would give.
pub(super) fn preview(state: &State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
    let slot_ns = slot_ns(quota);
    let len = usize::from(quota.sub_windows()) + 1;
    let present = now.as_nanos() / slot_ns;
    let mut counts: SmallVec<[u64; 16]> = SmallVec::from_elem(0, len);
    let mut index = present;
    if let State::SubWindows(slots) = state
        && slots.is_of(quota)
    {
        index = present.max(slots.index);
        let age = usize::try_from(index - slots.index).unwrap_or(usize::MAX);
        for (seen, count) in counts.iter_mut().skip(age).zip(&slots.counts) {
            *seen = u64::from(*count);
        }
    }
    give_back(&mut counts, hits.refund());
    Slots { span: slot_ns, index, counts: &counts, now }.judge(quota, hits)
}

fn slot_ns(quota: &Quota) -> u64 {
    (quota.window().as_nanos() / u64::from(quota.sub_windows().max(1))).max(1)
}

impl SubWindows {
    fn new(quota: &Quota) -> Self {
        let counts = vec![0; usize::from(quota.sub_windows()) + 1].into_boxed_slice();
        Self { slot_ns: slot_ns(quota), index: 0, counts }
    }

    /// When nothing of it matters any more.
    pub fn absent_at(&self) -> Timestamp {
        let end = self.index.saturating_add(self.counts.len() as u64);
        Timestamp::from_nanos(end.saturating_mul(self.slot_ns))
    }

    /// The beginning of the newest slice.
    pub(super) fn newest_start(&self) -> Timestamp {
        Timestamp::from_nanos(self.index.saturating_mul(self.slot_ns))
    }

    /// Number of counts.
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    /// For a digest.
    pub(super) fn words(&self) -> impl Iterator<Item = u64> {
        [4, self.slot_ns, self.index].into_iter().chain(self.counts.iter().copied().map(u64::from))
    }

    /// The later of both slices, and of every slice the larger count. Of two different shapes (a
    /// rule that was changed in between) the finer one stays.
    pub(super) fn merge(&mut self, mut other: Self) {
        match self.shape().cmp(&other.shape()) {
            Ordering::Less => *self = other,
            Ordering::Greater => {}
            Ordering::Equal => {
                let index = self.index.max(other.index);
                self.roll_to(index);
                other.roll_to(index);
                for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
                    *mine = (*mine).max(*theirs);
                }
            }
        }
    }

    /// Orders the shapes that two states of one counter may have.
    fn shape(&self) -> (usize, u64) {
        (self.counts.len(), self.slot_ns)
    }

    fn is_of(&self, quota: &Quota) -> bool {
        self.shape() == (usize::from(quota.sub_windows()) + 1, slot_ns(quota))
    }

    fn roll(&mut self, now: Timestamp) {
        self.roll_to(now.as_nanos() / self.slot_ns.max(1));
    }

    fn roll_to(&mut self, index: u64) {
        let Some(by) = index.checked_sub(self.index) else { return };
        let by = usize::try_from(by).unwrap_or(usize::MAX).min(self.counts.len());
        self.counts.rotate_right(by);
        self.counts.iter_mut().take(by).for_each(|count| *count = 0);
        self.index = index;
    }

    /// Counts what was allowed.
    fn count(&mut self, hits: Hits) {
        let mut refund = hits.refund();
        for count in &mut self.counts {
            let left = u64::from(*count).saturating_sub(refund);
            refund = refund.saturating_sub(u64::from(*count));
            *count = u32::try_from(left).unwrap_or(u32::MAX);
        }
        if let Some(current) = self.counts.first_mut() {
            let charge = u32::try_from(hits.charge()).unwrap_or(u32::MAX);
            *current = current.saturating_add(charge);
        }
    }
}

/// The wire form, before it is checked.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Parts {
    slot_ns: u64,
    index: u64,
    counts: Vec<u32>,
}

impl TryFrom<Parts> for SubWindows {
    type Error = Error;

    fn try_from(Parts { slot_ns, index, counts }: Parts) -> Result<Self, Error> {
        if !(3..=COUNTS_MAX).contains(&counts.len()) {
            return Err(Error::Slices(counts.len()));
        }
        if slot_ns == 0 || slot_ns > WINDOW_MAX.as_nanos() {
            return Err(Error::Length(slot_ns));
        }
        Ok(Self { slot_ns, index, counts: counts.into_boxed_slice() })
    }
}

impl From<SubWindows> for Parts {
    fn from(SubWindows { slot_ns, index, counts }: SubWindows) -> Self {
        Self { slot_ns, index, counts: counts.into_vec() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::{Algorithm, QuotaParts};
    use crate::units::Span;

    #[test]
    fn a_finer_window_gives_hits_back_slice_by_slice() {
        let quota = Quota::new(QuotaParts {
            algorithm: Algorithm::SlidingWindowCounter,
            limit: 10,
            window: Span::from_secs(60),
            burst: 10,
            sub_windows: 6,
            queue: None,
        })
        .expect("a valid quota");
        let mut state = State::Absent;
        assert!(decide(&mut state, &quota, Hits::new(10), Timestamp::from_secs(5)).allowed);
        let left = |secs| preview(&state, &quota, Hits::PEEK, Timestamp::from_secs(secs)).remaining;
        assert_eq!([left(59), left(60), left(65), left(69), left(70)], [0, 0, 5, 9, 10]);
    }

    #[test]
    fn states_that_no_node_writes_are_refused() {
        let check = |slot_ns, len: usize| {
            SubWindows::try_from(Parts { slot_ns, index: u64::MAX, counts: vec![1; len] }).err()
        };
        assert_eq!(check(1_000_000, 3), None);
        assert_eq!(check(1_000_000, 2), Some(Error::Slices(2)));
        assert_eq!(check(1_000_000, 62), Some(Error::Slices(62)));
        assert_eq!(check(0, 3), Some(Error::Length(0)));
        assert_eq!(check(u64::MAX, 3), Some(Error::Length(u64::MAX)));
    }
}

//! The boxed state of the sliding window counter with more than one slice.
//!
//! Counts are stored newest first, one more than there are slices in a window, because the oldest
//! overlaps in part. Slices may be as short as a millisecond, so their numbers have 64 bits.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::quota::{Quota, SUB_WINDOWS_MAX, WINDOW_MAX};
use crate::units::{Hits, Timestamp};

/// Hits of the last `sub_windows + 1` slices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Parts")]
pub struct SubWindows {
    slice_ns: u64,
    index: u64,
    counts: Box<[u32]>,
}

/// Most counts of one state: every slice that a quota can have, and the overlap.
const COUNTS_MAX: usize = SUB_WINDOWS_MAX as usize + 1;

/// Why serialized bytes are not a valid state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Fewer than three counts (two slices and the overlap), or more than a quota can have.
    #[error("{0} counts are outside 3 to {COUNTS_MAX}; state rejected")]
    Slices(usize),
    /// A slice of no length, or longer than the longest window.
    #[error("a slice of {0} ns is outside 1 ns to 400 days; state rejected")]
    Length(u64),
}

impl SubWindows {
    pub(super) fn new(quota: &Quota) -> Self {
        let counts = vec![0; usize::from(quota.sub_windows()) + 1].into_boxed_slice();
        Self { slice_ns: quota.slice().as_nanos(), index: 0, counts }
    }

    /// From this instant on no count matters.
    pub fn expires_at(&self) -> Timestamp {
        let end = self.index.saturating_add(self.counts.len() as u64);
        Timestamp::from_nanos(end.saturating_mul(self.slice_ns))
    }

    /// The number of the newest slice.
    pub(super) const fn newest(&self) -> u64 {
        self.index
    }

    /// The start of the newest slice.
    pub(super) fn newest_start(&self) -> Timestamp {
        Timestamp::from_nanos(self.index.saturating_mul(self.slice_ns))
    }

    /// Number of counts.
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    pub(super) fn digest_words(&self) -> impl Iterator<Item = u64> {
        [4, self.slice_ns, self.index].into_iter().chain(self.counts.iter().copied().map(u64::from))
    }

    /// Joins two copies: the later position in time, and the larger count of every slice. Of two
    /// different shapes the one with more slices stays, then the one with longer slices.
    pub(super) fn merge(&mut self, mut other: Self) {
        match self.shape().cmp(&other.shape()) {
            Ordering::Less => *self = other,
            Ordering::Greater => {}
            Ordering::Equal => {
                let index = self.index.max(other.index);
                self.advance_to(index);
                other.advance_to(index);
                for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
                    *mine = (*mine).max(*theirs);
                }
            }
        }
    }

    /// Orders the shapes that two states of one counter may have.
    fn shape(&self) -> (usize, u64) {
        (self.counts.len(), self.slice_ns)
    }

    /// Whether it has the slices that `quota` counts in.
    pub(super) fn fits(&self, quota: &Quota) -> bool {
        self.shape() == (usize::from(quota.sub_windows()) + 1, quota.slice().as_nanos())
    }

    /// Copies the counts as of slice `present` into `counts`, which is all zeros, and returns the
    /// number of the current slice: `present`, or a later one that was counted in already.
    pub(super) fn copy_at(&self, present: u64, counts: &mut [u64]) -> u64 {
        let index = present.max(self.index);
        let age = usize::try_from(index - self.index).unwrap_or(usize::MAX);
        for (copy, count) in counts.iter_mut().skip(age).zip(&self.counts) {
            *copy = u64::from(*count);
        }
        index
    }

    /// Counts hits that were allowed at `now`, or takes a refund.
    pub(super) fn count(&mut self, hits: Hits, now: Timestamp) {
        self.advance_to(now.as_nanos() / self.slice_ns.max(1));
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

    fn advance_to(&mut self, index: u64) {
        let Some(by) = index.checked_sub(self.index) else { return };
        let by = usize::try_from(by).unwrap_or(usize::MAX).min(self.counts.len());
        self.counts.rotate_right(by);
        self.counts.iter_mut().take(by).for_each(|count| *count = 0);
        self.index = index;
    }
}

/// The wire form, before it is validated.
#[derive(Deserialize)]
struct Parts {
    slice_ns: u64,
    index: u64,
    counts: Vec<u32>,
}

impl TryFrom<Parts> for SubWindows {
    type Error = Error;

    fn try_from(Parts { slice_ns, index, counts }: Parts) -> Result<Self, Error> {
        if !(3..=COUNTS_MAX).contains(&counts.len()) {
            return Err(Error::Slices(counts.len()));
        }
        if slice_ns == 0 || slice_ns > WINDOW_MAX.as_nanos() {
            return Err(Error::Length(slice_ns));
        }
        Ok(Self { slice_ns, index, counts: counts.into_boxed_slice() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_states_are_rejected() {
        let check = |slice_ns, len: usize| {
            SubWindows::try_from(Parts { slice_ns, index: u64::MAX, counts: vec![1; len] }).err()
        };
        assert_eq!(check(1_000_000, 3), None);
        assert_eq!(check(1_000_000, 2), Some(Error::Slices(2)));
        assert_eq!(check(1_000_000, 62), Some(Error::Slices(62)));
        assert_eq!(check(0, 3), Some(Error::Length(0)));
        assert_eq!(check(u64::MAX, 3), Some(Error::Length(u64::MAX)));
    }
}

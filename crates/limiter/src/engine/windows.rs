//! Windows numbered from the epoch, and the counts of two neighbouring ones.
//!
//! ```text
//! index = ⌊now / window⌋            the same on every node
//! used  = current + ⌈previous × (window − e) / window⌉      e = time since the current one began
//! ```
//!
//! A window that was counted in stays the current one until a later one begins, so a clock that
//! steps back grants nothing.

use super::slices::take_refund;
use crate::quota::Quota;
use crate::units::{Hits, Timestamp};

/// The number of the window that contains `now`.
pub(super) fn index_at(now: Timestamp, quota: &Quota) -> u32 {
    u32::try_from(now.as_nanos() / quota.window().as_nanos().max(1)).unwrap_or(u32::MAX)
}

/// When window `index` begins.
pub(super) fn start(index: u32, quota: &Quota) -> Timestamp {
    Timestamp::from_nanos(u64::from(index).saturating_mul(quota.window().as_nanos()))
}

/// When window `index` ends.
pub(super) fn end(index: u32, quota: &Quota) -> Timestamp {
    index.checked_add(1).map_or(Timestamp::NEVER, |next| start(next, quota))
}

/// Hits of the current window and of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TwoCounts {
    /// Number of the current window.
    pub(super) index: u32,
    pub(super) prev: u32,
    pub(super) cur: u32,
}

// === impl TwoCounts ===

impl TwoCounts {
    /// The counts as of window `present`, or of a later one that was counted in already.
    pub(super) const fn at(self, present: u32) -> Self {
        match present.saturating_sub(self.index) {
            0 => self,
            1 => Self { index: present, prev: self.cur, cur: 0 },
            _ => Self::none(present),
        }
    }

    /// No hits, in window `index`.
    pub(super) const fn none(index: u32) -> Self {
        Self { index, prev: 0, cur: 0 }
    }

    /// The counts after hits that were allowed at `now`, or a refund.
    pub(super) fn counted(self, quota: &Quota, hits: Hits, now: Timestamp) -> Self {
        let before = self.at(index_at(now, quota));
        let mut newest_first = before.newest_first();
        take_refund(&mut newest_first, hits.refund());
        newest_first[0] = newest_first[0].saturating_add(hits.charge());
        Self::of(before.index, newest_first)
    }

    /// Hits that are taken to be in the window that ends at `now`, rounded up as for `remaining`.
    pub(super) fn used(self, quota: &Quota, now: Timestamp) -> u64 {
        let window = quota.window().as_nanos();
        let elapsed = now.since(start(self.index, quota)).as_nanos();
        let overlap = u128::from(self.prev) * u128::from(window.saturating_sub(elapsed));
        let overlap = overlap.div_ceil(u128::from(window.max(1)));
        u64::try_from(overlap).unwrap_or(u64::MAX).saturating_add(u64::from(self.cur))
    }

    /// The later of two windows, with the larger counts.
    pub(super) fn join(self, other: Self) -> Self {
        let (late, early) = if self.index >= other.index { (self, other) } else { (other, self) };
        let early = early.at(late.index);
        Self { index: late.index, prev: late.prev.max(early.prev), cur: late.cur.max(early.cur) }
    }

    pub(super) fn newest_first(self) -> [u64; 2] {
        [u64::from(self.cur), u64::from(self.prev)]
    }

    pub(super) fn of(index: u32, [cur, prev]: [u64; 2]) -> Self {
        let narrow = |count| u32::try_from(count).unwrap_or(u32::MAX);
        Self { index, prev: narrow(prev), cur: narrow(cur) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Algorithm;
    use crate::units::Span;

    #[test]
    fn the_last_window_that_can_be_numbered_never_ends() {
        let quota = Quota::simple(Algorithm::FixedWindow, 1, Span::from_secs(1)).expect("valid");
        assert_eq!(end(u32::MAX, &quota), Timestamp::NEVER);
        assert_eq!(index_at(Timestamp::NEVER, &quota), u32::MAX);
    }
}

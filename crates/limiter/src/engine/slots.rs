//! A window that slides over numbered slots: the arithmetic of every sliding counter.
//!
//! Time is cut into slots of `span` ns, numbered from the epoch. A window is `N` slots long, so it
//! covers the current slot, the `N − 1` before it, and a part of one more that shrinks while the
//! current slot passes. With `e` = time since the current slot began:
//!
//! ```text
//! used(now)·span = (c₀ + c₁ + … + c₍N₋₁₎)·span + c_N·(span − e)
//! admit n        ⇔ used·span + n·span ≤ limit·span
//! ```
//!
//! Everything is multiplied by `span`, so it is whole; sums are `u128` and cannot overflow (61
//! counts of 2⁶⁴ times 2⁵⁵ ns).
//!
//! **When the same ask fits.** With nothing more asked, `used` only falls: on a straight line
//! within a slot, without a jump from one slot to the next. So the slots are tried in order, and
//! within the first that can do it the line is solved for the first whole nanosecond.

use super::verdict::{Retry, Verdict, excess};
use crate::quota::Quota;
use crate::units::{Hits, Span, Timestamp};

/// The counts of one window at one instant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots<'a> {
    /// Length of a slot in ns, above zero.
    pub span: u64,
    /// Number of the current slot: that of `now`, or a later one that was seen already.
    pub index: u64,
    /// Newest first: the current slot, the full ones, and the one that overlaps in part.
    pub counts: &'a [u64],
    /// The instant of the ask.
    pub now: Timestamp,
}

impl Slots<'_> {
    /// The answer to an ask for `hits`; the caller counts them if it is allowed.
    pub(super) fn judge(&self, quota: &Quota, hits: Hits) -> Verdict {
        let limit = u64::from(quota.limit());
        let retry = if hits.refund() > 0 {
            Retry::Now
        } else if hits.charge() > limit {
            Retry::Never
        } else if self.fits(limit, hits.charge()) {
            Retry::Now
        } else {
            self.wait(limit - hits.charge())
        };
        let allowed = retry == Retry::Now;
        let charged = if allowed { hits.charge() } else { 0 };
        let remaining = limit.saturating_sub(self.used_ceil()).saturating_sub(charged);
        let reset = if charged > 0 { self.empty_at(0) } else { self.reset() };
        let remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
        Verdict {
            allowed,
            limit: quota.limit(),
            remaining,
            reset: reset.since(self.now),
            retry,
            delay: Span::ZERO,
            excess: excess(allowed, hits, remaining),
        }
    }

    /// When slot `age` slots before the current one no longer matters.
    pub(super) fn empty_at(&self, age: usize) -> Timestamp {
        let slots = self.counts.len().saturating_sub(age) as u64;
        Timestamp::from_nanos(self.index.saturating_add(slots).saturating_mul(self.span))
    }

    /// When nothing of what is counted matters any more.
    fn reset(&self) -> Timestamp {
        let newest = self.counts.iter().position(|&count| count > 0);
        newest.map_or(Timestamp::EPOCH, |age| self.empty_at(age))
    }

    fn fits(&self, limit: u64, hits: u64) -> bool {
        let span = u128::from(self.span);
        let (full, oldest) = self.full_and_oldest();
        let overlap = u128::from(self.span - self.elapsed());
        (full + u128::from(hits)) * span + oldest * overlap <= u128::from(limit) * span
    }

    /// The window's count rounded up, so that `limit − used` is what still fits.
    fn used_ceil(&self) -> u64 {
        let (full, oldest) = self.full_and_oldest();
        let overlap = u128::from(self.span - self.elapsed());
        let used = full + (oldest * overlap).div_ceil(u128::from(self.span));
        u64::try_from(used).unwrap_or(u64::MAX)
    }

    /// When the window's count will have fallen to `room`.
    fn wait(&self, room: u64) -> Retry {
        let span = u128::from(self.span);
        let mut newer: u128 = self.counts.iter().map(|&count| u128::from(count)).sum();
        // Slot by slot the next older one becomes the one that overlaps in part; after all there is
        // none.
        let oldest_first = self.counts.iter().rev().chain(&[0]);
        let ahead = oldest_first.enumerate().find_map(|(slots, &oldest)| {
            newer = newer.saturating_sub(u128::from(oldest));
            let spare = u128::from(room).checked_sub(newer)?;
            // The part of the oldest slot that may still overlap when the ask fits.
            let overlap = (spare * span).checked_div(u128::from(oldest)).unwrap_or(span).min(span);
            (overlap > 0).then(|| slots as u128 * span + (span - overlap))
        });
        let Some(ahead) = ahead.and_then(|ns| u64::try_from(ns).ok()) else {
            return Retry::Never;
        };
        let start = self.index.saturating_mul(self.span);
        let wait = Timestamp::from_nanos(start.saturating_add(ahead)).since(self.now);
        // Zero only where slot numbers or time have run out; a refusal never says "now".
        Retry::After(wait.max(Span::from_nanos(1)))
    }

    /// The sum of the full slots, and the one that overlaps in part.
    fn full_and_oldest(&self) -> (u128, u128) {
        let Some((&oldest, full)) = self.counts.split_last() else { return (0, 0) };
        (full.iter().map(|&count| u128::from(count)).sum(), u128::from(oldest))
    }

    /// How much of the current slot has passed; a clock that stepped back is at its beginning.
    fn elapsed(&self) -> u64 {
        let start = self.index.saturating_mul(self.span);
        self.now.as_nanos().saturating_sub(start).min(self.span.saturating_sub(1))
    }
}

/// Takes `refund` out of `counts`, the newest first; what is not there is not given back.
pub(super) fn give_back(counts: &mut [u64], mut refund: u64) {
    for count in counts {
        let part = refund.min(*count);
        *count -= part;
        refund -= part;
    }
}

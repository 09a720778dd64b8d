//! A window that slides over numbered slices: the arithmetic of every sliding counter.
//!
//! Time is cut into slices of `s` ns, numbered from the epoch. A window is `N` slices long, so it
//! covers the current slice, the `N − 1` before it, and a part of one more that shrinks while the
//! current slice passes. With `e` = time since the current slice began:
//!
//! ```text
//! used(now)·s = (c₀ + c₁ + … + c₍N₋₁₎)·s + c_N·(s − e)
//! admit n     ⇔ used·s + n·s ≤ limit·s
//! ```
//!
//! Everything is multiplied by `s`, so all terms are integers; sums are `u128` and cannot overflow
//! (61 counts of 2⁶⁴ times 2⁵⁵ ns).
//!
//! **When the same request fits.** Without further requests `used` only falls: linearly within a
//! slice, without a jump between slices. So the slices are tried in order, and within the first
//! that suffices the linear equation is solved for the first whole nanosecond.

use super::verdict::{Retry, Verdict};
use crate::quota::Quota;
use crate::units::{Hits, Span, Timestamp};

/// The counts of one window at one instant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slices<'a> {
    /// Length of a slice, above zero.
    pub(super) slice_ns: u64,
    /// Number of the current slice: that of `now`, or a later one that was counted in already.
    pub(super) index: u64,
    /// Newest first: the current slice, the full ones, and the one that overlaps in part.
    pub(super) counts: &'a [u64],
    pub(super) now: Timestamp,
}

impl Slices<'_> {
    /// The verdict on a request for `hits`. The caller counts them if they are allowed.
    pub(super) fn verdict(&self, quota: &Quota, hits: Hits) -> Verdict {
        let limit = u64::from(quota.limit());
        let retry = if hits.refund() > 0 {
            Retry::Now
        } else if hits.charge() > limit {
            Retry::Never
        } else if self.fits(limit, hits.charge()) {
            Retry::Now
        } else {
            self.retry(limit - hits.charge())
        };
        let charged = if retry == Retry::Now { hits.charge() } else { 0 };
        let used = self.used_ceil();
        let remaining = limit.saturating_sub(used).saturating_sub(charged);
        let reset = if charged > 0 { self.expires_at(0) } else { self.reset() };
        Verdict::new(quota, hits, remaining, reset.since(self.now), retry)
            .over(used.saturating_sub(limit))
    }

    /// From this instant on the slice that is `age` slices old no longer matters.
    pub(super) fn expires_at(&self, age: usize) -> Timestamp {
        let slices = self.counts.len().saturating_sub(age) as u64;
        Timestamp::from_nanos(self.index.saturating_add(slices).saturating_mul(self.slice_ns))
    }

    /// From this instant on no counted hit matters.
    fn reset(&self) -> Timestamp {
        let newest = self.counts.iter().position(|&count| count > 0);
        newest.map_or(Timestamp::EPOCH, |age| self.expires_at(age))
    }

    fn fits(&self, limit: u64, hits: u64) -> bool {
        let slice = u128::from(self.slice_ns);
        let (full, partial) = self.full_and_partial();
        (full + u128::from(hits)) * slice + partial <= u128::from(limit) * slice
    }

    /// The count of the window rounded up, so that `limit − used` still fits.
    pub(super) fn used_ceil(&self) -> u64 {
        let (full, partial) = self.full_and_partial();
        let used = full + partial.div_ceil(u128::from(self.slice_ns));
        u64::try_from(used).unwrap_or(u64::MAX)
    }

    /// When the count of the window will have fallen to `target`.
    fn retry(&self, target: u64) -> Retry {
        let slice = u128::from(self.slice_ns);
        let mut newer: u128 = self.counts.iter().map(|&count| u128::from(count)).sum();
        // Slice by slice the next older one becomes the one that overlaps in part; after the last
        // there is none.
        let oldest_first = self.counts.iter().rev().chain(&[0]);
        let ahead = oldest_first.enumerate().find_map(|(slices, &oldest)| {
            newer = newer.saturating_sub(u128::from(oldest));
            let spare = u128::from(target).checked_sub(newer)?;
            // The part of the oldest slice that may still overlap when the request fits.
            let overlap =
                (spare * slice).checked_div(u128::from(oldest)).unwrap_or(slice).min(slice);
            (overlap > 0).then(|| slices as u128 * slice + (slice - overlap))
        });
        let Some(ahead) = ahead.and_then(|ns| u64::try_from(ns).ok()) else {
            return Retry::Never;
        };
        let start = self.index.saturating_mul(self.slice_ns);
        let wait = Timestamp::from_nanos(start.saturating_add(ahead)).since(self.now);
        // Zero only where slice numbers or time saturate; a denied request never gets a zero wait.
        Retry::After(wait.max(Span::from_nanos(1)))
    }

    /// The hits of the slices that count in full, and those of the oldest times its overlap.
    fn full_and_partial(&self) -> (u128, u128) {
        let Some((&oldest, full)) = self.counts.split_last() else { return (0, 0) };
        let overlap = u128::from(self.slice_ns - self.elapsed());
        (full.iter().map(|&count| u128::from(count)).sum(), u128::from(oldest) * overlap)
    }

    /// The part of the current slice that has passed; zero after the clock stepped back.
    fn elapsed(&self) -> u64 {
        let start = self.index.saturating_mul(self.slice_ns);
        self.now.as_nanos().saturating_sub(start).min(self.slice_ns.saturating_sub(1))
    }
}

/// Subtracts `refund` from `counts`, the newest first; each count stops at zero.
pub(super) fn take_refund(counts: &mut [u64], mut refund: u64) {
    for count in counts {
        let part = refund.min(*count);
        *count -= part;
        refund -= part;
    }
}

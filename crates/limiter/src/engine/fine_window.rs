//! Fine windows: a sliding window counter that knows when each hit passed, to 1/31,250 of a window.
//!
//! # Idea
//!
//! Two counts err where it matters, near the limit: how many hits of the previous window still
//! count depends on when they came. Far from the limit the error decides nothing. So a key that has
//! used a fifth of its limit gets a *ring*: the hits of the last window by the *tick* in which
//! they passed, oldest first, like a log whose times have 16 bits. It loses the ring when it is far
//! from the limit again. The two counts are kept beside it, so that nothing is forgotten without
//! it.
//!
//! # Formula
//!
//! ```text
//! tick      = window / 31,250, or window / 1,000 for limits above 1,000
//! live      = hits whose tick ended in (now − window, …)     a hit leaves a window after its tick
//! admit n   ⇔ live + n ≤ limit
//! remaining = limit − live
//! retry     = when enough of the oldest have left;  never when n > limit
//! reset     = when the newest has left
//! ```
//!
//! **When a ring begins**, what two counts say is left of the previous window is spread evenly over
//! its part. Of the earlier hits of this window, as many as came in the same time of the previous
//! one are spread evenly as well, and all others are taken for hits of this tick: they cannot have
//! passed later, and a burst has just begun. At that instant both forms give the same verdict. A
//! ring ends at such an instant too.
//!
//! **Costs of work that was done** count whatever is left. One that exceeds what is left of a key
//! without a ring begins it with the hits before it, so that its own have their tick.
//!
//! # Example
//!
//! 100 a minute: a tick is 1.92 ms. 25 hits pass at 12:00:50, and 75 more within a second. The next
//! is denied: retry at 12:01:50, when the tick of the 25 has left, within two milliseconds. Two
//! counts would have admitted one at 12:01:00.6.
//!
//! # Bound
//!
//! A hit counts for a window and at most one tick more, but for costs far beyond the limit, below.
//! So of the hits that passed since the ring began, at most `limit` pass in any stretch of a
//! window, and one is refused for at most 1/31,250 of a window too long, or 1/1,000 for a large
//! limit. Hits before the ring, less than a fifth of the limit in most cases, are placed by an
//! estimate, as all are with two counts; a window later there are none.
//!
//! A ring has an entry of 4 bytes for each hit, or each tick of a large limit, and at most 1,024:
//! of more, which only costs beyond the limit are, the oldest share one, as in a log. Of a cost for
//! which there are not enough, the rest leaves with the newest full one. [`FineKeys`] bounds how
//! many rings there are. A ring is known to one process: copies for other nodes and for disks are
//! the two counts ([`State::copy`](super::State::copy)), because a ring changes with each hit and
//! is worth nothing a window later.

use std::sync::Arc;

use super::fine_keys::{FineKeys, Place};
use super::ring::Ring;
use super::verdict::{Retry, Verdict};
use super::windows::{self, TwoCounts};
use crate::quota::{Algorithm, Quota};
use crate::units::{Hits, Span, Timestamp};

/// A ring begins when this part of the limit is used.
pub const NEAR_DIVISOR: u32 = 5;
/// A ring ends when this window and the one before it together have less than this part of the
/// limit: not as soon as fewer hits count than it took to begin it.
const FAR_DIVISOR: u32 = 8;
/// Largest limit with a ring: a tick takes an entry for each 65,535 hits.
pub const LIMIT_MAX: u32 = 1_000_000;

/// Limits up to this one have an entry for each hit, so their ticks may be short.
const SMALL_LIMIT_MAX: u32 = 1_000;
/// Ticks of a window. It divides every window of whole milliseconds, and with one tick more their
/// numbers differ in the lower 16 bits.
const TICKS: u64 = 31_250;
/// Ticks of a window of a large limit: as many as entries.
const TICKS_OF_LARGE_LIMIT: u64 = 1_000;

/// Two counts and a ring.
#[derive(Clone, Debug)]
pub struct FineWindow {
    counts: TwoCounts,
    ring: Ring,
    place: Place,
}

// === impl FineWindow ===

impl FineWindow {
    /// `None` where a ring is of no use, has no room, or would give another verdict than `counts`.
    /// It is of use if they are near the limit together with the hits that are `about_to_pass`.
    pub(super) fn begin(
        counts: TwoCounts,
        quota: &Quota,
        about_to_pass: u64,
        now: Timestamp,
        keys: &Arc<FineKeys>,
    ) -> Option<Self> {
        if !can_have_ring(quota) {
            return None;
        }
        let counts = counts.at(windows::index_at(now, quota));
        let begins = windows::start(counts.index, quota);
        let at = now.max(begins);
        let (used, limit) = (counts.used(quota, at), u64::from(quota.limit()));
        // Over the limit, the counts have an answer; a ring of that many hits would have no bound.
        let soon = used.saturating_add(about_to_pass);
        let is_near = soon.saturating_mul(u64::from(NEAR_DIVISOR)) >= limit;
        if soon == 0 || used > limit || !is_near {
            return None;
        }
        let place = keys.take()?;
        let mut fine = Self { counts, ring: Ring::new(tick_ns(quota), at), place };
        fine.push_estimate(used, quota, begins, at);
        fine.resize();
        Some(fine)
    }

    pub(super) const fn counts(&self) -> TwoCounts {
        self.counts
    }

    /// Whether its ring is one of `quota`. It is not after a change of the limit to a large one.
    pub(super) fn fits(&self, quota: &Quota) -> bool {
        can_have_ring(quota) && self.ring.tick_ns() == tick_ns(quota)
    }

    /// Counts hits that were allowed or are the cost of work that was done, or takes a refund;
    /// returns whether the ring is still of use.
    #[must_use]
    pub(super) fn count(&mut self, quota: &Quota, hits: Hits, now: Timestamp) -> bool {
        let (at, window) = (self.ring.effective(now), quota.window());
        self.counts = self.counts.counted(quota, hits, now);
        self.ring.count(hits, window, at);
        self.resize();
        let both = u64::from(self.counts.prev) + u64::from(self.counts.cur);
        // Where both forms agree, no verdict changes with the form.
        both * u64::from(FAR_DIVISOR) >= u64::from(quota.limit()).max(1)
            || self.counts.used(quota, at) != self.ring.live_at(at, window)
    }

    /// The verdict on a request. The caller counts the hits if they are allowed.
    pub(super) fn verdict(&self, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
        let (ring, limit, window) = (&self.ring, u64::from(quota.limit()), quota.window());
        let at = ring.effective(now);
        let live = ring.live_at(at, window);
        let after = live.saturating_sub(hits.refund()).saturating_add(hits.charge());
        let retry = if after <= limit || hits.refund() > 0 {
            Retry::Now
        } else if hits.charge() > limit {
            Retry::Never
        } else {
            let wait = |end: Timestamp| Retry::After(end.since(now).max(Span::from_nanos(1)));
            ring.expiry_of_oldest(after - limit, at, window).map_or(Retry::Never, wait)
        };
        let is_charged = retry == Retry::Now && hits.charge() > 0;
        let used = if retry == Retry::Now { after } else { live };
        let newest = if is_charged {
            Some(ring.leaves(ring.tick_at(at), window))
        } else {
            ring.expiry_of_newest(hits.refund(), at, window)
        };
        let reset = newest.map_or(Span::ZERO, |end| end.since(now));
        Verdict::new(quota, hits, limit.saturating_sub(used), reset, retry)
            .over(live.saturating_sub(limit))
    }

    /// The order by which [`State::merge`](super::State::merge) chooses between two rings of equal
    /// counts.
    pub(super) fn is_ring_below(&self, other: &Self) -> bool {
        self.ring < other.ring
    }

    /// Fills the ring with `used` hits, of which only the counts are known.
    fn push_estimate(&mut self, used: u64, quota: &Quota, begins: Timestamp, at: Timestamp) {
        let (ring, window) = (&mut self.ring, quota.window());
        let (prev, cur) = (u64::from(self.counts.prev), u64::from(self.counts.cur));
        let oldest = ring.tick_at(at.minus(window));
        let (first, tick) = (ring.tick_at(begins), ring.tick_at(at));
        ring.push_evenly(used - cur, oldest, first.saturating_sub(1));
        // As many as came in this part of the previous window; the others not before now.
        let elapsed = u128::from(at.since(begins).as_nanos());
        let usual = u128::from(prev) * elapsed / u128::from(window.as_nanos().max(1));
        let usual = u64::try_from(usual).unwrap_or(u64::MAX).min(cur);
        ring.push_evenly(usual, first, tick);
        ring.push(tick, cur - usual);
    }

    fn resize(&mut self) {
        self.place.resize(size_of::<Self>() + self.ring.bytes());
    }
}

/// The number of keys and of bytes does not belong to the state.
impl PartialEq for FineWindow {
    fn eq(&self, other: &Self) -> bool {
        (self.counts, &self.ring) == (other.counts, &other.ring)
    }
}

impl Eq for FineWindow {}

fn can_have_ring(quota: &Quota) -> bool {
    quota.algorithm() == Algorithm::SlidingWindowCounter
        && quota.sub_windows() == 1
        && quota.limit() <= LIMIT_MAX
}

fn tick_ns(quota: &Quota) -> u64 {
    let ticks = if quota.limit() <= SMALL_LIMIT_MAX { TICKS } else { TICKS_OF_LARGE_LIMIT };
    (quota.window().as_nanos() / ticks).max(1)
}

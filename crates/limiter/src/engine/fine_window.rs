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
//! # Example
//!
//! 100 a minute: a tick is 1.92 ms. 25 hits pass at 12:00:50, and 75 more within a second. The next
//! is denied: retry at 12:01:50, when the tick of the 25 has left, within two milliseconds. Two
//! counts would have admitted one at 12:01:00.6.
//!
//! # Bound
//!
//! A hit counts for a window and at most one tick more. So of the hits that passed since the ring
//! began, at most `limit` pass in any stretch of a window, and one is refused for at most 1/31,250
//! of a window too long, or 1/1,000 for a large limit. Hits before the ring, less than a fifth of
//! the limit in most cases, are placed by an estimate, as all are with two counts; a window later
//! there are none.
//!
//! A ring has an entry of 4 bytes for each hit, or each tick of a large limit, and at most 1,024;
//! [`FineKeys`] bounds how many rings there are. A ring is known to one process: copies for other
//! nodes and for disks are the two counts ([`State::copy`]), because a ring changes with each hit
//! and is worth nothing a window later.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::fixed_window;
use super::sliding_window_counter::{self as counter, Counts};
use super::state::State;
use super::verdict::{Retry, Verdict};
use crate::quota::{Algorithm, Quota};
use crate::units::{Hits, Span, Timestamp};

/// Limits up to this one have an entry for each hit, so their ticks may be short.
const SMALL_LIMIT_MAX: u32 = 1_000;
/// Ticks of a window. It divides every window of whole milliseconds, and with one tick more their
/// numbers differ in the lower 16 bits.
const TICKS: u64 = 31_250;
/// Ticks of a window of a large limit: as many as entries.
const TICKS_OF_LARGE_LIMIT: u64 = 1_000;
/// Largest limit with a ring: a tick takes an entry for each 65,535 hits.
pub const LIMIT_MAX: u32 = 1_000_000;

/// A ring begins when this part of the limit is used.
pub const NEAR_DIVISOR: u32 = 5;
/// A ring ends when this window and the one before it together have less than this part of the
/// limit: not as soon as fewer hits count than it took to begin it.
const FAR_DIVISOR: u32 = 8;

/// Entries for hits that are taken to have passed evenly.
const STEPS: u64 = 16;

/// Two counts and a ring.
#[derive(Clone, Debug)]
pub struct FineWindow {
    counts: Counts,
    ring: Ring,
    place: Place,
}

/// How many keys of a store have a ring, and how many may.
#[derive(Debug, Default)]
pub struct FineKeys {
    max: usize,
    keys: AtomicUsize,
    bytes: AtomicUsize,
}

/// Decides one request and counts it. The ring ends when the key is far from its limit.
pub(super) fn decide(state: &mut State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
    if let State::FineWindow(fine) = state
        && fine.fits(quota)
    {
        let verdict = fine.verdict(quota, hits, now);
        let is_counted = verdict.allowed && hits != Hits::PEEK;
        if is_counted && !fine.count(quota, hits, now) {
            state.coarsen();
        }
        return verdict;
    }
    let (next, verdict) = counter::evaluate(state, quota, hits, now);
    if let Some(next) = next {
        *state = next;
    }
    verdict
}

// === impl State ===

impl State {
    /// Begins a ring if the counts are near the limit, and if `keys` has room.
    pub fn refine(&mut self, quota: &Quota, now: Timestamp, keys: &Arc<FineKeys>) {
        if let Self::SlidingCounter { index, prev, cur } = *self
            && let Some(fine) = FineWindow::begin((index, prev, cur), quota, now, keys)
        {
            *self = Self::FineWindow(Box::new(fine));
        }
    }

    /// What other nodes and disks get to know: everything but a ring.
    #[must_use]
    pub fn copy(&self) -> Self {
        match self {
            Self::FineWindow(fine) => fine.two_counts(),
            other => other.clone(),
        }
    }

    /// Ends the ring, if there is one.
    pub(crate) fn coarsen(&mut self) {
        if let Self::FineWindow(fine) = self {
            *self = fine.two_counts();
        }
    }
}

// === impl FineWindow ===

impl FineWindow {
    /// `None` where a ring is of no use, has no room, or would give another verdict than `counts`.
    fn begin(counts: Counts, quota: &Quota, now: Timestamp, keys: &Arc<FineKeys>) -> Option<Self> {
        if !can_have_ring(quota) {
            return None;
        }
        let (index, prev, cur) = counter::advance(Some(counts), fixed_window::index_at(now, quota));
        let window_ns = quota.window().as_nanos();
        let begins = Timestamp::from_nanos(u64::from(index).saturating_mul(window_ns));
        let (at, counts) = (now.max(begins), (index, prev, cur));
        let used = used(counts, quota, at);
        let limit = u64::from(quota.limit());
        // Over the limit, the counts have an answer; a ring of that many hits would have no bound.
        let is_near = used.saturating_mul(u64::from(NEAR_DIVISOR)) >= limit;
        if used == 0 || used > limit || !is_near {
            return None;
        }
        let mut fine = Self { counts, ring: Ring::new(quota, at), place: keys.take()? };
        let (first, tick) = (fine.ring.tick_at(begins), fine.ring.tick_at(at));
        let oldest = fine.ring.tick_at(at.minus(quota.window()));
        fine.ring.push_evenly(used - u64::from(cur), oldest, first.saturating_sub(1));
        // As many as came in this part of the previous window; the others not before now.
        let elapsed = u128::from(at.since(begins).as_nanos());
        let usual = u128::from(prev) * elapsed / u128::from(window_ns.max(1));
        let usual = u64::try_from(usual).unwrap_or(u64::MAX).min(u64::from(cur));
        fine.ring.push_evenly(usual, first, tick);
        fine.ring.push(tick, u64::from(cur) - usual);
        fine.place.resize(fine.ring.bytes());
        Some(fine)
    }

    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn two_counts(&self) -> State {
        let (index, prev, cur) = self.counts;
        State::SlidingCounter { index, prev, cur }
    }

    /// Whether its ring is one of `quota`. It is not after a change of the limit to a large one.
    pub(super) fn fits(&self, quota: &Quota) -> bool {
        can_have_ring(quota) && self.ring.tick_ns == tick_ns(quota)
    }

    /// Counts hits that were allowed, or takes a refund; returns whether the ring is still of use.
    #[must_use]
    pub(super) fn count(&mut self, quota: &Quota, hits: Hits, now: Timestamp) -> bool {
        let at = self.ring.effective(now);
        self.counts = counter::counted(self.counts, quota, hits, now);
        self.ring.count(hits, quota.window(), at);
        self.place.resize(self.ring.bytes());
        let (_, prev, cur) = self.counts;
        let hits = (u64::from(prev) + u64::from(cur)) * u64::from(FAR_DIVISOR);
        // Where both forms agree, no verdict changes with the form.
        hits >= u64::from(quota.limit()).max(1)
            || used(self.counts, quota, at) != u64::from(self.ring.live)
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
    }

    /// The order by which [`State::merge`] chooses between two rings of equal counts.
    pub(super) fn is_ring_below(&self, other: &Self) -> bool {
        self.ring < other.ring
    }
}

/// The number of keys and of bytes does not belong to the state.
impl PartialEq for FineWindow {
    fn eq(&self, other: &Self) -> bool {
        (self.counts, &self.ring) == (other.counts, &other.ring)
    }
}

impl Eq for FineWindow {}

/// Hits that two counts take to be in the window, rounded up as for `remaining`.
fn used((index, prev, cur): Counts, quota: &Quota, at: Timestamp) -> u64 {
    let window = quota.window().as_nanos();
    let elapsed = at.as_nanos().saturating_sub(u64::from(index).saturating_mul(window));
    let overlap = u128::from(prev) * u128::from(window.saturating_sub(elapsed));
    let overlap = overlap.div_ceil(u128::from(window.max(1)));
    u64::try_from(overlap).unwrap_or(u64::MAX).saturating_add(u64::from(cur))
}

fn can_have_ring(quota: &Quota) -> bool {
    quota.algorithm() == Algorithm::SlidingWindowCounter
        && quota.sub_windows() == 1
        && quota.limit() <= LIMIT_MAX
}

fn tick_ns(quota: &Quota) -> u64 {
    let ticks = if quota.limit() <= SMALL_LIMIT_MAX { TICKS } else { TICKS_OF_LARGE_LIMIT };
    (quota.window().as_nanos() / ticks).max(1)
}

// === impl Ring ===

/// The hits of the last window, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ring {
    /// When it was last counted in. No decision is made at an earlier instant, and no entry is more
    /// than a window older.
    latest: Timestamp,
    tick_ns: u64,
    /// Hits of all entries, also of those that have expired since.
    live: u32,
    entries: VecDeque<Entry>,
}

/// Hits of one tick, or 65,535 of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// The lower 16 bits of the number of the tick.
    tick: u16,
    hits: u16,
}

impl Ring {
    fn new(quota: &Quota, at: Timestamp) -> Self {
        let (tick_ns, entries) = (tick_ns(quota), VecDeque::new());
        Self { latest: at, tick_ns, live: 0, entries }
    }

    fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    fn effective(&self, now: Timestamp) -> Timestamp {
        now.max(self.latest)
    }

    fn tick_at(&self, at: Timestamp) -> u64 {
        at.as_nanos() / self.tick_ns
    }

    /// When the hits of a tick leave the window.
    fn leaves(&self, tick: u64, window: Span) -> Timestamp {
        self.last_instant(tick).plus(window)
    }

    fn last_instant(&self, tick: u64) -> Timestamp {
        Timestamp::from_nanos(tick.saturating_add(1).saturating_mul(self.tick_ns) - 1)
    }

    fn is_live(&self, tick: u64, at: Timestamp, window: Span) -> bool {
        self.last_instant(tick) > at.minus(window)
    }

    /// The tick and the hits of each entry, oldest first.
    fn ticks(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        self.entries.iter().map(|entry| (self.tick_of(*entry), u64::from(entry.hits)))
    }

    #[allow(clippy::cast_possible_truncation, reason = "the lower bits are meant")]
    fn tick_of(&self, entry: Entry) -> u64 {
        let newest = self.tick_at(self.latest);
        newest.saturating_sub(u64::from((newest as u16).wrapping_sub(entry.tick)))
    }

    /// Hits that count at `at`.
    fn live_at(&self, at: Timestamp, window: Span) -> u64 {
        let expired = self.ticks().take_while(|(tick, _)| !self.is_live(*tick, at, window));
        u64::from(self.live).saturating_sub(expired.map(|(_, hits)| hits).sum())
    }

    /// When `hits` of the oldest live ones will have left.
    fn expiry_of_oldest(&self, hits: u64, at: Timestamp, window: Span) -> Option<Timestamp> {
        let mut left = hits;
        let live = self.ticks().skip_while(|(tick, _)| !self.is_live(*tick, at, window));
        let mut leaving = live.skip_while(|(_, hits)| {
            let is_before = *hits < left;
            left = left.saturating_sub(*hits);
            is_before
        });
        leaving.next().map(|(tick, _)| self.leaves(tick, window))
    }

    /// When the newest live ones will have left, after a refund.
    fn expiry_of_newest(&self, refund: u64, at: Timestamp, window: Span) -> Option<Timestamp> {
        let mut left = refund;
        let mut kept = self.ticks().rev().skip_while(|(_, hits)| {
            let is_taken = *hits <= left;
            left = left.saturating_sub(*hits);
            is_taken
        });
        let (newest, _) = kept.next()?;
        self.is_live(newest, at, window).then(|| self.leaves(newest, window))
    }

    fn count(&mut self, hits: Hits, window: Span, at: Timestamp) {
        let expired = self.ticks().take_while(|(tick, _)| !self.is_live(*tick, at, window)).count();
        let left: u32 = self.entries.drain(..expired).map(|entry| u32::from(entry.hits)).sum();
        self.live = self.live.saturating_sub(left);
        self.latest = at;
        // What a burst took is given back when it has left.
        if self.entries.len() < self.entries.capacity() / 8 {
            self.entries.shrink_to(self.entries.capacity() / 4);
        }
        self.take_back(hits.refund());
        self.push(self.tick_at(at), hits.charge());
    }

    /// Adds hits of which it is only known that they passed after tick `from` and up to tick `to`,
    /// each a little late.
    fn push_evenly(&mut self, hits: u64, from: u64, to: u64) {
        let steps = hits.min(STEPS);
        for step in 1..=steps {
            let tick = from + to.saturating_sub(from) * step / steps;
            self.push(tick, hits * step / steps - hits * (step - 1) / steps);
        }
    }

    /// Adds hits to a tick that is not older than the newest.
    #[allow(clippy::cast_possible_truncation, reason = "the lower bits are meant")]
    fn push(&mut self, tick: u64, hits: u64) {
        if hits == 0 {
            return;
        }
        self.live = self.live.saturating_add(u32::try_from(hits).unwrap_or(u32::MAX));
        let mut left = hits;
        let tick = tick as u16;
        if let Some(entry) = self.entries.back_mut().filter(|entry| entry.tick == tick) {
            left -= add_to(&mut entry.hits, left);
        }
        while left > 0 {
            let mut entry = Entry { tick, hits: 0 };
            left -= add_to(&mut entry.hits, left);
            self.entries.push_back(entry);
        }
    }

    /// Takes off the newest hits.
    fn take_back(&mut self, mut refund: u64) {
        while let Some(entry) = self.entries.back_mut().filter(|_| refund > 0) {
            let taken = u16::try_from(refund).unwrap_or(u16::MAX).min(entry.hits);
            entry.hits -= taken;
            refund -= u64::from(taken);
            self.live = self.live.saturating_sub(u32::from(taken));
            if entry.hits == 0 {
                self.entries.pop_back();
            }
        }
    }
}

/// Adds as many of `hits` as there is room for, and returns how many.
fn add_to(count: &mut u16, hits: u64) -> u64 {
    let added = u16::try_from(hits).unwrap_or(u16::MAX).min(u16::MAX - *count);
    *count += added;
    u64::from(added)
}

// === impl FineKeys ===

impl FineKeys {
    /// Room for the rings of `max` keys.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, ..Self::default() })
    }

    /// Keys that have a ring.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Memory of all rings.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) + self.keys() * size_of::<FineWindow>()
    }

    /// A place for one more, if there is room.
    fn take(self: &Arc<Self>) -> Option<Place> {
        let one_more = |keys: usize| (keys < self.max).then_some(keys + 1);
        self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Place { keys: Arc::clone(self), bytes: 0 })
    }
}

/// One of the rings of a [`FineKeys`], counted until it is dropped.
#[derive(Debug)]
struct Place {
    keys: Arc<FineKeys>,
    bytes: u32,
}

impl Place {
    #[inline]
    fn resize(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if bytes != self.bytes {
            self.keys.bytes.fetch_add(bytes as usize, Ordering::Relaxed);
            self.keys.bytes.fetch_sub(self.bytes as usize, Ordering::Relaxed);
            self.bytes = bytes;
        }
    }
}

/// A clone lives for the length of a merge, and may exceed the bound.
impl Clone for Place {
    fn clone(&self) -> Self {
        self.keys.keys.fetch_add(1, Ordering::Relaxed);
        self.keys.bytes.fetch_add(self.bytes as usize, Ordering::Relaxed);
        Self { keys: Arc::clone(&self.keys), bytes: self.bytes }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.keys.keys.fetch_sub(1, Ordering::Relaxed);
        self.keys.bytes.fetch_sub(self.bytes as usize, Ordering::Relaxed);
    }
}

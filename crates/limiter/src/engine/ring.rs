//! A ring: hits by the tick in which they passed, like a log whose times have 16 bits.
//!
//! A *tick* is a short part of a window, numbered from the epoch. Of each tick that has hits there
//! is an entry of four bytes: the lower 16 bits of its number, and up to 65,535 hits. No entry is
//! more than a window older than the newest, so a window of fewer than 65,536 ticks makes the
//! number unambiguous.
//!
//! ```text
//! leaves(tick) = (tick + 1)·tick_ns − 1 + window        when the hits of a tick leave the window
//! live(at)     = hits of the entries with leaves > at
//! ```
//!
//! Nothing is interpolated: a hit counts for a window and at most one tick more.
//!
//! # Example
//!
//! Ticks of 2 ms and a window of a minute. Three hits at 10.0005 s and one at 10.0015 s share an
//! entry; all four leave at 70.002 s, less a nanosecond.

use std::collections::VecDeque;

use crate::units::{Hits, Span, Timestamp};

/// Entries for hits that are taken to have passed evenly.
const STEPS: u64 = 16;
/// Most entries: one for each hit of a small limit, one for each tick and 65,535 hits of a large
/// one. Only an overrun would have more.
const ENTRIES_MAX: usize = 1_024;
/// Most hits of one cost that have entries of their own, which is more than one entry has.
const AT_ONCE_MAX: u64 = 1_000_000;

/// The hits of the last window, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ring {
    /// When it was last counted in. No entry is more than a window older.
    latest: Timestamp,
    tick_ns: u64,
    /// Hits of all entries, also of those that have expired since.
    live: u32,
    /// Hits beyond those, of costs for which there are not enough entries. They leave with the
    /// newest entry that is full, of which there is one then.
    surplus: u32,
    entries: VecDeque<Entry>,
}

/// Hits of one tick, or 65,535 of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// The lower 16 bits of the number of the tick.
    tick: u16,
    hits: u16,
}

// === impl Ring ===

impl Ring {
    pub(super) fn new(tick_ns: u64, at: Timestamp) -> Self {
        Self { latest: at, tick_ns, live: 0, surplus: 0, entries: VecDeque::new() }
    }

    pub(super) fn tick_ns(&self) -> u64 {
        self.tick_ns
    }

    /// Memory of the entries.
    pub(super) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// The instant at which a decision at `now` is made: not before it was last counted in.
    pub(super) fn effective(&self, now: Timestamp) -> Timestamp {
        now.max(self.latest)
    }

    pub(super) fn tick_at(&self, at: Timestamp) -> u64 {
        at.as_nanos() / self.tick_ns
    }

    /// When the hits of a tick leave the window.
    pub(super) fn leaves(&self, tick: u64, window: Span) -> Timestamp {
        self.last_instant(tick).plus(window)
    }

    /// Hits that count at `at`.
    pub(super) fn live_at(&self, at: Timestamp, window: Span) -> u64 {
        let expired = self.ticks().take_while(|(tick, _)| !self.is_live(*tick, at, window));
        let all = u64::from(self.live) + u64::from(self.surplus);
        all.saturating_sub(expired.map(|(_, hits)| hits).sum())
    }

    /// When `hits` of the oldest live ones will have left.
    pub(super) fn expiry_of_oldest(
        &self,
        hits: u64,
        at: Timestamp,
        window: Span,
    ) -> Option<Timestamp> {
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
    pub(super) fn expiry_of_newest(
        &self,
        refund: u64,
        at: Timestamp,
        window: Span,
    ) -> Option<Timestamp> {
        let mut left = refund;
        let mut kept = self.ticks().rev().skip_while(|(_, hits)| {
            let is_taken = *hits <= left;
            left = left.saturating_sub(*hits);
            is_taken
        });
        let (newest, _) = kept.next()?;
        self.is_live(newest, at, window).then(|| self.leaves(newest, window))
    }

    /// Counts hits at `at`, which is not before the last, or takes the newest back.
    pub(super) fn count(&mut self, hits: Hits, window: Span, at: Timestamp) {
        let expired = self.ticks().take_while(|(tick, _)| !self.is_live(*tick, at, window)).count();
        let left: u32 = self.entries.drain(..expired).map(|entry| u32::from(entry.hits)).sum();
        self.live = self.live.saturating_sub(left);
        if self.surplus > 0 && !self.entries.iter().any(|entry| entry.is_full()) {
            self.surplus = 0;
        }
        self.latest = at;
        // What a burst took is given back when it has left.
        if self.entries.len() < self.entries.capacity() / 8 {
            self.entries.shrink_to(self.entries.capacity() / 4);
        }
        self.take_back(hits.refund());
        let pushed = hits.charge().min(AT_ONCE_MAX);
        self.push(self.tick_at(at), pushed);
        self.add_surplus(hits.charge() - pushed);
        if self.entries.len() > ENTRIES_MAX {
            self.join_oldest();
        }
    }

    /// Joins the oldest of too many entries: their hits count for as long as the newest of them. As
    /// long as one of the others counts, these fill the limit, so this changes no verdict before
    /// hits are given back.
    fn join_oldest(&mut self) {
        while self.entries.len() > ENTRIES_MAX {
            let pairs = self.entries.iter().zip(self.entries.iter().skip(1));
            let fitting =
                pairs.map(|(a, b)| a.hits.checked_add(b.hits)).position(|it| it.is_some());
            let oldest = fitting.unwrap_or(0);
            let Some(Entry { hits, .. }) = self.entries.remove(oldest) else { return };
            if let Some(next) = self.entries.get_mut(oldest) {
                let beyond = u64::from(hits) - add_to(&mut next.hits, u64::from(hits));
                self.live -= u32::try_from(beyond).unwrap_or(0);
                self.add_surplus(beyond);
            }
        }
        self.entries.shrink_to(ENTRIES_MAX);
    }

    fn add_surplus(&mut self, hits: u64) {
        self.surplus = self.surplus.saturating_add(u32::try_from(hits).unwrap_or(u32::MAX));
    }

    /// Adds hits of which it is only known that they passed after tick `from` and up to tick `to`,
    /// each a little late.
    pub(super) fn push_evenly(&mut self, hits: u64, from: u64, to: u64) {
        let steps = hits.min(STEPS);
        for step in 1..=steps {
            let tick = from + to.saturating_sub(from) * step / steps;
            self.push(tick, hits * step / steps - hits * (step - 1) / steps);
        }
    }

    /// Adds hits to a tick that is not older than the newest.
    #[allow(clippy::cast_possible_truncation, reason = "the lower bits are meant")]
    pub(super) fn push(&mut self, tick: u64, hits: u64) {
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
            if entry.is_full() {
                let taken = u32::try_from(refund).unwrap_or(u32::MAX).min(self.surplus);
                self.surplus -= taken;
                refund -= u64::from(taken);
            }
            let taken = u16::try_from(refund).unwrap_or(u16::MAX).min(entry.hits);
            entry.hits -= taken;
            refund -= u64::from(taken);
            self.live = self.live.saturating_sub(u32::from(taken));
            if entry.hits == 0 {
                self.entries.pop_back();
            }
        }
    }

    fn is_live(&self, tick: u64, at: Timestamp, window: Span) -> bool {
        self.last_instant(tick) > at.minus(window)
    }

    fn last_instant(&self, tick: u64) -> Timestamp {
        Timestamp::from_nanos(tick.saturating_add(1).saturating_mul(self.tick_ns) - 1)
    }

    /// The tick and the hits of each entry, oldest first.
    fn ticks(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        let newest_full = match self.surplus {
            0 => None,
            _ => self.entries.iter().rposition(|entry| entry.is_full()),
        };
        self.entries.iter().enumerate().map(move |(index, entry)| {
            let surplus = if newest_full == Some(index) { self.surplus } else { 0 };
            (self.tick_of(*entry), u64::from(entry.hits) + u64::from(surplus))
        })
    }

    #[allow(clippy::cast_possible_truncation, reason = "the lower bits are meant")]
    fn tick_of(&self, entry: Entry) -> u64 {
        let newest = self.tick_at(self.latest);
        newest.saturating_sub(u64::from((newest as u16).wrapping_sub(entry.tick)))
    }
}

impl Entry {
    const fn is_full(self) -> bool {
        self.hits == u16::MAX
    }
}

/// Adds as many of `hits` as there is room for, and returns how many.
fn add_to(count: &mut u16, hits: u64) -> u64 {
    let added = u16::try_from(hits).unwrap_or(u16::MAX).min(u16::MAX - *count);
    *count += added;
    u64::from(added)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worked_example_holds() {
        let at = |micros: u64| Timestamp::from_nanos(micros * 1_000);
        let (minute, mut ring) = (Span::from_secs(60), Ring::new(2_000_000, at(10_000_000)));
        ring.count(Hits::new(3), minute, at(10_000_500));
        ring.count(Hits::ONE, minute, at(10_001_500));
        assert_eq!(ring.entries.len(), 1);
        let leaves = Timestamp::from_nanos(70_002_000_000 - 1);
        assert_eq!(ring.live_at(leaves.minus(Span::from_nanos(1)), minute), 4);
        assert_eq!(ring.live_at(leaves, minute), 0);
    }

    #[test]
    fn costs_that_are_given_back_leave_what_was_counted_before() {
        let at = |ms: u64| Timestamp::from_nanos(ms * 1_000_000);
        let minute = Span::from_secs(60);
        // Many small ones, large ones, more than have entries of their own, and more than there are
        // entries for.
        let costs = [(600, 1), (1, 2_000_000), (3, 60_000), (3, 300_000_000), (2_000, 40_000)];
        for (before, (count, cost)) in costs.into_iter().map(|costs| (1_000, costs)) {
            let mut ring = Ring::new(2_000_000, at(0));
            for tick in 0..before {
                ring.count(Hits::ONE, minute, at(2 * tick));
            }
            for tick in 0..count {
                ring.count(Hits::new(cost), minute, at(2_000 + 2 * tick));
            }
            assert!(ring.entries.len() <= ENTRIES_MAX);
            let all = i64::try_from(count).expect("few") * cost;
            let counted = before + u64::try_from(all).expect("above zero");
            assert_eq!(ring.live_at(at(10_000), minute), counted, "{count} of {cost}");
            ring.count(Hits::new(-all), minute, at(10_000));
            assert_eq!(ring.live_at(at(10_000), minute), before, "{count} of {cost}");
            assert_eq!(ring.ticks().map(|(_, hits)| hits).sum::<u64>(), before);
            ring.count(Hits::new(i64::from(u32::MAX)), minute, at(10_000));
            assert!(ring.live_at(at(69_000), minute) > u64::from(u32::MAX) - 2_000);
            assert_eq!(ring.live_at(at(70_002), minute), 0, "it leaves with its tick");
        }
    }
}

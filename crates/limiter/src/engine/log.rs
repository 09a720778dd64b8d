//! The boxed state of the sliding window log: the times of the admitted hits.
//!
//! Hits of the same nanosecond share an entry of 16 bytes. A log holds at most [`ENTRIES_MAX`]
//! entries, the largest limit. A merge can yield more, and so can costs of work that was done,
//! which count beyond the limit. None is dropped then, because hits may be given back, the newest
//! first: the oldest share an entry.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::quota::LOG_LIMIT_MAX;
use crate::units::{Span, Timestamp};

/// Most entries of one log; the largest limit.
pub const ENTRIES_MAX: usize = LOG_LIMIT_MAX as usize;

/// The admitted hits of one counter, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Parts")]
pub struct Log {
    /// Strictly ascending times, counts above zero.
    entries: VecDeque<Entry>,
    /// Hits of all entries, cached for the decision.
    #[serde(skip)]
    hits: u64,
    /// Time of the last change. Stored, because a refund may remove the newest entry.
    latest: u64,
}

/// Hits that passed at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    ns: u64,
    hits: u32,
}

/// Why serialized bytes are not a valid log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// More entries than [`ENTRIES_MAX`].
    #[error("a log of {0} entries is longer than {ENTRIES_MAX}; state rejected")]
    Length(usize),
    /// Times that do not ascend, or lie after the log's own time.
    #[error("the times of a log do not ascend; state rejected")]
    Order,
    /// An entry without hits.
    #[error("a log entry has no hits; state rejected")]
    Hits,
}

impl Log {
    /// The instant at which a request at `now` is decided: never before the last change.
    pub(super) fn effective(&self, now: Timestamp) -> Timestamp {
        now.max(self.latest())
    }

    /// Hits in the window that ends at `at`.
    pub(super) fn live(&self, at: Timestamp, window: Span) -> u64 {
        let gone: u64 = self.expired(at, window).map(|entry| u64::from(entry.hits)).sum();
        self.hits.saturating_sub(gone)
    }

    /// When at least `count` of the hits that are live at `at` have expired.
    pub(super) fn expiry_of_oldest(
        &self,
        count: u64,
        at: Timestamp,
        window: Span,
    ) -> Option<Timestamp> {
        let mut expired = 0;
        self.alive(at, window).find_map(|entry| {
            expired += u64::from(entry.hits);
            (expired >= count).then(|| entry.end(window))
        })
    }

    /// When the newest hit expires, not counting the newest `skip` hits; `None` when there is
    /// none.
    pub(super) fn expiry_of_newest(
        &self,
        skip: u64,
        at: Timestamp,
        window: Span,
    ) -> Option<Timestamp> {
        let mut skipped = 0;
        let newest = self.entries.iter().rev().find(|entry| {
            skipped += u64::from(entry.hits);
            skipped > skip
        })?;
        newest.is_alive(at, window).then(|| newest.end(window))
    }

    /// From this instant on no entry matters.
    pub(super) fn expires_at(&self, window: Span) -> Timestamp {
        let emptied = self.entries.back().map_or(Timestamp::EPOCH, |newest| newest.end(window));
        emptied.max(self.latest())
    }

    /// Time of the last change.
    pub(super) fn latest(&self) -> Timestamp {
        Timestamp::from_nanos(self.latest)
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Leaves out `latest`, which every denied request moves.
    pub(super) fn digest_words(&self) -> impl Iterator<Item = u64> {
        let entries = self.entries.iter().flat_map(|entry| [entry.ns, u64::from(entry.hits)]);
        std::iter::once(5).chain(entries)
    }

    /// Drops expired entries and frees excess capacity. Sets the time of the last change to `at`:
    /// a decision at an earlier time would miss the dropped entries.
    pub(super) fn drop_expired(&mut self, at: Timestamp, window: Span) {
        self.latest = self.latest.max(at.as_nanos());
        while let Some(entry) = self.entries.front()
            && !entry.is_alive(at, window)
        {
            self.hits = self.hits.saturating_sub(u64::from(entry.hits));
            self.entries.pop_front();
        }
        if self.entries.capacity() > 8 && self.entries.capacity() / 4 >= self.entries.len() {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// Adds `hits` at `at`, which is not before anything in the log.
    pub(super) fn record(&mut self, hits: u32, at: Timestamp) {
        let ns = at.as_nanos();
        self.latest = self.latest.max(ns);
        let added = match self.entries.back_mut() {
            Some(newest) if newest.ns >= ns => newest.add(hits),
            _ => {
                self.entries.push_back(Entry { ns, hits });
                hits
            }
        };
        self.hits = self.hits.saturating_add(u64::from(added));
    }

    /// Joins the oldest of too many entries: their hits count for as long as the newest of them. As
    /// long as one of the others counts, these fill every limit, so that changes no verdict before
    /// hits are given back.
    pub(super) fn join_oldest(&mut self, most: usize) {
        while self.entries.len() > most
            && let Some(oldest) = self.entries.pop_front()
            && let Some(next) = self.entries.front_mut()
        {
            let added = next.add(oldest.hits);
            self.hits = self.hits.saturating_sub(u64::from(oldest.hits - added));
        }
    }

    /// Removes `refund` hits, the newest first.
    pub(super) fn refund(&mut self, mut refund: u64) {
        while refund > 0
            && let Some(newest) = self.entries.back_mut()
        {
            let part = u32::try_from(refund).unwrap_or(u32::MAX).min(newest.hits);
            newest.hits -= part;
            refund -= u64::from(part);
            self.hits = self.hits.saturating_sub(u64::from(part));
            if newest.hits == 0 {
                self.entries.pop_back();
            }
        }
    }

    /// Takes the union; of entries of the same instant the larger one.
    pub(super) fn merge(&mut self, other: Self) {
        self.latest = self.latest.max(other.latest);
        let mut entries = VecDeque::with_capacity(self.entries.len().max(other.entries.len()));
        let mut mine = std::mem::take(&mut self.entries).into_iter().peekable();
        let mut theirs = other.entries.into_iter().peekable();
        loop {
            let entry = match (mine.peek(), theirs.peek()) {
                (Some(a), Some(b)) if a.ns == b.ns => {
                    let hits = a.hits.max(b.hits);
                    theirs.next();
                    mine.next().map(|entry| Entry { hits, ..entry })
                }
                (Some(a), Some(b)) if a.ns > b.ns => theirs.next(),
                (Some(_), _) => mine.next(),
                (None, _) => theirs.next(),
            };
            let Some(entry) = entry else { break };
            entries.push_back(entry);
        }
        self.hits = entries.iter().map(|entry| u64::from(entry.hits)).sum();
        self.entries = entries;
        self.join_oldest(ENTRIES_MAX);
    }

    fn expired(&self, at: Timestamp, window: Span) -> impl Iterator<Item = &Entry> {
        self.entries.iter().take_while(move |entry| !entry.is_alive(at, window))
    }

    fn alive(&self, at: Timestamp, window: Span) -> impl Iterator<Item = &Entry> {
        self.entries.iter().skip_while(move |entry| !entry.is_alive(at, window))
    }
}

impl Entry {
    /// Returns how many of `hits` there was room for.
    fn add(&mut self, hits: u32) -> u32 {
        let before = self.hits;
        self.hits = before.saturating_add(hits);
        self.hits - before
    }

    fn end(self, window: Span) -> Timestamp {
        Timestamp::from_nanos(self.ns).plus(window)
    }

    fn is_alive(self, at: Timestamp, window: Span) -> bool {
        // Not `end > at`: `end` saturates at the end of representable time.
        at.since(Timestamp::from_nanos(self.ns)) < window
    }
}

/// The wire form, before it is validated.
#[derive(Deserialize)]
struct Parts {
    entries: Vec<Entry>,
    latest: u64,
}

impl TryFrom<Parts> for Log {
    type Error = Error;

    fn try_from(Parts { entries, latest }: Parts) -> Result<Self, Error> {
        if entries.len() > ENTRIES_MAX {
            return Err(Error::Length(entries.len()));
        }
        if entries.iter().any(|entry| entry.hits == 0) {
            return Err(Error::Hits);
        }
        let ascends = entries.is_sorted_by(|a, b| a.ns < b.ns);
        if !ascends || entries.last().is_some_and(|newest| newest.ns > latest) {
            return Err(Error::Order);
        }
        let hits = entries.iter().map(|entry| u64::from(entry.hits)).sum();
        Ok(Self { entries: entries.into(), hits, latest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Span = Span::from_secs(60);

    fn log(times: impl IntoIterator<Item = u64>) -> Log {
        let mut log = Log::default();
        for ns in times {
            log.record(1, Timestamp::from_nanos(ns));
        }
        log
    }

    #[test]
    fn memory_is_freed_as_entries_expire() {
        let mut log = log(0..10_000);
        assert!(log.entries.capacity() >= 10_000);
        log.drop_expired(Timestamp::from_nanos(10_000).plus(WINDOW), WINDOW);
        assert_eq!((log.entries.len(), log.hits), (0, 0));
        assert!(log.entries.capacity() < 16, "{} entries kept", log.entries.capacity());
    }

    #[test]
    fn a_merge_joins_the_oldest_entries_beyond_the_bound_and_loses_no_hit() {
        let mut even = log((0..10_000).map(|n| 2 * n));
        even.merge(log((0..10_000).map(|n| 2 * n + 1)));
        assert_eq!((even.entries.len(), even.hits), (ENTRIES_MAX, 20_000));
        assert_eq!(even.entries.front(), Some(&Entry { ns: 10_000, hits: 10_001 }));
    }

    #[test]
    fn invalid_logs_are_rejected() {
        let entry = |ns, hits| Entry { ns, hits };
        let check = |entries: Vec<Entry>, latest| Log::try_from(Parts { entries, latest }).err();
        assert_eq!(check(vec![entry(1, 1), entry(2, 1)], 2), None);
        assert_eq!(check(vec![entry(2, 1), entry(1, 1)], 2), Some(Error::Order));
        assert_eq!(check(vec![entry(1, 1), entry(1, 1)], 2), Some(Error::Order));
        assert_eq!(check(vec![entry(3, 1)], 2), Some(Error::Order));
        assert_eq!(check(vec![entry(1, 0)], 2), Some(Error::Hits));
        assert_eq!(check(vec![entry(1, u32::MAX)], 2), None);
        let long = (0..=10_000).map(|ns| entry(ns, 1)).collect();
        assert_eq!(check(long, 10_000), Some(Error::Length(10_001)));
    }
}

//! The counters that one round writes, taken from the store in small batches.
//!
//! A round may take a million keys, and a log has 160 kB, so memory holds one batch of states, and
//! the keys of the round in case its write fails.

use std::vec;

use tidegate_limiter::store::{Cursor, KeyHash, Store, StoredCounter};
use tidegate_limiter::units::Timestamp;

/// Counters that are copied out of the store at once.
const BATCH_KEYS: usize = 256;

/// Most counters of a round, whose keys take 4 MiB. The next round continues where it stopped.
const ROUND_KEYS_MAX: usize = 262_144;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    /// Counters that changed since they were written.
    Changed,
    /// Every counter of a long window: the file is new, and memory has what the old one held.
    All,
}

/// Iterates over the counters of one round.
pub(super) struct Round<'a> {
    store: &'a Store,
    selection: Selection,
    now: Timestamp,
    /// Where the scan continues; `None` at its end.
    next: Option<Cursor>,
    batch: vec::IntoIter<StoredCounter>,
    taken: Vec<KeyHash>,
}

impl<'a> Round<'a> {
    pub(super) fn new(
        store: &'a Store,
        selection: Selection,
        from: Cursor,
        now: Timestamp,
    ) -> Self {
        let (batch, taken) = (Vec::new().into_iter(), Vec::new());
        Self { store, selection, now, next: Some(from), batch, taken }
    }

    /// The keys taken so far, and where the scan continues.
    pub(super) fn end(self) -> (Vec<KeyHash>, Option<Cursor>) {
        (self.taken, self.next)
    }

    fn step(&self, from: Cursor, out: &mut Vec<StoredCounter>) -> Option<Cursor> {
        match self.selection {
            Selection::Changed => self.store.drain_snapshot_queue(from, self.now, BATCH_KEYS, out),
            Selection::All => self.store.scan(from, self.now, BATCH_KEYS, KeyHash::is_long, out),
        }
    }
}

impl Iterator for Round<'_> {
    type Item = StoredCounter;

    fn next(&mut self) -> Option<StoredCounter> {
        loop {
            if let Some(counter) = self.batch.next() {
                return Some(counter);
            }
            let from = self.next.filter(|_| self.taken.len() < ROUND_KEYS_MAX)?;
            let mut batch = Vec::new();
            self.next = self.step(from, &mut batch);
            // A share is used while this node has no owner to ask; the next start does not need it.
            batch.retain(|counter| !counter.key.is_share());
            self.taken.extend(batch.iter().map(|counter| counter.key));
            self.batch = batch.into_iter();
        }
    }
}

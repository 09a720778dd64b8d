//! What a round writes, taken from the store a little at a time.
//!
//! A round may hold a million keys, and a log takes 160 kB: so what is in memory beside the store
//! is one batch, and the names of what was taken.

use std::vec;

use tidegate_limiter::store::{Cursor, KeyHash, Store, StoredCounter};
use tidegate_limiter::units::Timestamp;

/// Counters that are copied out of the store at once.
const BATCH_KEYS: usize = 256;

/// Most counters of a round; 4 MiB of names. The rest is the next round's, which goes on where this
/// one stopped.
pub(super) const ROUND_KEYS_MAX: usize = 262_144;

/// Which counters are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Those that hold something unsaved.
    Unsaved,
    /// Every one of a long window: the file is new, and memory holds what the last one had.
    All,
}

/// The counters of one round.
pub(super) struct Changes<'a> {
    store: &'a Store,
    which: Which,
    now: Timestamp,
    /// Where the walk goes on; `None` at its end.
    next: Option<Cursor>,
    batch: vec::IntoIter<StoredCounter>,
    taken: Vec<KeyHash>,
}

impl<'a> Changes<'a> {
    pub(super) fn new(store: &'a Store, which: Which, from: Cursor, now: Timestamp) -> Self {
        let (batch, taken) = (Vec::new().into_iter(), Vec::new());
        Self { store, which, now, next: Some(from), batch, taken }
    }

    /// What was taken so far, and where the walk goes on.
    pub(super) fn end(self) -> (Vec<KeyHash>, Option<Cursor>) {
        (self.taken, self.next)
    }

    fn step(&self, from: Cursor, out: &mut Vec<StoredCounter>) -> Option<Cursor> {
        match self.which {
            Which::Unsaved => self.store.drain_snapshot_queue(from, self.now, BATCH_KEYS, out),
            Which::All => self.store.scan(from, self.now, BATCH_KEYS, KeyHash::is_long, out),
        }
    }
}

impl Iterator for Changes<'_> {
    type Item = StoredCounter;

    fn next(&mut self) -> Option<StoredCounter> {
        loop {
            if let Some(counted) = self.batch.next() {
                return Some(counted);
            }
            let from = self.next.filter(|_| self.taken.len() < ROUND_KEYS_MAX)?;
            let mut batch = Vec::new();
            self.next = self.step(from, &mut batch);
            // A share concerns this node's time without an owner alone, not its next start.
            batch.retain(|counted| !counted.key.is_share());
            self.taken.extend(batch.iter().map(|counted| counted.key));
            self.batch = batch.into_iter();
        }
    }
}

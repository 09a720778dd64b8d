//! What a store holds and what it had to do to stay inside its bounds.

use super::Store;

/// A sum over all shards, each read at its own moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Counters held, expired ones that were not met yet included.
    pub keys: usize,
    /// Counters that were removed because they no longer mattered.
    pub expired: u64,
    /// Asks of new keys that were answered by a shared counter because the store was full.
    pub overflowed: u64,
    /// New keys that were refused because the store was full.
    pub refused: u64,
    /// Eventual keys in line to be sent.
    pub dirty: usize,
    /// Strict keys in line to be sent.
    pub changed: usize,
    /// Locks the keys are spread over.
    pub shards: usize,
    /// Memory of tables and lines. What a log or a column set keeps outside its slot is not in it.
    pub bytes: usize,
}

impl Store {
    /// Adds up the shards. Takes each lock for an instant; for a metrics scrape, not for a request.
    pub fn stats(&self) -> Stats {
        let bytes = size_of_val(&*self.shards) + self.overflow.bytes();
        let start = Stats { bytes, shards: self.shards.len(), ..Stats::default() };
        self.shards.iter().fold(start, |sum, shard| {
            let shard = shard.lock();
            Stats {
                keys: sum.keys + shard.table.len(),
                expired: sum.expired + shard.counts.expired,
                overflowed: sum.overflowed + shard.counts.overflowed,
                refused: sum.refused + shard.counts.refused,
                dirty: sum.dirty + shard.queues.eventual_len(),
                changed: sum.changed + shard.queues.strict_len(),
                bytes: sum.bytes + shard.bytes(),
                ..sum
            }
        })
    }
}

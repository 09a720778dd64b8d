//! Where counters live: sharded, bounded, one lock a decision.
//!
//! A key's `token` picks its shard, so all limits of a descriptor share one; its `tag` picks the
//! slot inside. A check takes its shard's lock, decides and lets go: some ten to some hundred
//! nanoseconds, in which no memory is allocated but for a new key's share of the next larger array.
//!
//! - [`check`](Store::check) decides strict keys, [`check_eventual`](Store::check_eventual)
//!   eventual ones in this node's own column.
//! - `table` and `slot` say how a key costs under 50 bytes, `shard` how slots expire, `overflow`
//!   what happens when there is no room, `dirty`, `queues`, `eventual`, `far` and `changed` how
//!   changes reach the peers, `unsaved` how they reach the disk, `scan` how counters move to
//!   another node.
//!
//! **Invariant:** a counter that still matters is never given up to make room for another.
//!
//! **Invariant:** no step under a lock looks at more slots than its constant names, with two
//! exceptions: a key that comes or goes moves the run of neighbours behind it, some 50 slots on
//! average, and growing or shrinking moves all slots of one shard, some 4,096 (see [`Options`]).

mod background_scan;
mod batch;
mod check;
mod counting_mode;
pub mod key;
mod key_queue;
mod options;
mod overflow;
mod page_index;
mod pages;
mod prefetch;
mod queues;
mod replication_queue;
mod scan;
mod shard;
mod slot;
mod snapshot_queue;
mod stats;
mod sync_queue;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

pub use background_scan::{BackgroundScan, LocalActor, SYNC_SLACK_DIVISOR};
pub use batch::SingleCheck;
pub use check::{Counter, Verdicts};
pub use key::{DescriptorHash, KeyHash, KeyHasher, Kind};
pub use key_queue::is_urgent;
pub use options::{OnFull, Options};
pub use scan::{Cursor, StoredCounter};
pub use stats::Stats;
pub use sync_queue::Merged;

use check::Question;
use counting_mode::CountingMode;
use overflow::Overflow;
use page_index::PageIndex;
use prefetch::prefetch;
use shard::Shard;

use crate::units::{Hits, Timestamp};

/// Slots a background sweep looks at before it lets go of a shard's lock.
const TEND_SLOTS: usize = 512;

/// All counters of a node.
#[derive(Debug)]
pub struct Store {
    shards: Box<[Padded]>,
    overflow: Overflow,
    /// Where the next drain of eventual keys starts.
    drain_from: AtomicUsize,
    /// The same for strict keys.
    changed_from: AtomicUsize,
    /// Where the next background sweep starts.
    tend_from: AtomicUsize,
}

/// What a check of a known key reads of a shard: a line that it also writes, and one more.
const HOT_BYTES: usize = 128;

/// A shard on cache lines of its own: the lock of one must not slow its neighbour.
#[derive(Debug)]
#[repr(C, align(128))]
struct Padded {
    shard: Mutex<Shard>,
    page_index: Arc<PageIndex>,
}

impl Padded {
    fn new(keys_max: usize) -> Self {
        let shard = Shard::new(keys_max);
        let page_index = shard.table.page_index();
        Self { shard: Mutex::new(shard), page_index }
    }

    fn lock(&self) -> MutexGuard<'_, Shard> {
        self.shard.lock()
    }

    /// Has the memory brought near that a search for `key` reads, and waits for nothing.
    #[inline]
    fn fetch(&self, key: KeyHash) {
        prefetch(std::ptr::from_ref(self).addr(), HOT_BYTES);
        self.page_index.fetch(key);
    }
}

/// What [`Options`] takes an empty shard to cost.
const _: () = assert!(size_of::<Padded>() == 256);

impl Store {
    /// An empty store. Memory is taken as keys come.
    pub fn new(options: Options) -> Self {
        let shards = options.shards();
        let keys_max = options.keys_max / shards;
        Self {
            shards: std::iter::repeat_with(|| Padded::new(keys_max)).take(shards).collect(),
            overflow: Overflow::new(options.on_full),
            drain_from: AtomicUsize::new(0),
            changed_from: AtomicUsize::new(0),
            tend_from: AtomicUsize::new(0),
        }
    }

    /// Decides the limits of one descriptor together, one verdict each in their order.
    ///
    /// All must let the hits pass, else none is charged (a single `fixed_window` counts what it
    /// refuses, as its algorithm says). Zero hits look and leave no trace. The counters share their
    /// `token` and have distinct tags.
    pub fn check(&self, counters: &[Counter], hits: Hits, now: Timestamp) -> Verdicts {
        self.decide(counters, Question { hits, now, counting_mode: CountingMode::Strict })
    }

    /// Like [`Store::check`], but only if `owns` says so under the lock; `None` if it does not,
    /// and then nothing was counted. A node that gives a range away asks here whether it still may.
    pub fn check_if(
        &self,
        counters: &[Counter],
        hits: Hits,
        now: Timestamp,
        owns: impl FnOnce() -> bool,
    ) -> Option<Verdicts> {
        let Some(first) = counters.first() else { return Some(Verdicts::new()) };
        let mut shard = self.lock_for(first.key);
        let question = Question { hits, now, counting_mode: CountingMode::Strict };
        owns().then(|| shard.check(counters, question, &self.overflow))
    }

    /// Takes and gives back the lock of every shard: afterwards no decision is under way that was
    /// permitted before.
    pub fn barrier(&self) {
        for padded in &self.shards {
            drop(padded.lock());
        }
    }

    /// Like [`Store::check`] for eventual limits: counts in the column of `me`, and puts the keys
    /// in line for [`Store::drain_sync_queue`], or leaves them to [`Store::drain_lazy`].
    pub fn check_eventual(
        &self,
        counters: &[Counter],
        hits: Hits,
        me: impl Into<LocalActor>,
        now: Timestamp,
    ) -> Verdicts {
        self.decide(
            counters,
            Question { hits, now, counting_mode: CountingMode::Eventual(me.into()) },
        )
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Forgets expired counters in the next `shards` shards, some hundred slots in each. Checks
    /// sweep what they use; this returns the memory of shards that nobody asks any more. For a
    /// timer in the background.
    pub fn expire(&self, shards: usize, now: Timestamp) {
        let shards = shards.min(self.shards.len());
        let start = self.tend_from.fetch_add(shards, Ordering::Relaxed);
        for (_, shard) in self.shards_from(start).take(shards) {
            let mut shard = shard.lock();
            let now = shard.instant(now);
            shard.sweep(now, TEND_SLOTS);
        }
    }

    fn decide(&self, counters: &[Counter], question: Question) -> Verdicts {
        let Some(first) = counters.first() else { return Verdicts::new() };
        self.lock_for(first.key).check(counters, question, &self.overflow)
    }

    /// Takes the lock of a key's shard. What a search for the key reads is on its way meanwhile:
    /// where another core used the shard last, the lock itself is waited for.
    fn lock_for(&self, key: KeyHash) -> MutexGuard<'_, Shard> {
        let shard = self.shard(key.token);
        shard.fetch(key);
        shard.lock()
    }

    /// The shard of a place. The ring may use the upper bits of a place, so the lower ones pick:
    /// a node that owns an arc of the ring still uses all of its shards.
    fn shard(&self, token: u64) -> &Padded {
        let share = (token & u64::from(u32::MAX)) * self.shards.len() as u64;
        let at = usize::try_from(share >> 32).unwrap_or(usize::MAX);
        &self.shards[at]
    }

    /// Drains the lines of shard after shard, at most `per_lock` keys under one lock, until `max`
    /// keys are found; `drain` returns what [`dirty::KeyQueue::drain`] does. Starts at `from`, and
    /// leaves there where to start next: where it had to stop, so that no shard starves.
    fn drain_shards(
        &self,
        from: &AtomicUsize,
        per_lock: usize,
        max: usize,
        mut drain: impl FnMut(&mut Shard, usize) -> (usize, bool),
    ) -> usize {
        let mut sent = 0;
        for (index, shard) in self.shards_from(from.load(Ordering::Relaxed)) {
            let mut more = true;
            while more {
                if sent == max {
                    from.store(index, Ordering::Relaxed);
                    return sent;
                }
                let drained = drain(&mut shard.lock(), per_lock.min(max - sent));
                sent += drained.0;
                more = drained.1;
            }
        }
        sent
    }

    fn shard_at(&self, index: usize) -> Option<&Padded> {
        self.shards.get(index)
    }

    /// All shards once with their index, starting with the one at `start`.
    fn shards_from(&self, start: usize) -> impl Iterator<Item = (usize, &Padded)> {
        let (before, from) = self.shards.split_at(start % self.shards.len());
        (before.len()..).zip(from).chain((0..).zip(before))
    }
}

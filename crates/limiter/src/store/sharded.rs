//! The store itself: an array of shards, each behind a lock of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::key::KeyHash;
use super::moved_windows::MovedWindows;
use super::occupancy::{InStore, Occupancy};
use super::options::Options;
use super::overflow::Overflow;
use super::pages::PageIndex;
use super::prefetch::prefetch;
use super::queues::Queues;
use super::shard::Shard;
use super::slot::Slot;
use super::unconfirmed::Unconfirmed;
use crate::engine::FineKeys;
use crate::units::Timestamp;

/// Slots that [`Store::expire`] looks at under one lock.
const EXPIRE_SLOTS: usize = 512;

/// `keys_max` divided by this is the maximum number of reservations, besides the counters.
const RESERVATIONS_DIVISOR: usize = 4;

/// All counters of a process.
#[derive(Debug)]
pub struct Store {
    pub(super) shards: Box<[PaddedShard]>,
    pub(super) overflow: Overflow,
    /// The shard at which the next drain of eventual keys starts.
    pub(super) sync_from: AtomicUsize,
    /// The shard at which the next drain of strict keys starts.
    pub(super) replication_from: AtomicUsize,
    /// The shard at which the next [`Store::expire`] starts.
    expire_from: AtomicUsize,
    fine_keys: Arc<FineKeys>,
    pub(super) unconfirmed: Arc<Unconfirmed>,
    pub(super) moved_windows: MovedWindows,
    /// Long keys that were dropped, and may be in a snapshot.
    pub(super) dropped: Mutex<Vec<KeyHash>>,
}

/// A sum over all shards, each read at a slightly different time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Counters held, including expired ones that no sweep has reached.
    pub keys: usize,
    /// Counters removed because they expired.
    pub expired: u64,
    /// New counters of requests that a shared counter stood for because the store was full.
    pub overflowed: u64,
    /// New counters that were refused because the store was full: of requests, once each time, and
    /// copies from peers.
    pub refused: u64,
    /// New counters of requests whose domain had its part of a store that was not full, each time.
    pub in_full_domains: u64,
    /// Per-actor counters from peers that were refused because their slice was full, each time that
    /// they were sent.
    pub actors_refused: u64,
    /// Eventual keys in the sync queues.
    pub sync_queue: usize,
    /// Strict keys in the replication queues.
    pub replication_queue: usize,
    /// Number of locks that the keys are spread over.
    pub shards: usize,
    /// Keys whose window is fine ([`Store::with_fine_keys`]).
    pub fine_keys: usize,
    /// Memory of tables, queues and the rings of fine windows. Excludes the boxed part of other
    /// states (logs, sub-windows, per-actor counters).
    pub bytes: usize,
}

/// What a check of an existing key reads of a shard: one cache line that it also writes, and one
/// more.
const HOT_BYTES: usize = 128;

/// A shard on cache lines of its own, so that the lock of one does not slow its neighbour.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct PaddedShard {
    shard: Mutex<Shard>,
    page_index: Arc<PageIndex>,
}

// [`Options`] calculates with this cost of an empty shard.
const _: () = assert!(size_of::<PaddedShard>() == 256);

impl PaddedShard {
    fn new(keys_max: usize, reservations: &Arc<InStore>) -> Self {
        let mut shard = Shard::new(keys_max);
        shard.occupancy = Box::new(Occupancy::new(reservations));
        let page_index = Arc::clone(&shard.table.page_index);
        Self { shard: Mutex::new(shard), page_index }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Shard> {
        self.shard.lock()
    }

    /// Prefetches the memory that a search for `key` reads. Does not block.
    #[inline]
    pub(super) fn prefetch(&self, key: KeyHash) {
        prefetch(std::ptr::from_ref(self).addr(), HOT_BYTES);
        self.page_index.prefetch(key);
    }
}

impl Store {
    /// An empty store. Memory is allocated as keys are added.
    pub fn new(options: Options) -> Self {
        let shards = options.shards();
        let keys_max = options.keys_max / shards;
        // Rounded up, so that also a store for a few keys has one.
        let reservations = Arc::new(InStore::new(options.keys_max.div_ceil(RESERVATIONS_DIVISOR)));
        let shard = || PaddedShard::new(keys_max, &reservations);
        Self {
            shards: std::iter::repeat_with(shard).take(shards).collect(),
            overflow: Overflow::new(options.on_full),
            sync_from: AtomicUsize::new(0),
            replication_from: AtomicUsize::new(0),
            expire_from: AtomicUsize::new(0),
            fine_keys: FineKeys::new(0),
            unconfirmed: Arc::default(),
            moved_windows: MovedWindows::default(),
            dropped: Mutex::default(),
        }
    }

    /// The keys of first-hit windows whose end is another one than checks before had found, since
    /// the last call.
    pub fn take_moved_windows(&self) -> Vec<KeyHash> {
        self.moved_windows.take()
    }

    /// Strict keys of a `sliding_window_counter` without sub-windows have a fine window near their
    /// limit ([`fine_window`](crate::engine::fine_window)), at most `max` keys at a time. Without
    /// this call, and beyond `max`, a key has two counts.
    #[must_use]
    pub fn with_fine_keys(mut self, max: usize) -> Self {
        self.fine_keys = FineKeys::new(max);
        for shard in &mut self.shards {
            let fine_keys = (max > 0).then(|| Arc::clone(&self.fine_keys));
            shard.shard.get_mut().fine_keys = fine_keys;
        }
        self
    }

    /// At most `max` keys of each domain, of a hasher that
    /// [names them](super::KeyHasher::with_domains); 0 is no bound. The store is empty.
    #[must_use]
    pub fn with_domain_keys(mut self, max: usize) -> Self {
        let mut in_store = None;
        for shard in &mut self.shards {
            let occupancy = &mut shard.shard.get_mut().occupancy;
            let shared = in_store.get_or_insert_with(|| occupancy.with_domain_keys(max));
            **occupancy = Occupancy::new(shared);
        }
        self
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Removes expired counters in the next `shards` shards, looking at some hundred slots in each.
    /// Checks sweep the shards that they use; this frees the memory of idle shards. Call it from a
    /// timer.
    pub fn expire(&self, shards: usize, now: Timestamp) {
        let shards = shards.min(self.shards.len());
        let start = self.expire_from.fetch_add(shards, Ordering::Relaxed);
        for (_, shard) in self.shards_from(start).take(shards) {
            let mut shard = shard.lock();
            let now = shard.instant(now);
            shard.sweep(now, EXPIRE_SLOTS);
        }
    }

    /// Locks and unlocks every shard: every decision whose `owns` was evaluated before this call
    /// has finished when it returns.
    pub fn barrier(&self) {
        for padded in &self.shards {
            drop(padded.lock());
        }
    }

    /// Sums the statistics of all shards. Takes every lock for a moment, so it is for a metrics
    /// scrape and not for a request.
    pub fn stats(&self) -> Stats {
        let bytes = size_of_val(&*self.shards) + self.overflow.bytes() + self.fine_keys.bytes();
        let (shards, fine_keys) = (self.shards.len(), self.fine_keys.keys());
        let start = Stats { shards, fine_keys, bytes, ..Stats::default() };
        self.shards.iter().fold(start, |sum, shard| {
            let shard = shard.lock();
            Stats {
                keys: sum.keys + shard.table.len(),
                expired: sum.expired + shard.counts.expired,
                overflowed: sum.overflowed + shard.counts.overflowed,
                refused: sum.refused + shard.counts.refused,
                in_full_domains: sum.in_full_domains + shard.counts.in_full_domains,
                actors_refused: sum.actors_refused + shard.counts.actors_refused,
                sync_queue: sum.sync_queue + shard.queues.eventual_len(),
                replication_queue: sum.replication_queue + shard.queues.strict_len(),
                bytes: sum.bytes + shard.bytes(),
                ..sum
            }
        })
    }

    /// Locks the shard of a key. The memory that a search for the key reads is prefetched, because
    /// locking waits for a cache line when another core used the shard last.
    pub(super) fn lock_for(&self, key: KeyHash) -> MutexGuard<'_, Shard> {
        let shard = self.shard(key.token);
        shard.prefetch(key);
        shard.lock()
    }

    /// The shard of a token. The hash ring may use the upper bits of a token, so the lower ones
    /// select: a node that owns one range of the ring still uses all of its shards.
    pub(super) fn shard(&self, token: u64) -> &PaddedShard {
        let share = (token & u64::from(u32::MAX)) * self.shards.len() as u64;
        let at = usize::try_from(share >> 32).unwrap_or(usize::MAX);
        &self.shards[at]
    }

    /// Changes the slot of `key` and the queues of its shard, if the key has one.
    pub(super) fn change_slot(&self, key: KeyHash, change: impl FnOnce(&mut Slot, &mut Queues)) {
        let shard = &mut *self.shard(key.token).lock();
        if let Some(slot) = shard.table.find_mut(key) {
            change(slot, &mut shard.queues);
        }
    }

    /// Drains the queues of shard after shard, at most `per_lock` keys under one lock, until `max`
    /// keys are sent. `drain` returns the number of keys that it sent and whether there are more.
    ///
    /// Starts at shard `from`, and sets it to the shard where the drain had to stop, so that no
    /// shard starves.
    pub(super) fn drain_shards(
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

    /// All shards once with their index, starting with the one at `start`.
    fn shards_from(&self, start: usize) -> impl Iterator<Item = (usize, &PaddedShard)> {
        let (before, from) = self.shards.split_at(start % self.shards.len());
        (before.len()..).zip(from).chain((0..).zip(before))
    }
}

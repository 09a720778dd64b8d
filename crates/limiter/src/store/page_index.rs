//! Where the slots of a shard lie, for whoever wants them brought near without its lock.
//!
//! A check that is still to come asks for its memory early (`each.rs`), and a lock is what it must
//! not wait for, nor make the present check wait for. So the shard writes down, whenever its table
//! is laid out anew, how many homes there are and where each page begins; a reader finds the
//! address of a key's home by that alone.
//!
//! What is read here may be of before or after a change, or half of each. It is good for a hint and
//! for nothing else: no address from here is ever read from.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::key::KeyHash;
use super::pages::{PAGE_SLOTS, Pages};
use super::prefetch::prefetch;
use super::slot::Slot;
use super::table::home;

/// What most searches read: 3 to 5.5 slots on average.
const SEARCH_BYTES: usize = 256;

/// The layout of one table.
#[derive(Debug, Default)]
pub(super) struct PageIndex {
    homes: AtomicUsize,
    /// Where the shard keeps the addresses of its pages, which a search reads too.
    index: AtomicUsize,
    /// The address of each page; pages behind the last that there is room for are not told.
    pages: Box<[AtomicUsize]>,
}

impl PageIndex {
    /// Room for the pages that a table of `keys_max` keys has, eight bytes each.
    pub(super) fn new(keys_max: usize) -> Self {
        let pages_max = keys_max.saturating_add(keys_max / 4) / PAGE_SLOTS + 2;
        let pages = std::iter::repeat_with(AtomicUsize::default).take(pages_max).collect();
        Self { pages, ..Self::default() }
    }

    /// Writes down a new layout.
    pub(super) fn tell(&self, homes: usize, slots: &Pages) {
        self.homes.store(homes, Ordering::Relaxed);
        self.index.store(slots.index_address(), Ordering::Relaxed);
        for (page, address) in self.pages.iter().zip(slots.addresses()) {
            page.store(address, Ordering::Relaxed);
        }
    }

    /// Has the slots brought near that a search for `key` looks at first.
    #[inline]
    pub(super) fn fetch(&self, key: KeyHash) {
        let at = home(key, self.homes.load(Ordering::Relaxed));
        let (number, index) = (at / PAGE_SLOTS, self.index.load(Ordering::Relaxed));
        if let Some(page) = self.pages.get(number) {
            prefetch(index.wrapping_add(number * size_of::<usize>()), 1);
            let offset = at % PAGE_SLOTS * size_of::<Slot>();
            prefetch(page.load(Ordering::Relaxed).wrapping_add(offset), SEARCH_BYTES);
        }
    }
}

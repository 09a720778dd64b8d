//! An array of slots in pages of one size, and an index of their addresses for prefetching.
//!
//! One contiguous array that grows in small steps fragments the heap: with hundreds of shards, a
//! third of the memory was holes. A freed page can be reused by any shard, and growing moves no
//! page.
//!
//! **Prefetching.** A check that comes later in a batch prefetches its memory (`check.rs`). It must
//! not take the lock for that. So the shard publishes the number of homes and the address of each
//! page whenever it rebuilds its table; the address of a key's home follows from them. A
//! reader may see the old layout, the new one, or a mix. That is sufficient for a hint: no address
//! from the index is ever dereferenced.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::key::KeyHash;
use super::prefetch::prefetch;
use super::slot::Slot;

/// Slots of a page: 7,160 bytes, which with the allocator's own word fill 7 KiB, a size class of
/// jemalloc.
///
/// A table has whole pages, so larger ones waste more memory in a small shard: over shards of 600
/// to 4,096 keys a key costs 47.5 bytes by calculation, with pages of 8 KiB 48.3, with 4 KiB 47.2.
/// Pages of 4 KiB need twice the addresses, and batches were slower in four of six runs.
pub(super) const PAGE_SLOTS: usize = 179;

type Page = [Slot; PAGE_SLOTS];

const _: () = assert!(size_of::<Page>() <= 7_168 - 8);

/// What most searches read: 3 to 5.5 slots on average.
const SEARCH_BYTES: usize = 256;

/// Slots by index, vacant ones included; a whole number of pages.
#[derive(Debug, Default)]
pub(super) struct Pages {
    #[allow(clippy::vec_box, reason = "one array of all slots would fragment the heap")]
    pages: Vec<Box<Page>>,
}

impl Pages {
    /// Number of slots.
    pub(super) fn len(&self) -> usize {
        self.pages.len() * PAGE_SLOTS
    }

    pub(super) fn bytes(&self) -> usize {
        self.pages.len() * size_of::<Page>() + self.pages.capacity() * size_of::<Box<Page>>()
    }

    pub(super) fn get(&self, at: usize) -> Option<&Slot> {
        self.pages.get(at / PAGE_SLOTS).map(|page| &page[at % PAGE_SLOTS])
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Slot> {
        self.pages.get_mut(at / PAGE_SLOTS).map(|page| &mut page[at % PAGE_SLOTS])
    }

    /// The slots of a range, which may reach beyond the end.
    pub(super) fn range(&self, range: Range<usize>) -> impl Iterator<Item = &Slot> {
        let (first, offset) = (range.start / PAGE_SLOTS, range.start % PAGE_SLOTS);
        let pages = self.pages.get(first..).unwrap_or_default();
        pages.iter().flat_map(|page| page.iter()).skip(offset).take(range.len())
    }

    /// The slots of a range, which may reach beyond the end.
    pub(super) fn range_mut(&mut self, range: Range<usize>) -> impl Iterator<Item = &mut Slot> {
        let (first, offset) = (range.start / PAGE_SLOTS, range.start % PAGE_SLOTS);
        let pages = self.pages.get_mut(first..).unwrap_or_default();
        pages.iter_mut().flat_map(|page| page.iter_mut()).skip(offset).take(range.len())
    }

    /// The first slot from `start` on that satisfies `is_it`; the number of slots if none does.
    pub(super) fn position(&self, start: usize, is_it: impl Fn(&Slot) -> bool) -> usize {
        let (first, mut offset) = (start / PAGE_SLOTS, start % PAGE_SLOTS);
        for (page, number) in self.pages.get(first..).unwrap_or_default().iter().zip(first..) {
            if let Some(found) = page[offset..].iter().position(&is_it) {
                return number * PAGE_SLOTS + offset + found;
            }
            offset = 0;
        }
        self.len()
    }

    /// Moves the slot at `from` to `to`, which is vacant or the same slot.
    pub(super) fn move_slot(&mut self, from: usize, to: usize) {
        if from != to {
            let slot = self.get_mut(from).map(std::mem::take).unwrap_or_default();
            if let Some(target) = self.get_mut(to) {
                *target = slot;
            }
        }
    }

    /// Appends vacant pages until there are `count`.
    pub(super) fn grow(&mut self, count: usize) {
        self.pages.reserve_exact(count.saturating_sub(self.pages.len()));
        while self.pages.len() < count {
            self.pages.push(Box::new(std::array::from_fn(|_| Slot::default())));
        }
    }

    /// Frees all but the first `count` pages.
    pub(super) fn truncate(&mut self, count: usize) {
        self.pages.truncate(count);
        self.pages.shrink_to_fit();
    }
}

/// The published layout of one table.
#[derive(Debug, Default)]
pub(super) struct PageIndex {
    homes: AtomicUsize,
    /// Address of the shard's array of page pointers, which a search reads too.
    pointers: AtomicUsize,
    /// Address of each page. Pages beyond its length are not published.
    pages: Box<[AtomicUsize]>,
}

impl PageIndex {
    /// An index for the pages of a table of `keys_max` keys, eight bytes each.
    pub(super) fn new(keys_max: usize) -> Self {
        let pages_max = keys_max.saturating_add(keys_max / 4) / PAGE_SLOTS + 2;
        let pages = std::iter::repeat_with(AtomicUsize::default).take(pages_max).collect();
        Self { pages, ..Self::default() }
    }

    /// Publishes a new layout.
    pub(super) fn publish(&self, homes: usize, slots: &Pages) {
        self.homes.store(homes, Ordering::Relaxed);
        self.pointers.store(slots.pages.as_ptr().addr(), Ordering::Relaxed);
        for (address, page) in self.pages.iter().zip(&slots.pages) {
            address.store(std::ptr::from_ref::<Page>(page).addr(), Ordering::Relaxed);
        }
    }

    /// Prefetches the slots that a search for `key` looks at first.
    #[inline]
    pub(super) fn prefetch(&self, key: KeyHash) {
        let at = home(key, self.homes.load(Ordering::Relaxed));
        let (number, pointers) = (at / PAGE_SLOTS, self.pointers.load(Ordering::Relaxed));
        if let Some(page) = self.pages.get(number) {
            prefetch(pointers.wrapping_add(number * size_of::<usize>()), 1);
            let offset = at % PAGE_SLOTS * size_of::<Slot>();
            prefetch(page.load(Ordering::Relaxed).wrapping_add(offset), SEARCH_BYTES);
        }
    }
}

/// The slot at which a search for `key` starts: `tag × homes / 2^64`. A multiplication instead of a
/// division, for any number of homes.
#[inline]
pub(super) fn home(key: KeyHash, homes: usize) -> usize {
    let product = u128::from(key.tag) * (homes as u128);
    usize::try_from(product >> 64).unwrap_or(usize::MAX)
}

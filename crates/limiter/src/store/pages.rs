//! An array of slots in pieces of one size.
//!
//! A table that grows a little at a time as one array leaves a hole behind that nothing fits into:
//! with hundreds of shards, a third of the memory was such holes. Pages of one size fit wherever
//! one was given back, by this shard or another, and growing moves no page.

use std::ops::Range;

use super::slot::Slot;

/// Slots of a page: 7,160 bytes, which with the allocator's own word fill 7 KiB, one of jemalloc's
/// sizes.
///
/// A table takes whole pages, so larger ones waste more of a small shard: over shards of 600 to
/// 4,096 keys a key costs 47.5 bytes by calculation, with pages of 8 KiB 48.3, with 4 KiB 47.2.
/// Those of 4 KiB have twice the addresses, and batches were slower in four of six runs.
pub(super) const PAGE_SLOTS: usize = 179;

type Page = [Slot; PAGE_SLOTS];

const _: () = assert!(size_of::<Page>() <= 7_168 - 8);

/// Slots by index, vacant ones included; a whole number of pages.
#[derive(Debug, Default)]
pub(super) struct Pages {
    #[allow(clippy::vec_box, reason = "one array of all pages is what leaves holes")]
    pages: Vec<Box<Page>>,
}

impl Pages {
    /// Number of slots.
    pub(super) fn len(&self) -> usize {
        self.pages.len() * PAGE_SLOTS
    }

    /// Number of pages.
    pub(super) fn count(&self) -> usize {
        self.pages.len()
    }

    /// Bytes of all pages.
    pub(super) fn bytes(&self) -> usize {
        self.pages.len() * size_of::<Page>() + self.pages.capacity() * size_of::<Box<Page>>()
    }

    /// Where the array of all pages begins.
    pub(super) fn index_address(&self) -> usize {
        self.pages.as_ptr().addr()
    }

    /// Where each page begins.
    pub(super) fn addresses(&self) -> impl Iterator<Item = usize> {
        self.pages.iter().map(|page| std::ptr::from_ref::<Page>(page).addr())
    }

    pub(super) fn get(&self, at: usize) -> Option<&Slot> {
        self.pages.get(at / PAGE_SLOTS).map(|page| &page[at % PAGE_SLOTS])
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Slot> {
        self.pages.get_mut(at / PAGE_SLOTS).map(|page| &mut page[at % PAGE_SLOTS])
    }

    /// The slots of a range, as far as it reaches.
    pub(super) fn range(&self, range: Range<usize>) -> impl Iterator<Item = &Slot> {
        let (first, offset) = (range.start / PAGE_SLOTS, range.start % PAGE_SLOTS);
        let pages = self.pages.get(first..).unwrap_or_default();
        pages.iter().flat_map(|page| page.iter()).skip(offset).take(range.len())
    }

    /// The slots of a range, as far as it reaches.
    pub(super) fn range_mut(&mut self, range: Range<usize>) -> impl Iterator<Item = &mut Slot> {
        let (first, offset) = (range.start / PAGE_SLOTS, range.start % PAGE_SLOTS);
        let pages = self.pages.get_mut(first..).unwrap_or_default();
        pages.iter_mut().flat_map(|page| page.iter_mut()).skip(offset).take(range.len())
    }

    /// The first slot from `start` on that `is_it`; the number of slots when there is none.
    pub(super) fn find(&self, start: usize, is_it: impl Fn(&Slot) -> bool) -> usize {
        let (first, mut offset) = (start / PAGE_SLOTS, start % PAGE_SLOTS);
        for (page, number) in self.pages.get(first..).unwrap_or_default().iter().zip(first..) {
            if let Some(found) = page[offset..].iter().position(&is_it) {
                return number * PAGE_SLOTS + offset + found;
            }
            offset = 0;
        }
        self.len()
    }

    /// Moves the slot at `from` to `to`, which is vacant or the same.
    pub(super) fn shift(&mut self, from: usize, to: usize) {
        if from != to {
            let slot = self.get_mut(from).map(std::mem::take).unwrap_or_default();
            if let Some(token) = self.get_mut(to) {
                *token = slot;
            }
        }
    }

    /// Adds vacant pages at the end until there are `count`.
    pub(super) fn grow(&mut self, count: usize) {
        self.pages.reserve_exact(count.saturating_sub(self.pages.len()));
        while self.pages.len() < count {
            self.pages.push(Box::new(std::array::from_fn(|_| Slot::default())));
        }
    }

    /// Gives all but the first `count` pages back.
    pub(super) fn truncate(&mut self, count: usize) {
        self.pages.truncate(count);
        self.pages.shrink_to_fit();
    }
}

//! Laying the keys of a table out anew, for more homes or for fewer.

use super::Table;
use crate::store::pages::PAGE_SLOTS;

/// Most keys per ten homes. At nine a search looks at 5.5 slots on average (`(1 + 1/(1-load)) /
/// 2`), which lie side by side in some four cache lines.
const LOAD_TENTHS_MAX: usize = 9;
/// Slots behind the last home of a table. When its overflow needs more, it gets a page.
const TAIL: usize = 16;

impl Table {
    /// Grows the table by a step, by about one twelfth, when one more key would be too many.
    pub(super) fn make_room(&mut self) {
        if (self.len + 1) * 10 > self.homes * LOAD_TENTHS_MAX {
            let pages = homes_pages(self.homes);
            self.rebuild(pages + (pages / 12).max(1));
        }
    }

    /// Gives memory back, by a quarter, once half of it is unused. The distance between both
    /// numbers keeps a table from shrinking and growing in turns.
    pub(in crate::store) fn shrink(&mut self) {
        let pages = homes_pages(self.homes);
        if self.len == 0 {
            let moves = self.moves.wrapping_add(1);
            *self = Self { page_index: self.page_index(), moves, ..Self::default() };
            self.tell();
        } else if self.len * 2 < self.homes && pages > 1 {
            self.rebuild(pages - (pages / 4).max(1));
        }
    }

    /// Lays all keys out anew over the homes of `pages` pages.
    fn rebuild(&mut self, pages: usize) {
        let grows = pages * PAGE_SLOTS - TAIL > self.homes;
        self.homes = pages * PAGE_SLOTS - TAIL;
        let first = if grows { self.push_to_the_end(pages) } else { 0 };
        // Each to its place, which is never behind where the key lies by now: with fewer homes all
        // move to the front; else they stand at the end, and what stands behind a key in the new
        // layout takes no less room than there.
        let mut next = 0;
        for from in first..self.slots.len() {
            if let Some(slot) = self.slots.get(from).filter(|slot| !slot.is_vacant()) {
                let to = self.home(slot.key).max(next);
                self.slots.shift(from, to);
                next = to + 1;
            }
        }
        self.slots.truncate(pages.max(next.div_ceil(PAGE_SLOTS)));
        self.moves = self.moves.wrapping_add(1);
        self.tell();
    }

    /// Makes room for `pages` pages, or for more if the layout takes more, and puts all keys at the
    /// end, where there are no gaps. Says where the first lies.
    fn push_to_the_end(&mut self, pages: usize) -> usize {
        self.slots.grow(pages.max(self.end_of_layout().div_ceil(PAGE_SLOTS)));
        let mut first = self.slots.len();
        for from in (0..self.slots.len()).rev() {
            if self.slots.get(from).is_some_and(|slot| !slot.is_vacant()) {
                first -= 1;
                self.slots.shift(from, first);
            }
        }
        first
    }

    /// Where the last key ends once all are laid out for the present homes.
    fn end_of_layout(&self) -> usize {
        self.taken(0..self.slots.len()).fold(0, |end, slot| self.home(slot.key).max(end) + 1)
    }
}

/// The pages that so many homes were made for.
fn homes_pages(homes: usize) -> usize {
    homes.div_ceil(PAGE_SLOTS)
}

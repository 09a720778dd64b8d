//! One shard: a table, its bound, and the sweep that forgets what no longer matters.
//!
//! **Expiry.** A slot may go when its state equals absent. Each check pays for a look at a few
//! slots, [`SWEEP_SLOTS`] at a time so that they are read in one stride; nobody ever waits for a
//! whole sweep. Removing a slot that expires at `e` is sound only for decisions at `e` or later,
//! and two threads may reach the lock in the other order than they read the clock. So the shard
//! remembers the latest `e` it acted on, its *floor*, and decides nothing at an earlier instant:
//! without it, a check that is one microsecond late could open the window that just closed.
//!
//! **Bound.** A shard holds its share of `keys_max`. At the bound a new key first looks at
//! [`FULL_SLOTS`] slots for one that expired. Slots that matter are never given up, whatever
//! knocks: that would turn a flood of junk keys into a way to reset a limited one.

use super::key::KeyHash;
use super::lines::Lines;
use super::slot::Slot;
use super::table::Table;
use crate::engine::State;
use crate::units::Timestamp;

/// Slots a sweep looks at in one go.
const SWEEP_SLOTS: usize = 32;
/// Slots the sweep owes for a check of a known key. They are cold memory, so each costs a good part
/// of the check itself; at one, a table is swept once per as many checks as it has slots.
const OWED_PER_CHECK: usize = 1;
/// Slots it owes for a new key. More than one, so that a stream of keys that live shortly keeps
/// the table from growing; at four, a quarter of the table's slots may hold expired keys.
const OWED_PER_INSERT: usize = 4;
/// Slots a new key looks at for an expired one when the shard is full.
const FULL_SLOTS: usize = 64;

/// The counters that live behind one lock.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) table: Table,
    pub(super) lines: Lines,
    pub(super) counts: Counts,
    /// No decision is made at an earlier instant.
    floor: Timestamp,
    /// Where the next sweep goes on.
    cursor: usize,
    /// Slots that checks have paid for and that were not looked at yet.
    owed: usize,
    keys_max: usize,
}

/// What happened in a shard since the node started.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) expired: u64,
    pub(super) overflowed: u64,
    pub(super) refused: u64,
}

impl Shard {
    pub(super) fn new(keys_max: usize) -> Self {
        Self {
            table: Table::default(),
            lines: Lines::default(),
            counts: Counts::default(),
            floor: Timestamp::EPOCH,
            cursor: 0,
            owed: 0,
            keys_max,
        }
    }

    /// The instant to decide at when the caller read `now`.
    pub(super) fn instant(&self, now: Timestamp) -> Timestamp {
        now.max(self.floor)
    }

    /// The slot of `key`, reset if it expired, and the lines it may have to stand in.
    #[inline]
    pub(super) fn live_mut(
        &mut self,
        key: KeyHash,
        now: Timestamp,
    ) -> Option<(&mut Slot, &mut Lines)> {
        let slot = self.table.find_mut(key)?;
        if slot.is_expired(now) && !matches!(slot.state, State::Absent) {
            slot.state = State::Absent;
            self.floor = self.floor.max(slot.stamp.expires());
        }
        Some((slot, &mut self.lines))
    }

    /// The state of `key` as far as it still matters.
    pub(super) fn state(&self, key: KeyHash, now: Timestamp) -> &State {
        self.known_state(key, now).unwrap_or(&State::Absent)
    }

    /// The same, and `None` when `key` has no slot.
    pub(super) fn known_state(&self, key: KeyHash, now: Timestamp) -> Option<&State> {
        let slot = self.table.find(key)?;
        Some(if slot.is_expired(now) { &State::Absent } else { &slot.state })
    }

    /// Whether `keys` more keys fit, if need be after a bounded look for expired ones.
    pub(super) fn make_room(&mut self, keys: usize, now: Timestamp) -> bool {
        let wanted = (self.table.len() + keys).saturating_sub(self.keys_max);
        wanted == 0 || self.sweep(now, FULL_SLOTS, wanted) >= wanted
    }

    /// Adds a key. The caller made room for it.
    pub(super) fn insert(&mut self, slot: Slot) {
        debug_assert!(self.table.len() < self.keys_max, "no room was made for a key");
        self.owed += OWED_PER_INSERT;
        self.table.insert(slot);
    }

    /// Looks at the slots that a check pays for.
    pub(super) fn sweep_for_check(&mut self, now: Timestamp) {
        self.owed += OWED_PER_CHECK;
        if self.owed >= SWEEP_SLOTS {
            let owed = std::mem::take(&mut self.owed);
            self.sweep(now, owed, usize::MAX);
        }
    }

    /// Removes expired keys among the next `looks` slots, at most `enough`; returns how many.
    pub(super) fn sweep(&mut self, now: Timestamp, looks: usize, enough: usize) -> usize {
        let mut removed = 0;
        for _ in 0..looks.min(self.table.slots_len()) {
            match self.table.slot(self.cursor) {
                None => self.cursor = 0,
                Some(slot) if slot.is_vacant() || !slot.is_expired(now) => self.cursor += 1,
                Some(slot) => {
                    self.floor = self.floor.max(slot.stamp.expires());
                    self.table.remove_at(self.cursor);
                    removed += 1;
                    if removed == enough {
                        break;
                    }
                }
            }
        }
        self.counts.expired += removed as u64;
        self.table.shrink();
        removed
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.bytes() + self.lines.bytes()
    }
}

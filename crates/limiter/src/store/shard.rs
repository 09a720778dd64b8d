//! One shard: a table, its bound, and the sweep that removes expired slots.
//!
//! **Expiry.** A slot may be removed once its state equals absent. Each check adds a few slots to
//! the work of the next sweep, which looks at [`SWEEP_BATCH`] or more in sequence; no check waits
//! for a sweep of the whole table. A pass over the table records the earliest expiry that it saw,
//! and no other pass starts before then: keys that live for a day cost a pass a day.
//!
//! Removing a slot that expires at `e` is sound only for decisions at `e` or later, and two threads
//! may take the lock in another order than they read the clock. So the shard stores the latest `e`
//! that it acted on, its *floor*, and decides nothing at an earlier instant: without it, a check
//! that is one microsecond late could reopen the window that just ended.
//!
//! **Bound.** A shard holds its part of `keys_max`. At the bound a new key first sweeps
//! [`SWEEP_WHEN_FULL`] slots for expired ones. A slot that matters is never evicted: otherwise a
//! flood of new keys could reset a limited one.

use std::sync::Arc;

use super::key::{Beside, Counter, KeyHash};
use super::occupancy::{Occupancy, Slots};
use super::queues::Queues;
use super::reserved::Reservations;
use super::slot::Slot;
use super::table::Table;
use crate::engine::{FineKeys, State};
use crate::units::Timestamp;

/// Fewest slots of a sweep on behalf of checks.
const SWEEP_BATCH: usize = 32;
/// Slots to sweep per check. They are cold memory, so each costs a good part of the check itself;
/// at one, a table is swept once per as many checks as it has slots.
const SWEEP_PER_CHECK: usize = 1;
/// Slots to sweep per new key. More than one, so that a stream of short-lived keys does not grow
/// the table; at four, a quarter of the slots may hold expired keys.
const SWEEP_PER_INSERT: usize = 4;
/// Slots to sweep for a new key when the shard is full.
const SWEEP_WHEN_FULL: usize = 64;

/// The counters behind one lock.
///
/// The fields that a check of an existing key writes, and most of those that it reads, share the
/// cache line of the lock: two threads that write in turns then transfer one line.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Shard {
    /// Slots that the next sweep on behalf of checks has to look at.
    sweep_due: usize,
    /// No decision is made at an earlier instant.
    floor: Timestamp,
    /// No key expires earlier, so until then a sweep returns at once. A refund may shorten the
    /// expiry of a key; such a key is removed at its former expiry.
    quiet_until: Timestamp,
    pub(super) table: Table,
    pub(super) queues: Queues,
    pub(super) counts: Counts,
    /// Where the next sweep continues.
    cursor: usize,
    /// The earliest expiry of the keys seen or inserted in the current pass over the table.
    pass_earliest: Timestamp,
    /// [`Table::moves`] at the start of the pass.
    pass_moves: usize,
    keys_max: usize,
    /// Counters that an owner decides are not removed: the clock is not settled yet.
    pub(super) keeps_owned: bool,
    /// The check at hand has moved the end of a first-hit window.
    pub(super) has_moved: bool,
    /// The rings of all shards; `None` if no key may have one.
    pub(super) fine_keys: Option<Arc<FineKeys>>,
    /// What its reservations keep free; `None` without any.
    pub(super) reservations: Option<Box<Reservations>>,
    /// Which slots count towards which bound; boxed, because few checks need it.
    pub(super) occupancy: Box<Occupancy>,
}

// The lock takes the other eight bytes of the cache line.
const _: () = assert!(8 + std::mem::offset_of!(Shard, table) + Table::HOT_BYTES == 64);

/// Events in a shard since it was created.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) expired: u64,
    pub(super) overflowed: u64,
    pub(super) refused: u64,
    pub(super) in_full_domains: u64,
    pub(super) actors_refused: u64,
}

impl Shard {
    pub(super) fn new(keys_max: usize) -> Self {
        Self {
            table: Table::new(keys_max),
            queues: Queues::default(),
            counts: Counts::default(),
            floor: Timestamp::EPOCH,
            cursor: 0,
            pass_earliest: Timestamp::NEVER,
            pass_moves: 0,
            quiet_until: Timestamp::EPOCH,
            sweep_due: 0,
            keys_max,
            keeps_owned: false,
            has_moved: false,
            fine_keys: None,
            reservations: None,
            occupancy: Box::default(),
        }
    }

    /// The instant of a decision for which the caller read `now`.
    pub(super) fn instant(&self, now: Timestamp) -> Timestamp {
        now.max(self.floor)
    }

    /// The slot of `key`, reset if it expired, and the queues that it may have to join.
    #[inline]
    pub(super) fn live_mut(
        &mut self,
        key: KeyHash,
        now: Timestamp,
    ) -> Option<(&mut Slot, &mut Queues)> {
        let slot = self.table.find_mut(key)?;
        if slot.is_expired(now) && !matches!(slot.state, State::Absent) {
            self.occupancy.changed(key, slot.state.reservation().is_some(), false);
            slot.state = State::Absent;
            self.floor = self.floor.max(slot.meta.expires());
        }
        Some((slot, &mut self.queues))
    }

    /// The state of `key`, absent if it expired; `None` when it has no slot.
    pub(super) fn state(&self, key: KeyHash, now: Timestamp) -> Option<&State> {
        let slot = self.table.find(key)?;
        Some(if slot.is_expired(now) { &State::Absent } else { &slot.state })
    }

    /// Whether `keys` more keys fit that are of the domain of `key`, if necessary after a bounded
    /// sweep.
    pub(super) fn reserve(&mut self, key: KeyHash, keys: usize, now: Timestamp) -> bool {
        if self.excess(key, keys) == 0 {
            return true;
        }
        self.sweep(now, SWEEP_WHEN_FULL);
        self.excess(key, keys) == 0
    }

    fn excess(&self, key: KeyHash, keys: usize) -> usize {
        self.excess_of_store(keys).max(self.occupancy.excess_of_domain(key, keys))
    }

    /// Whether it is the domain of `key` that has no room for it, and not the shard.
    pub(super) fn is_domain_full(&self, key: KeyHash) -> bool {
        self.excess_of_store(1) == 0 && self.occupancy.excess_of_domain(key, 1) > 0
    }

    fn excess_of_store(&self, keys: usize) -> usize {
        let counters = self.table.len().saturating_sub(self.occupancy.reservations());
        (counters + keys).saturating_sub(self.keys_max)
    }

    /// Whether one more reservation fits, if necessary after a bounded sweep.
    pub(super) fn has_room_for_reservation(&mut self, slots: Slots, now: Timestamp) -> bool {
        if self.occupancy.is_full_of_reservations(slots) {
            self.sweep(now, SWEEP_WHEN_FULL);
        }
        !self.occupancy.is_full_of_reservations(slots)
    }

    /// Adds a key. The caller has reserved its slot.
    pub(super) fn insert(&mut self, slot: Slot) {
        let is_reservation = slot.state.reservation().is_some();
        // Other shards may have filled its domain meanwhile.
        debug_assert!(
            is_reservation || self.excess_of_store(1) == 0,
            "no slot was reserved for a key"
        );
        self.occupancy.added(&slot);
        self.sweep_due += SWEEP_PER_INSERT;
        let expires = slot.meta.expires();
        self.quiet_until = self.quiet_until.min(expires);
        self.pass_earliest = self.pass_earliest.min(expires);
        if let Some(reservation) = slot.state.reservation().filter(|it| !it.is_settled) {
            self.reservations.get_or_insert_default().add(slot.key, reservation);
        }
        self.table.insert(slot);
    }

    /// Removes a key; returns its slot if it had one.
    pub(super) fn remove(&mut self, key: KeyHash) -> Option<Slot> {
        self.forget_reservation(key);
        let slot = self.table.remove(key)?;
        self.occupancy.removed(&slot);
        self.table.shrink();
        Some(slot)
    }

    /// Does the sweep work of one check.
    pub(super) fn sweep_for_check(&mut self, now: Timestamp) {
        self.sweep_due += SWEEP_PER_CHECK;
        if self.sweep_due >= SWEEP_BATCH {
            let due = std::mem::take(&mut self.sweep_due);
            self.sweep(now, due);
        }
    }

    /// Removes expired keys among the next `slots` slots; returns how many.
    pub(super) fn sweep(&mut self, now: Timestamp, slots: usize) -> usize {
        if now < self.quiet_until {
            return 0;
        }
        let before = self.table.len();
        let mut left = slots.min(self.table.slots_len());
        while left > 0 {
            if self.cursor >= self.table.slots_len() {
                self.next_pass();
            }
            let end = self.table.slots_len().min(self.cursor + left);
            left -= end - self.cursor;
            let (floor, earliest) = (&mut self.floor, &mut self.pass_earliest);
            let (keeps_owned, occupancy) = (self.keeps_owned, &mut self.occupancy);
            self.cursor = self.table.remove_where(self.cursor..end, |slot| {
                let expires = slot.meta.expires();
                let is_expired = expires <= now && !(keeps_owned && slot.key.is_owned());
                let seen = if is_expired { &mut *floor } else { &mut *earliest };
                *seen = if is_expired { expires.max(*seen) } else { expires.min(*seen) };
                if is_expired {
                    occupancy.removed(slot);
                }
                is_expired
            });
        }
        let removed = before - self.table.len();
        self.counts.expired += removed as u64;
        self.table.shrink();
        if let Some(reservations) = self.reservations.as_mut().filter(|_| removed > 0) {
            reservations.drop_ended(now);
        }
        removed
    }

    /// Forgets what was done at later instants than `now`, and removes shares and the counters that
    /// were counted then, or all; returns how many.
    pub(super) fn went_back(&mut self, now: Timestamp, keeps_loaded: bool) -> usize {
        let before = self.table.len();
        let occupancy = &mut self.occupancy;
        let is_removed = |slot: &mut Slot| {
            let is_share = !slot.key.is_owned() && !slot.key.is_eventual();
            // Of a bucket it cannot be told when it was counted.
            let is_removed =
                !keeps_loaded || is_share || !slot.state.is_plausible(slot.meta.expires(), now);
            if is_removed {
                occupancy.removed(slot);
            }
            is_removed
        };
        self.table.remove_where(0..self.table.slots_len(), is_removed);
        (self.floor, self.quiet_until) = (Timestamp::EPOCH, Timestamp::EPOCH);
        (self.pass_earliest, self.pass_moves) = (Timestamp::NEVER, self.table.moves);
        self.cursor = 0;
        let removed = before - self.table.len();
        self.table.shrink();
        self.note_all_reservations();
        removed
    }

    /// What is reserved beside `counter`, and the others of its descriptor, in hits.
    #[inline]
    pub(super) fn reserved(&mut self, counter: &Counter, now: Timestamp) -> u64 {
        if self.reservations.is_none() { 0 } else { self.reserved_now(counter, now) }
    }

    #[cold]
    fn reserved_now(&mut self, counter: &Counter, now: Timestamp) -> u64 {
        let Some(reservations) = &mut self.reservations else { return 0 };
        let sum = reservations.sum(Beside::of_counter(counter), now);
        if reservations.is_empty() {
            self.reservations = None;
        }
        sum
    }

    /// The slot of `key` is about to change or go: what it reserves no longer counts.
    #[inline]
    pub(super) fn forget_reservation(&mut self, key: KeyHash) {
        if self.reservations.is_some() {
            let of_slot = self.table.find(key).and_then(|slot| slot.state.reservation());
            if let (Some(old), Some(reservations)) = (of_slot, &mut self.reservations) {
                reservations.remove(key, old.until);
            }
        }
    }

    /// What the slot of `key` reserves now counts from now on.
    pub(super) fn note_reservation(&mut self, key: KeyHash) {
        let of_slot = self.table.find(key).and_then(|slot| slot.state.reservation());
        if let Some(reservation) = of_slot.filter(|it| !it.is_settled) {
            self.reservations.get_or_insert_default().add(key, reservation);
        }
    }

    /// The owner from which this reservation came may have refused hits for it, which nodes
    /// remember.
    pub(super) fn may_have_refused(&mut self, key: KeyHash) {
        if let Some(reservations) = &mut self.reservations {
            reservations.has_refused(Beside::of_reservation(key));
        }
    }

    /// Notes the reservations of all slots anew.
    fn note_all_reservations(&mut self) {
        let mut all = Reservations::default();
        for slot in self.table.occupied(0..self.table.slots_len()) {
            if let Some(reservation) = slot.state.reservation() {
                all.add(slot.key, reservation);
            }
        }
        if let Some(before) = self.reservations.take() {
            all.promises = before.promises;
        }
        self.reservations = (!all.is_empty()).then(|| Box::new(all));
    }

    /// Ends a pass over the table and begins the next. If keys moved meanwhile, some may have been
    /// skipped, and the earliest expiry is unknown.
    fn next_pass(&mut self) {
        let is_complete = self.pass_moves == self.table.moves;
        self.quiet_until = if is_complete { self.pass_earliest } else { Timestamp::EPOCH };
        (self.pass_earliest, self.pass_moves) = (Timestamp::NEVER, self.table.moves);
        self.cursor = 0;
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.bytes() + self.queues.bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(n: u64) -> KeyHash {
        KeyHash { token: 0, tag: n.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Keys are inserted, extended and removed, and the table grows and shrinks between sweeps.
        #[test]
        fn every_key_is_removed_after_it_expired(
            ops in prop::collection::vec((0..4_u8, 0..600_u64, 1..900_u64), 1..1_500),
        ) {
            let mut shard = Shard::new(100_000);
            let mut now = 0;
            for (op, n, seconds) in ops {
                let at = Timestamp::from_secs(now);
                let expires = Timestamp::from_secs(now + seconds);
                match (op, shard.table.find_mut(key(n))) {
                    (0, Some(slot)) => slot.extend(expires),
                    (0 | 1, None) => shard.insert(Slot::new(key(n), State::Absent, expires)),
                    (2, Some(_)) => drop(shard.table.remove(key(n))),
                    (3, _) => now += seconds / 100,
                    _ => {}
                }
                shard.sweep_for_check(at);
            }
            // Two passes: the current one may be past the last key that was inserted.
            let slots = shard.table.slots_len();
            let end = Timestamp::from_secs(now + 900);
            shard.sweep(end, slots);
            shard.sweep(end, slots);
            prop_assert_eq!(shard.table.len(), 0);
        }
    }

    #[test]
    fn a_shard_in_which_nothing_can_expire_is_not_swept() {
        let mut shard = Shard::new(1_000);
        for n in 0..100 {
            let expires = Timestamp::from_secs(100 + n);
            shard.insert(Slot::new(key(n), State::Absent, expires));
        }
        let slots = shard.table.slots_len();
        for seconds in [50, 50, 99] {
            assert_eq!(shard.sweep(Timestamp::from_secs(seconds), slots), 0);
        }
        assert_eq!(shard.quiet_until, Timestamp::from_secs(100));
        assert_eq!(shard.sweep(Timestamp::from_secs(99), 1), 0);
        assert_eq!(shard.cursor, slots, "a sweep without work began a pass");
        assert_eq!(shard.sweep(Timestamp::from_secs(109), slots), 10);
    }
}

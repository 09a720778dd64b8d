//! One shard: a table, its bound, and the sweep that forgets what no longer matters.
//!
//! **Expiry.** A slot may go when its state equals absent. Each check pays for a look at a few
//! slots, [`SWEEP_SLOTS`] at a time so that they are read in one stride; nobody ever waits for a
//! whole sweep. A pass over the table notes the earliest expiry it saw, and until then no other is
//! made: keys of a day cost a pass a day.
//!
//! Removing a slot that expires at `e` is sound only for decisions at `e` or later, and two threads
//! may reach the lock in the other order than they read the clock. So the shard remembers the
//! latest `e` it acted on, its *floor*, and decides nothing at an earlier instant: without it, a
//! check that is one microsecond late could open the window that just closed.
//!
//! **Bound.** A shard holds its share of `keys_max`. At the bound a new key first looks at
//! [`FULL_SLOTS`] slots for one that expired. Slots that matter are never given up, whatever
//! knocks: that would turn a flood of junk keys into a way to reset a limited one.

use super::key::KeyHash;
use super::queues::Queues;
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
///
/// What a check of a known key writes here and most of what it reads lies in the cache line of the
/// lock, because a line that two threads write in turns costs each of them a wait.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Shard {
    /// Slots that checks have paid for and that were not looked at yet.
    owed: usize,
    /// No decision is made at an earlier instant.
    floor: Timestamp,
    /// No key expires earlier, so a sweep need not look. As far as is known: a key that was given
    /// hits back may, and then it is kept as long as it would have been.
    quiet_until: Timestamp,
    pub(super) table: Table,
    pub(super) queues: Queues,
    pub(super) counts: Counts,
    /// Where the next sweep goes on.
    cursor: usize,
    pass: Pass,
    keys_max: usize,
}

/// The lock takes eight bytes of the line.
const _: () = assert!(8 + std::mem::offset_of!(Shard, table) + Table::HOT_BYTES == 64);

/// What the sweep has seen since it began at the first slot.
#[derive(Debug)]
struct Pass {
    /// The earliest expiry that is still to come, of new keys too.
    earliest: Timestamp,
    /// [`Table::moves`] when it began.
    moves: usize,
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
            table: Table::new(keys_max),
            queues: Queues::default(),
            counts: Counts::default(),
            floor: Timestamp::EPOCH,
            cursor: 0,
            pass: Pass { earliest: Timestamp::NEVER, moves: 0 },
            quiet_until: Timestamp::EPOCH,
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
    ) -> Option<(&mut Slot, &mut Queues)> {
        let slot = self.table.find_mut(key)?;
        if slot.is_expired(now) && !matches!(slot.state, State::Absent) {
            slot.state = State::Absent;
            self.floor = self.floor.max(slot.stamp.expires());
        }
        Some((slot, &mut self.queues))
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
        wanted == 0 || self.sweep(now, FULL_SLOTS) >= wanted
    }

    /// Adds a key. The caller made room for it.
    pub(super) fn insert(&mut self, slot: Slot) {
        debug_assert!(self.table.len() < self.keys_max, "no room was made for a key");
        self.owed += OWED_PER_INSERT;
        let expires = slot.stamp.expires();
        self.quiet_until = self.quiet_until.min(expires);
        self.pass.earliest = self.pass.earliest.min(expires);
        self.table.insert(slot);
    }

    /// Looks at the slots that a check pays for.
    pub(super) fn sweep_for_check(&mut self, now: Timestamp) {
        self.owed += OWED_PER_CHECK;
        if self.owed >= SWEEP_SLOTS {
            let owed = std::mem::take(&mut self.owed);
            self.sweep(now, owed);
        }
    }

    /// Removes expired keys among the next `looks` slots; returns how many.
    pub(super) fn sweep(&mut self, now: Timestamp, looks: usize) -> usize {
        if now < self.quiet_until {
            return 0;
        }
        let before = self.table.len();
        let mut looks = looks.min(self.table.slots_len());
        while looks > 0 {
            if self.cursor >= self.table.slots_len() {
                self.begin_pass();
            }
            let end = self.table.slots_len().min(self.cursor + looks);
            looks -= end - self.cursor;
            let (floor, earliest) = (&mut self.floor, &mut self.pass.earliest);
            self.cursor = self.table.take_out(self.cursor..end, |slot| {
                let expires = slot.stamp.expires();
                let is_expired = expires <= now;
                let seen = if is_expired { &mut *floor } else { &mut *earliest };
                *seen = if is_expired { expires.max(*seen) } else { expires.min(*seen) };
                is_expired
            });
        }
        let removed = before - self.table.len();
        self.counts.expired += removed as u64;
        self.table.shrink();
        removed
    }

    /// Ends a pass over the table and begins the next. A key that moved over the cursor meanwhile
    /// was perhaps not seen; then nothing is known.
    fn begin_pass(&mut self) {
        let is_whole = self.pass.moves == self.table.moves();
        self.quiet_until = if is_whole { self.pass.earliest } else { Timestamp::EPOCH };
        self.pass = Pass { earliest: Timestamp::NEVER, moves: self.table.moves() };
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

        /// Keys come, live longer or shorter than first said, leave, and make the table grow and
        /// shrink between sweeps.
        #[test]
        fn every_key_is_forgotten_when_its_time_has_come(
            ops in prop::collection::vec((0..4_u8, 0..600_u64, 1..900_u64), 1..1_500),
        ) {
            let mut shard = Shard::new(100_000);
            let mut now = 0;
            for (op, n, seconds) in ops {
                let at = Timestamp::from_secs(now);
                let expires = Timestamp::from_secs(now + seconds);
                match (op, shard.table.find_mut(key(n))) {
                    (0, Some(slot)) => slot.prolong(expires),
                    (0 | 1, None) => shard.insert(Slot::new(key(n), State::Absent, expires)),
                    (2, Some(_)) => drop(shard.table.remove(key(n))),
                    (3, _) => now += seconds / 100,
                    _ => {}
                }
                shard.sweep_for_check(at);
            }
            // Two passes: one that was under way when the last key came may have passed it.
            let slots = shard.table.slots_len();
            let end = Timestamp::from_secs(now + 900);
            shard.sweep(end, slots);
            shard.sweep(end, slots);
            prop_assert_eq!(shard.table.len(), 0);
        }
    }

    #[test]
    fn a_shard_in_which_nothing_can_expire_is_not_looked_at() {
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
        assert_eq!(shard.cursor, slots, "a sweep that need not look began a pass");
        assert_eq!(shard.sweep(Timestamp::from_secs(109), slots), 10);
    }
}

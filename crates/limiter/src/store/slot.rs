//! One counter as it lies in a table: 40 bytes, in one or two cache lines.

use super::key::KeyHash;
use crate::engine::State;
use crate::units::Timestamp;

/// A place in a [`Table`](super::table::Table); vacant or taken.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) key: KeyHash,
    pub(super) state: State,
    pub(super) stamp: Stamp,
}

/// The cost of a key is decided here: eight bytes more are eight megabytes a million keys.
const _: () = assert!(size_of::<Slot>() == 40);

impl Slot {
    pub(super) fn new(key: KeyHash, state: State, expires: Timestamp) -> Self {
        Self { key, state, stamp: Stamp::new(expires) }
    }

    pub(super) const fn is_vacant(&self) -> bool {
        self.stamp.0 == 0
    }

    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.stamp.expires() <= now
    }

    /// Keeps the slot until `expires` if that is later. For an eventual key a later end means a new
    /// bucket, in which nobody asked here yet.
    pub(super) fn prolong(&mut self, expires: Timestamp) {
        if self.stamp.expires() < expires {
            self.stamp = self.stamp.moved(expires);
            self.stamp.clear(Stamp::TOUCHED);
        }
    }
}

/// How soon a key's peers are to hear of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SyncPriority {
    /// They know.
    Nothing,
    /// Some time: it is far from its limit and stands in no line.
    Far,
    /// In the next round.
    Calm,
    /// At once: it is close to its limit.
    Urgent,
}

/// When a slot may be forgotten, how soon its news are due, and two flags, in 64 bits.
///
/// The instant is kept in steps of 16 ns, rounded up: an entry may stay some nanoseconds longer
/// than it matters, which changes no verdict, and never leaves sooner. All zeros is a vacant slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp(u64);

impl Stamp {
    /// This node was asked about the key since its current bucket began.
    pub(super) const TOUCHED: u64 = 0b0100;
    /// It changed since it was last written to disk.
    pub(super) const UNSAVED: u64 = 0b1000;

    const FLAGS: u64 = 0b1111;
    /// The bits that hold a [`SyncPriority`], as its number.
    const NEWS: u64 = 0b0011;

    /// A stamp without flags.
    pub(super) fn new(expires: Timestamp) -> Self {
        let steps = expires.as_nanos().saturating_add(Self::FLAGS) & !Self::FLAGS;
        Self(steps.max(Self::FLAGS + 1))
    }

    pub(super) const fn expires(self) -> Timestamp {
        Timestamp::from_nanos(self.0 & !Self::FLAGS)
    }

    /// The same flags with another instant.
    pub(super) fn moved(self, expires: Timestamp) -> Self {
        Self(Self::new(expires).0 | (self.0 & Self::FLAGS))
    }

    pub(super) const fn priority(self) -> SyncPriority {
        match self.0 & Self::NEWS {
            0 => SyncPriority::Nothing,
            1 => SyncPriority::Far,
            2 => SyncPriority::Calm,
            _ => SyncPriority::Urgent,
        }
    }

    pub(super) fn set_priority(&mut self, priority: SyncPriority) {
        self.0 = self.0 & !Self::NEWS | priority as u64;
    }

    pub(super) const fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    pub(super) fn raise(&mut self, flags: u64) {
        self.0 |= flags & Self::FLAGS;
    }

    pub(super) fn clear(&mut self, flags: u64) {
        self.0 &= !(flags & Self::FLAGS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_never_names_an_earlier_instant() {
        for nanos in [0, 1, 15, 16, 17, 1_000_000_007, u64::MAX - 17] {
            let asked = Timestamp::from_nanos(nanos);
            let stamp = Stamp::new(asked);
            assert!(stamp.expires() >= asked);
            assert!(stamp.expires().since(asked).as_nanos() <= 16);
        }
        assert!(Stamp::new(Timestamp::NEVER).expires() > Timestamp::from_nanos(u64::MAX - 16));
    }

    #[test]
    fn a_taken_slot_is_never_mistaken_for_a_vacant_one() {
        assert!(Slot::default().is_vacant());
        assert!(!Slot::new(KeyHash::default(), State::Absent, Timestamp::EPOCH).is_vacant());
    }

    #[test]
    fn flags_survive_a_later_expiry_and_leave_the_instant_alone() {
        let mut stamp = Stamp::new(Timestamp::from_secs(10));
        stamp.raise(Stamp::TOUCHED);
        stamp.set_priority(SyncPriority::Calm);
        stamp = stamp.moved(Timestamp::from_secs(20));
        assert_eq!(stamp.expires(), Timestamp::from_secs(20));
        for priority in
            [SyncPriority::Urgent, SyncPriority::Far, SyncPriority::Calm, SyncPriority::Nothing]
        {
            assert!(stamp.has(Stamp::TOUCHED) && !stamp.has(Stamp::UNSAVED));
            stamp.set_priority(priority);
            assert_eq!(stamp.priority(), priority);
        }
        stamp.clear(Stamp::TOUCHED);
        assert_eq!(stamp, Stamp::new(Timestamp::from_secs(20)));
    }
}

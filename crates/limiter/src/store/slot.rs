//! One slot of a table: a counter in 40 bytes, on one or two cache lines.

use super::key::KeyHash;
use crate::engine::State;
use crate::units::Timestamp;

/// A vacant or occupied slot of a [`Table`](super::table::Table).
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) key: KeyHash,
    pub(super) state: State,
    pub(super) meta: Meta,
}

// Eight bytes more would be eight megabytes per million keys.
const _: () = assert!(size_of::<Slot>() == 40);

impl Slot {
    pub(super) fn new(key: KeyHash, state: State, expires: Timestamp) -> Self {
        Self { key, state, meta: Meta::new(expires) }
    }

    pub(super) const fn is_vacant(&self) -> bool {
        self.meta.0 == 0
    }

    pub(super) fn is_settled_reservation(&self) -> bool {
        self.state.reservation().is_some_and(|reservation| reservation.is_settled)
    }

    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.meta.expires() <= now
    }

    /// Keeps the slot until `expires` if that is later. For an eventual key a later expiry means a
    /// new slice, in which this node has not checked the key yet.
    pub(super) fn extend(&mut self, expires: Timestamp) {
        if self.meta.expires() < expires {
            self.meta = self.meta.with_expiry(expires);
            self.meta.clear(Meta::CHECKED);
        }
    }
}

/// How soon a changed key is sent to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SyncPriority {
    /// Unchanged since it was last sent.
    None,
    /// By the background scan: it is within its sync slack and not queued.
    Lazy,
    /// In the next round.
    Normal,
    /// At once: what peers do not know is much of what is left of its limit.
    Urgent,
}

/// The expiry of a slot, its sync priority, and two flags, in 64 bits.
///
/// The expiry has a resolution of 16 ns and is rounded up: a slot may stay some nanoseconds longer
/// than it matters, which changes no verdict, and is never removed early. Zero is a vacant slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Meta(u64);

impl Meta {
    /// This node checked the key since its current slice began.
    pub(super) const CHECKED: u64 = 0b0100;
    /// Changed since it was last written to disk.
    pub(super) const UNSAVED: u64 = 0b1000;
    /// A snapshot has come to it since it changed. Of a settled reservation, which is no eventual
    /// key: the bit is that of [`CHECKED`](Self::CHECKED).
    pub(super) const PASSED: u64 = Self::CHECKED;

    const FLAGS: u64 = 0b1111;
    /// The bits that hold a [`SyncPriority`], as its number.
    const PRIORITY: u64 = 0b0011;

    pub(super) fn new(expires: Timestamp) -> Self {
        let steps = expires.as_nanos().saturating_add(Self::FLAGS) & !Self::FLAGS;
        Self(steps.max(Self::FLAGS + 1))
    }

    pub(super) const fn expires(self) -> Timestamp {
        Timestamp::from_nanos(self.0 & !Self::FLAGS)
    }

    /// The same priority and flags with another expiry.
    pub(super) fn with_expiry(self, expires: Timestamp) -> Self {
        Self(Self::new(expires).0 | (self.0 & Self::FLAGS))
    }

    pub(super) const fn priority(self) -> SyncPriority {
        match self.0 & Self::PRIORITY {
            0 => SyncPriority::None,
            1 => SyncPriority::Lazy,
            2 => SyncPriority::Normal,
            _ => SyncPriority::Urgent,
        }
    }

    pub(super) fn set_priority(&mut self, priority: SyncPriority) {
        self.0 = self.0 & !Self::PRIORITY | priority as u64;
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
    fn expiry_is_never_rounded_down() {
        for nanos in [0, 1, 15, 16, 17, 1_000_000_007, u64::MAX - 17] {
            let exact = Timestamp::from_nanos(nanos);
            let meta = Meta::new(exact);
            assert!(meta.expires() >= exact);
            assert!(meta.expires().since(exact).as_nanos() <= 16);
        }
        assert!(Meta::new(Timestamp::NEVER).expires() > Timestamp::from_nanos(u64::MAX - 16));
    }

    #[test]
    fn an_occupied_slot_is_never_vacant() {
        assert!(Slot::default().is_vacant());
        assert!(!Slot::new(KeyHash::default(), State::Absent, Timestamp::EPOCH).is_vacant());
    }

    #[test]
    fn flags_and_expiry_are_independent() {
        let mut meta = Meta::new(Timestamp::from_secs(10));
        meta.raise(Meta::CHECKED);
        meta.set_priority(SyncPriority::Normal);
        meta = meta.with_expiry(Timestamp::from_secs(20));
        assert_eq!(meta.expires(), Timestamp::from_secs(20));
        for priority in
            [SyncPriority::Urgent, SyncPriority::Lazy, SyncPriority::Normal, SyncPriority::None]
        {
            assert!(meta.has(Meta::CHECKED) && !meta.has(Meta::UNSAVED));
            meta.set_priority(priority);
            assert_eq!(meta.priority(), priority);
        }
        meta.clear(Meta::CHECKED);
        assert_eq!(meta, Meta::new(Timestamp::from_secs(20)));
    }
}

//! First-hit windows whose end is another one than a check before has found.
//!
//! A request that carries its limit may name another window than the one before it. The open window
//! then ends earlier or later, or has ended and another begins, and nodes that remember a refusal
//! would refuse what passes, or name a time at which nothing does. So the owner tells them, as
//! after a refund.
//!
//! A window has *moved* when a check leaves the slot of an open one with another expiry or a later
//! opening; it was *cut* if the expiry is an earlier one, or the opening a later one. A window that
//! ended by itself, and one of which all requests name the same length, has never moved.
//!
//! **Worked example.** A window of an hour, opened at 12:00. At 12:10 a hit of one of 20 minutes
//! moves its end to 12:20: cut. At 12:15 a hit of one of 10 minutes opens another, until 12:25:
//! cut. The next hit of 10 minutes at 12:30 opens another, until 12:40: by itself. At 12:31 a hit
//! of one of an hour moves its end to 13:30.
//!
//! **Bound.** [`KEYS_MAX`] keys, for callers that never take them.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::key::KeyHash;
use super::shard::Shard;
use super::slot::Slot;
use crate::engine::State;
use crate::units::Timestamp;

/// Most keys that wait to be taken. A caller that takes them after each check leaves none.
const KEYS_MAX: usize = 1_024;

/// The keys of windows that have moved, until they are taken.
#[derive(Debug, Default)]
pub(super) struct MovedWindows {
    keys: Mutex<Vec<KeyHash>>,
    /// Whether there are any.
    has_keys: AtomicBool,
}

/// An open window before a check.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenWindow {
    opened: Timestamp,
    expires: Timestamp,
}

impl MovedWindows {
    /// Notes `key` if its check, the last one of `shard`, has moved a window.
    #[inline]
    pub(super) fn note(&self, shard: &mut Shard, key: KeyHash) {
        if std::mem::take(&mut shard.has_moved) {
            self.add(key);
        }
    }

    /// Those that have moved since the last call.
    #[inline]
    pub(super) fn take(&self) -> Vec<KeyHash> {
        if !self.has_keys.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut keys = self.keys.lock();
        self.has_keys.store(false, Ordering::Release);
        std::mem::take(&mut *keys)
    }

    #[cold]
    fn add(&self, key: KeyHash) {
        let mut keys = self.keys.lock();
        if keys.len() < KEYS_MAX {
            keys.push(key);
        }
        self.has_keys.store(true, Ordering::Release);
    }
}

impl OpenWindow {
    /// That of a slot which has not expired.
    #[inline]
    pub(super) fn of(slot: &Slot) -> Option<Self> {
        match slot.state {
            State::FirstHitWindow { opened, .. } => {
                Some(Self { opened, expires: slot.meta.expires() })
            }
            _ => None,
        }
    }

    /// Whether the slot still has this window, whatever its length.
    #[inline]
    pub(super) fn is_of(self, slot: &Slot) -> bool {
        Self::of(slot).is_some_and(|after| after.opened == self.opened)
    }

    /// Whether the check has moved its end.
    pub(super) fn has_moved(self, slot: &Slot) -> bool {
        !self.is_of(slot) || slot.meta.expires() != self.expires
    }

    /// Whether it ends earlier by that.
    pub(super) fn is_cut(self, slot: &Slot) -> bool {
        !self.is_of(slot) || slot.meta.expires() < self.expires
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Mode, Scope};
    use crate::quota::{Algorithm, Quota};
    use crate::store::{Counter, CounterKind, KeyHasher, OnFull, Options, Store};
    use crate::units::{Hits, Span};

    #[test]
    fn the_worked_example_holds() {
        let store = Store::new(Options { keys_max: 1_000, on_full: OnFull::Share, shards: None });
        let hash = KeyHasher::new([7; 16]).carried("n", "k", [0; 3]);
        let has_moved = |minute, length, hits| {
            let minutes = |minutes: u64| Span::from_secs(60 * minutes);
            let window = minutes(length);
            let quota = Quota::simple(Algorithm::FirstHitWindow, 10, window).expect("valid");
            let kind = CounterKind::of_any_window(&quota, Mode::Strict, Scope::Region);
            let counter = Counter { key: hash.counter_of(kind), quota };
            let now = Timestamp::from_secs(1_767_225_600).plus(minutes(minute));
            store.check_each_if(&[counter], &[Hits::new(hits)], now, || true);
            let moved = store.take_moved_windows();
            let is_one = moved.iter().all(|key| *key == counter.key) && moved.len() < 2;
            assert!(is_one, "{moved:?}");
            !moved.is_empty()
        };
        let steps = [
            (0, 60, 1, false),
            (5, 60, 1, false),
            (5, 20, 0, false),
            (10, 20, 1, true),
            (10, 20, 1, false),
            (15, 10, 1, true),
            (30, 10, 1, false),
            (31, 60, 1, true),
            // It is refused, and so changes nothing.
            (32, 30, 100, false),
        ];
        for (minute, length, hits, expected) in steps {
            assert_eq!(has_moved(minute, length, hits), expected, "{hits} hits at minute {minute}");
        }
    }
}

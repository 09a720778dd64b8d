//! How often keys are checked of which nothing is held here: those that are checked often ask their
//! owners for hits.
//!
//! A table of counts, each of one key in one second of the monotonic clock. A key has one place in
//! it. The first key that is checked in a second has its place until the second is over; another
//! key of the same place is not counted, and may be the first in the next one. So most keys, which
//! are checked too seldom, cost one access to memory each time, and leave nothing to clear away.
//!
//! ```text
//! bits of a place:   24 tag of the key │ 16 second │ 8 checks │ 16 hits
//! ```
//!
//! **Worked example.** A key is checked for 10 hits at 0.2, 0.5, 0.9 and 1.1 s. Its counts are 1, 2
//! and 3 checks, and 1 again, of 10, 20, 30, and 10 hits.
//!
//! **Bound.** [`PLACES`] keys in a second, in 512 KiB. Counts end at their largest value.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::Monotonic;

const PLACES: u64 = 65_536;
const HITS_BITS: u32 = 16;
const CHECKS_BITS: u32 = 8;
const SECOND_BITS: u32 = 16;
const TAG_BITS: u32 = 24;
const COUNTS_BITS: u32 = HITS_BITS + CHECKS_BITS;
const HITS_MAX: u64 = (1 << HITS_BITS) - 1;
const CHECKS_MAX: u64 = (1 << CHECKS_BITS) - 1;

#[derive(Debug, Default)]
pub(super) struct RecentChecks {
    /// Made by the first check: most nodes have no leased rules.
    places: OnceLock<Box<[AtomicU64]>>,
}

/// What came of one key in the second that is passing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Recent {
    pub(super) checks: u32,
    pub(super) hits: u32,
}

impl RecentChecks {
    /// Counts a check of this key for `hits`.
    pub(super) fn count(&self, key: KeyHash, hits: u32, monotonic: Monotonic) {
        let places = self.places.get_or_init(|| (0..PLACES).map(|_| AtomicU64::new(0)).collect());
        let Some(place) = place(places, key) else { return };
        let (owner, hits) = (owner(key, monotonic), u64::from(hits));
        // It fails, and counts nothing, where the place is another key's.
        let _ = place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            let (before, checks, sum) = parts(taken);
            if before == owner {
                let (checks, sum) = ((checks + 1).min(CHECKS_MAX), (sum + hits).min(HITS_MAX));
                return Some(owner << COUNTS_BITS | checks << HITS_BITS | sum);
            }
            let is_over = checks == 0 || second(before) != second(owner);
            is_over.then_some(owner << COUNTS_BITS | 1 << HITS_BITS | hits.min(HITS_MAX))
        });
    }

    pub(super) fn of(&self, key: KeyHash, monotonic: Monotonic) -> Recent {
        let place = self.places.get().and_then(|places| place(places, key));
        let Some(place) = place else { return Recent::default() };
        let (before, checks, hits) = parts(place.load(Ordering::Relaxed));
        if before != owner(key, monotonic) {
            return Recent::default();
        }
        let small = |count| u32::try_from(count).unwrap_or(u32::MAX);
        Recent { checks: small(checks), hits: small(hits) }
    }
}

fn place(places: &[AtomicU64], key: KeyHash) -> Option<&AtomicU64> {
    places.get(usize::try_from(key.token % PLACES).ok()?)
}

/// Who has a place: a key, in a second.
fn owner(key: KeyHash, monotonic: Monotonic) -> u64 {
    let tag = key.tag >> (u64::BITS - TAG_BITS);
    tag << SECOND_BITS | second(monotonic.as_nanos() / 1_000_000_000)
}

fn second(owner: u64) -> u64 {
    owner & ((1 << SECOND_BITS) - 1)
}

/// The owner, the checks and the hits of a place.
fn parts(taken: u64) -> (u64, u64, u64) {
    (taken >> COUNTS_BITS, taken >> HITS_BITS & CHECKS_MAX, taken & HITS_MAX)
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::units::Span;

    use super::*;

    const TOKEN: u64 = 7;

    fn key(number: u64) -> KeyHash {
        KeyHash { token: TOKEN + number * PLACES, tag: number << 48 }
    }

    fn at(ms: u64) -> Monotonic {
        Monotonic::START.plus(Span::from_millis(ms))
    }

    fn counts(recent: &RecentChecks, number: u64, ms: u64) -> (u32, u32) {
        let Recent { checks, hits } = recent.of(key(number), at(ms));
        (checks, hits)
    }

    #[test]
    fn checks_are_counted_within_a_second() {
        let recent = RecentChecks::default();
        assert_eq!(counts(&recent, 1, 0), (0, 0));
        let after = [200, 500, 900, 1_100].map(|ms| {
            recent.count(key(1), 10, at(ms));
            counts(&recent, 1, ms)
        });
        assert_eq!(after, [(1, 10), (2, 20), (3, 30), (1, 10)]);
        assert_eq!(counts(&recent, 1, 2_000), (0, 0), "the second is over");
    }

    #[test]
    fn the_first_key_of_a_second_has_its_place() {
        let recent = RecentChecks::default();
        for (number, ms) in [(1, 0), (2, 1), (2, 2), (1, 3), (2, 1_000), (1, 1_001), (2, 1_002)] {
            recent.count(key(number), 1, at(ms));
        }
        assert_eq!((counts(&recent, 1, 1_003), counts(&recent, 2, 1_003)), ((0, 0), (2, 2)));
    }

    #[test]
    fn counts_end_at_their_largest_value() {
        let recent = RecentChecks::default();
        recent.count(key(0), u32::MAX, at(0));
        assert_eq!(counts(&recent, 0, 0), (1, 65_535));
        for _ in 0..300 {
            recent.count(key(0), 1_000, at(5));
        }
        assert_eq!(counts(&recent, 0, 5), (255, 65_535));
    }
}

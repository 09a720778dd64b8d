//! What requests for the same reservation were promised, each of which may be taken back.
//!
//! A request reserves at several owners, and takes its parts back when one of them refuses
//! ([`Made`](super::Made)). The same id may be asked for again meanwhile: by a client that gave up
//! waiting, or at two nodes at once. What stays reserved is the largest amount of the promises that
//! were not taken back.
//!
//! *Example*: 10 are reserved. One request is promised 500, and another one meanwhile 300. The
//! first is taken back: 300 stay reserved. Then the second is: 10 do.
//!
//! **Bound.** The last [`PROMISES_MAX`] promises of each of [`IDS_MAX`] ids of a shard, and only of
//! ids that were asked for again. What was promised before that, or to other ids, is not taken back
//! for the sake of others: it stays reserved until it is committed or its time is over. An owner
//! that took the key over knows the last promise alone, and what that request found before it.

use std::collections::BTreeMap;

use super::key::KeyHash;
use crate::units::Timestamp;

/// Ids of a shard with promises.
const IDS_MAX: usize = 256;
/// Promises of an id.
const PROMISES_MAX: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Promises(BTreeMap<KeyHash, OfId>);

/// What a request was promised: an amount, in hits, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Promise {
    pub(super) amount: u32,
    pub(super) until: Timestamp,
}

/// What remains when a promise is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// No promises are known of the id.
    Unknown,
    /// This one is not among them, or others have changed what is reserved.
    Changed,
    /// This much is promised.
    Amount(u32),
}

#[derive(Debug, Default)]
struct OfId {
    /// What is not taken back any more.
    kept: u32,
    /// The newest last.
    open: Vec<Promise>,
    /// What was reserved when this id was asked for again, if it is open: earlier promises may be a
    /// part of it, which its own request knows.
    first: Option<Promise>,
}

// === impl Promises ===

impl Promises {
    /// Adds `promise` to the id `key`, of which `live` is reserved. Not at the bound.
    pub(super) fn add(&mut self, key: KeyHash, live: Promise, promise: Promise) {
        if !self.0.contains_key(&key) && self.0.len() >= IDS_MAX {
            return;
        }
        let of_id = self.0.entry(key).or_default();
        // An owner in between may have changed it.
        if of_id.largest() != live.amount {
            *of_id = OfId { kept: 0, open: vec![live], first: Some(live) };
        }
        if of_id.open.len() == PROMISES_MAX {
            let oldest = of_id.open.remove(0);
            of_id.kept = of_id.kept.max(oldest.amount);
        }
        of_id.open.push(promise);
    }

    /// Takes `promise` back from the id `key`, of which `reserved` is reserved. Its request found
    /// `before` reserved.
    pub(super) fn take(
        &mut self,
        key: KeyHash,
        (promise, before): (Promise, u32),
        reserved: u32,
    ) -> Left {
        let Some(of_id) = self.0.get_mut(&key) else { return Left::Unknown };
        let at = of_id.open.iter().position(|open| *open == promise);
        let Some(at) = at.filter(|_| of_id.largest() == reserved) else { return Left::Changed };
        of_id.open.remove(at);
        if of_id.first.take_if(|first| *first == promise).is_some() {
            of_id.kept = of_id.kept.max(before);
        }
        let left = of_id.largest();
        if of_id.open.is_empty() && left == 0 {
            self.0.remove(&key);
        }
        Left::Amount(left)
    }

    /// The reservation has ended, or is begun anew.
    pub(super) fn forget(&mut self, key: KeyHash) {
        self.0.remove(&key);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is no room for another id.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= IDS_MAX
    }

    /// Forgets the ids of which nothing is reserved any more.
    pub(super) fn retain(&mut self, is_reserved: impl Fn(KeyHash) -> bool) {
        self.0.retain(|key, _| is_reserved(*key));
    }
}

// === impl OfId ===

impl OfId {
    fn largest(&self) -> u32 {
        self.open.iter().map(|promise| promise.amount).fold(self.kept, u32::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: KeyHash = KeyHash { token: 1, tag: 1 };

    fn promise(amount: u32, secs: u64) -> Promise {
        Promise { amount, until: Timestamp::from_secs(secs) }
    }

    #[test]
    fn beyond_the_bound_nothing_is_taken_back() {
        let mut promises = Promises::default();
        let live = promise(900, 0);
        for secs in 1..=PROMISES_MAX as u64 {
            promises.add(KEY, live, promise(10, secs));
        }
        // The first has made room, and stays reserved.
        assert_eq!(promises.take(KEY, (live, 0), 900), Left::Changed);
        assert_eq!(promises.take(KEY, (promise(10, 1), 0), 900), Left::Amount(900));
        for tag in 2..=IDS_MAX as u64 + 1 {
            promises.add(KeyHash { tag, ..KEY }, live, promise(10, 1));
        }
        assert!(promises.is_full());
        let last = KeyHash { tag: IDS_MAX as u64 + 1, ..KEY };
        assert_eq!(promises.take(last, (live, 0), 900), Left::Unknown);
        promises.retain(|key| key == KEY);
        promises.add(last, live, promise(10, 1));
        assert_eq!(promises.take(last, (live, 0), 900), Left::Amount(10));
    }

    /// An owner that takes a key over finds what one request was promised, and what was there
    /// before it in that.
    #[test]
    fn what_was_there_before_the_first_request_that_is_known_stays() {
        for first_ends_first in [true, false] {
            let mut promises = Promises::default();
            let (first, second) = (promise(100, 1), promise(800, 2));
            promises.add(KEY, first, second);
            if first_ends_first {
                assert_eq!(promises.take(KEY, (first, 5), 800), Left::Amount(800));
                assert_eq!(promises.take(KEY, (second, 100), 800), Left::Amount(5));
            } else {
                assert_eq!(promises.take(KEY, (second, 100), 800), Left::Amount(100));
                assert_eq!(promises.take(KEY, (first, 5), 100), Left::Amount(5));
            }
        }
    }

    #[test]
    fn what_another_owner_has_changed_is_not_taken_back() {
        let mut promises = Promises::default();
        promises.add(KEY, promise(10, 0), promise(500, 1));
        assert_eq!(promises.take(KEY, (promise(500, 1), 0), 800), Left::Changed);
        promises.add(KEY, promise(800, 2), promise(900, 3));
        assert_eq!(promises.take(KEY, (promise(500, 1), 0), 900), Left::Changed);
        assert_eq!(promises.take(KEY, (promise(900, 3), 0), 900), Left::Amount(800));
    }
}

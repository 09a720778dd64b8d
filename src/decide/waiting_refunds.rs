//! Hits that refunds of leased rules could not take yet, because granted hits may have been what
//! was given back ([`leased_refunds`](super::leased_refunds)).
//!
//! All refunds of a counter together wait for at most what may have been used of it at the last of
//! them: more would be taken off hits that come after it. That is at most
//!
//! ```text
//! what was granted at a refund, less what has come back unspent of it
//! what is counted at the last refund, less what it took
//! ```
//!
//! **Example.** 46 hits are counted, all granted and not accounted for. Of the first of ten refunds
//! of 50 hits 46 wait, of the others none. When ten have been given back unspent, 36 are taken.
//!
//! **Example.** 20 of 46 wait, as no more were given back. When ten come back unspent, all of the
//! 20 may be among the 36 that are left.
//!
//! Those of a window that has ended wait for nothing, and do not count beside those of the next.
//!
//! **Bound.** [`WAITING_MAX`] refunds wait at an owner; of others the rest is lost, which refuses
//! early.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_limiter::engine::grant::Refunded;
use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(super) const WAITING_MAX: usize = 1_024;

#[derive(Debug)]
pub(super) struct WaitingRefunds {
    places: Arc<Semaphore>,
    /// Changes under the lock of the grants of the key, but for what is taken.
    hits: Mutex<BTreeMap<KeyHash, Waiting>>,
}

/// What waits of one counter.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    hits: u64,
    /// The most hits that may have been used of what refunds wait for; no fewer than `hits`.
    used_max: u64,
    window: OneWindow,
}

/// Hits of a counter that are granted and may be given back, at a refund.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OpenGrants {
    pub(super) hits: u64,
    /// Of grants for which no refund waits.
    pub(super) unawaited: u64,
}

/// A window of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OneWindow {
    /// Of a first-hit window when it was opened: requests may change its end, and so begin another
    /// one before that. Of others it is the same for all.
    pub(super) opened: Timestamp,
    /// `NEVER` of a counter whose hits do not end all at once.
    pub(super) ends: Timestamp,
}

impl OneWindow {
    /// One that has ended.
    pub(super) fn none(now: Timestamp) -> Self {
        Self { opened: now, ends: now }
    }
}

impl Default for WaitingRefunds {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(WAITING_MAX)), hits: Mutex::default() }
    }
}

impl WaitingRefunds {
    /// A place for a refund that waits, held while it does; `None` at the bound.
    pub(super) fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.places.clone().try_acquire_owned().ok()
    }

    /// Enters what is left at `now` of a refund of a counter with this window. Returns how many of
    /// these hits wait.
    pub(super) fn add(
        &self,
        counter: KeyHash,
        Refunded { left, left_max, .. }: Refunded,
        open: OpenGrants,
        window: OneWindow,
        now: Timestamp,
    ) -> u64 {
        let mut all = self.hits.lock();
        let is_open = |it: &&Waiting| it.window.opened == window.opened && it.window.ends > now;
        let before = all.get(&counter).filter(is_open).copied();
        let new = before.map_or(open.hits, |_| open.unawaited);
        let before = before.unwrap_or(Waiting { hits: 0, used_max: 0, window });
        // What this refund took may be what earlier ones wait for, which then wait for the hits
        // that it was meant for.
        let used_max = before.used_max.saturating_add(new).saturating_add(left).min(left_max);
        let hits = before.hits.saturating_add(left).min(used_max);
        if hits > 0 {
            all.insert(counter, Waiting { hits, used_max, window });
        } else {
            all.remove(&counter);
        }
        hits.saturating_sub(before.hits)
    }

    /// Hits come back unspent of a grant for which refunds of the counter wait.
    pub(super) fn unspent(&self, counter: KeyHash, hits: u64) {
        let mut all = self.hits.lock();
        let Some(waiting) = all.get_mut(&counter) else { return };
        waiting.used_max = waiting.used_max.saturating_sub(hits);
        waiting.hits = waiting.hits.min(waiting.used_max);
        if waiting.hits == 0 {
            all.remove(&counter);
        }
    }

    /// Removes up to `hits` that wait for a window, and returns how many these were: they are to be
    /// taken off the counter at `now`. Fewer wait where a later refund has taken some, and none
    /// when the window has ended or another has begun.
    pub(super) fn take(
        &self,
        counter: KeyHash,
        hits: u64,
        window: OneWindow,
        now: Timestamp,
    ) -> u64 {
        let mut all = self.hits.lock();
        let Some(waiting) = all.get_mut(&counter) else { return 0 };
        if waiting.window.ends <= now {
            all.remove(&counter);
            return 0;
        }
        let is_it = waiting.window.opened == window.opened && window.ends > now;
        let taken = if is_it { hits.min(waiting.hits) } else { 0 };
        waiting.hits -= taken;
        waiting.used_max -= taken;
        if waiting.hits == 0 {
            all.remove(&counter);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: KeyHash = KeyHash { token: 1, tag: 1 };

    const NOW: Timestamp = Timestamp::from_secs(100);
    const LATER: Timestamp = Timestamp::from_secs(160);

    const OPEN: OpenGrants = OpenGrants { hits: 60, unawaited: 60 };

    /// Of a fixed window.
    fn until(ends: Timestamp) -> OneWindow {
        OneWindow { opened: Timestamp::EPOCH, ends }
    }

    fn add(waiting: &WaitingRefunds, refunded: Refunded, granted: u64, unawaited: u64) -> u64 {
        let open = OpenGrants { hits: granted, unawaited };
        waiting.add(KEY, refunded, open, until(Timestamp::NEVER), NOW)
    }

    fn take(waiting: &WaitingRefunds, hits: u64) -> u64 {
        waiting.take(KEY, hits, until(Timestamp::NEVER), NOW)
    }

    fn left(left: u64, left_max: u64) -> Refunded {
        Refunded { left, left_max, ..Refunded::default() }
    }

    #[test]
    fn refunds_together_wait_for_what_is_counted() {
        let waiting = WaitingRefunds::default();
        let added = (0..10).map(|at| add(&waiting, left(46, 46), 46, if at == 0 { 46 } else { 0 }));
        assert_eq!(added.collect::<Vec<_>>(), [46, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        // Twenty more were granted since.
        assert_eq!(add(&waiting, left(50, 66), 66, 20), 20);
        assert_eq!((take(&waiting, 46), take(&waiting, 20)), (46, 20));
        assert_eq!(take(&waiting, 1), 0);
    }

    #[test]
    fn what_comes_back_unspent_was_not_used_and_is_not_taken() {
        let waiting = WaitingRefunds::default();
        assert_eq!(add(&waiting, left(46, 46), 46, 46), 46);
        waiting.unspent(KEY, 10);
        assert_eq!(take(&waiting, 46), 36);
        // The others may have been used.
        assert_eq!(add(&waiting, left(20, 46), 46, 46), 20);
        waiting.unspent(KEY, 10);
        assert_eq!(take(&waiting, 20), 20);
        waiting.unspent(KEY, 36);
        assert_eq!(add(&waiting, left(20, 46), 46, 46), 20);
        waiting.unspent(KEY, 30);
        // Four more are granted and given back, beside as many as are counted since.
        assert_eq!(add(&waiting, left(4, 4), 4, 4), 0);
        waiting.unspent(KEY, 4);
        assert_eq!(take(&waiting, 20), 0);
    }

    #[test]
    fn what_a_later_refund_took_at_once_waits_no_more() {
        let waiting = WaitingRefunds::default();
        assert_eq!(add(&waiting, left(46, 46), 46, 46), 46);
        assert_eq!(add(&waiting, left(0, 6), 6, 0), 0);
        assert_eq!((take(&waiting, 46), take(&waiting, 46)), (6, 0));
        // All four that were used are taken at once: the earlier refund waits for what was spent of
        // ten that were granted since.
        for (unspent, taken) in [(10, 0), (7, 3), (0, 4)] {
            assert_eq!(add(&waiting, left(10, 10), 10, 10), 10);
            waiting.unspent(KEY, 6);
            assert_eq!(add(&waiting, left(0, 10), 10, 10), 0);
            waiting.unspent(KEY, unspent);
            assert_eq!(take(&waiting, 10), taken);
        }
        // Twenty hits that came later are taken. What is granted may be what the first gave back.
        assert_eq!(add(&waiting, left(20, 20), 20, 20), 20);
        waiting.unspent(KEY, 6);
        assert_eq!(add(&waiting, left(0, 44), 10, 0), 0);
        waiting.unspent(KEY, 10);
        assert_eq!(take(&waiting, 20), 4);
    }

    /// That of the first window wakes up when it is over.
    #[test]
    fn what_waits_of_one_window_takes_nothing_of_the_next() {
        let waiting = WaitingRefunds::default();
        let ends = Timestamp::from_secs(110);
        assert_eq!(waiting.add(KEY, left(46, 46), OPEN, until(ends), NOW), 46);
        assert_eq!(
            waiting.add(KEY, left(30, 60), OPEN, until(LATER), ends),
            30,
            "all of them wait"
        );
        assert_eq!(waiting.take(KEY, 46, until(ends), ends), 0);
        assert_eq!(waiting.take(KEY, 30, until(LATER), ends), 30);
        // Of a window after which none came, nothing stays.
        assert_eq!(waiting.add(KEY, left(46, 46), OPEN, until(ends), NOW), 46);
        assert_eq!(waiting.take(KEY, 46, until(ends), ends), 0);
        assert!(waiting.hits.lock().is_empty());
    }

    /// The window of a day, in which hits wait, was ended by a request of a shorter one.
    #[test]
    fn what_waits_of_a_window_takes_nothing_of_one_that_began_before_its_end() {
        let waiting = WaitingRefunds::default();
        let of = |opened: u64| OneWindow { opened: Timestamp::from_secs(opened), ends: LATER };
        assert_eq!(waiting.add(KEY, left(46, 46), OPEN, of(90), NOW), 46);
        assert_eq!(
            waiting.add(KEY, left(10, 20), OPEN, of(100), NOW),
            10,
            "none of these wait yet"
        );
        assert_eq!(waiting.take(KEY, 46, of(90), NOW), 0);
        assert_eq!(waiting.take(KEY, 10, of(100), NOW), 10);
    }
}

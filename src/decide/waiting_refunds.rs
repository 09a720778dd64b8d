//! Hits that refunds of leased rules could not take yet, because granted hits may have been what
//! was given back ([`leased_refunds`](super::leased_refunds)).
//!
//! All refunds of a counter together wait for at most what was counted of it at the last of them:
//! more hits were not used, and would be taken off those that come after it.
//!
//! **Example.** 46 hits are counted, all granted and not accounted for. Of the first of ten refunds
//! of 50 hits 46 wait, of the others none. When ten have been given back unspent, 36 are taken.
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
    hits: Mutex<BTreeMap<KeyHash, Waiting>>,
}

/// What waits of one counter.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    hits: u64,
    window: OneWindow,
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
        refunded: Refunded,
        window: OneWindow,
        now: Timestamp,
    ) -> u64 {
        let mut all = self.hits.lock();
        let is_open = |it: &&Waiting| it.window.opened == window.opened && it.window.ends > now;
        let open = all.get(&counter).filter(is_open);
        let before = open.map_or(0, |waiting| waiting.hits);
        let hits = before.saturating_add(refunded.left).min(refunded.left_max);
        if hits > 0 {
            all.insert(counter, Waiting { hits, window });
        } else {
            all.remove(&counter);
        }
        hits.saturating_sub(before)
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

    /// Of a fixed window.
    fn until(ends: Timestamp) -> OneWindow {
        OneWindow { opened: Timestamp::EPOCH, ends }
    }

    fn add(waiting: &WaitingRefunds, refunded: Refunded) -> u64 {
        waiting.add(KEY, refunded, until(Timestamp::NEVER), NOW)
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
        let added: Vec<u64> = (0..10).map(|_| add(&waiting, left(46, 46))).collect();
        assert_eq!(added, [46, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        // Twenty more were counted since.
        assert_eq!(add(&waiting, left(50, 66)), 20);
        assert_eq!((take(&waiting, 46), take(&waiting, 20)), (46, 20));
        assert_eq!(take(&waiting, 1), 0);
    }

    #[test]
    fn what_a_later_refund_took_at_once_waits_no_more() {
        let waiting = WaitingRefunds::default();
        assert_eq!(add(&waiting, left(46, 46)), 46);
        assert_eq!(add(&waiting, left(0, 6)), 0);
        assert_eq!((take(&waiting, 46), take(&waiting, 46)), (6, 0));
    }

    /// That of the first window wakes up when it is over.
    #[test]
    fn what_waits_of_one_window_takes_nothing_of_the_next() {
        let waiting = WaitingRefunds::default();
        let ends = Timestamp::from_secs(110);
        assert_eq!(waiting.add(KEY, left(46, 46), until(ends), NOW), 46);
        assert_eq!(waiting.add(KEY, left(30, 60), until(LATER), ends), 30, "all of them wait");
        assert_eq!(waiting.take(KEY, 46, until(ends), ends), 0);
        assert_eq!(waiting.take(KEY, 30, until(LATER), ends), 30);
        // Of a window after which none came, nothing stays.
        assert_eq!(waiting.add(KEY, left(46, 46), until(ends), NOW), 46);
        assert_eq!(waiting.take(KEY, 46, until(ends), ends), 0);
        assert!(waiting.hits.lock().is_empty());
    }

    /// The window of a day, in which hits wait, was ended by a request of a shorter one.
    #[test]
    fn what_waits_of_a_window_takes_nothing_of_one_that_began_before_its_end() {
        let waiting = WaitingRefunds::default();
        let of = |opened: u64| OneWindow { opened: Timestamp::from_secs(opened), ends: LATER };
        assert_eq!(waiting.add(KEY, left(46, 46), of(90), NOW), 46);
        assert_eq!(waiting.add(KEY, left(10, 20), of(100), NOW), 10, "none of these wait yet");
        assert_eq!(waiting.take(KEY, 46, of(90), NOW), 0);
        assert_eq!(waiting.take(KEY, 10, of(100), NOW), 10);
    }
}

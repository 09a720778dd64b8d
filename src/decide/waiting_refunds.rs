//! Hits that refunds of leased rules could not take yet, because granted hits may have been what
//! was given back ([`leased_refunds`](super::leased_refunds)).
//!
//! All refunds of a counter together wait for at most what was counted of it at the last of them:
//! more hits were not used, and would be taken off those that come after it.
//!
//! **Example.** 46 hits are counted, all granted and not accounted for. Of the first of ten refunds
//! of 50 hits 46 wait, of the others none. When ten have been given back unspent, 36 are taken.
//!
//! **Bound.** [`WAITING_MAX`] refunds wait at an owner; of others the rest is lost, which refuses
//! early.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_limiter::engine::grant::Refunded;
use tidegate_limiter::store::KeyHash;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(super) const WAITING_MAX: usize = 1_024;

#[derive(Debug)]
pub(super) struct WaitingRefunds {
    places: Arc<Semaphore>,
    hits: Mutex<BTreeMap<KeyHash, u64>>,
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

    /// Enters what is left of a refund of a counter. Returns how many of these hits wait.
    pub(super) fn add(&self, counter: KeyHash, refunded: Refunded) -> u64 {
        let mut all = self.hits.lock();
        let before = all.get(&counter).copied().unwrap_or(0);
        let after = before.saturating_add(refunded.left).min(refunded.left_max);
        if after > 0 {
            all.insert(counter, after);
        } else {
            all.remove(&counter);
        }
        after.saturating_sub(before)
    }

    /// Removes up to `hits` that wait, and returns how many these were: they are to be taken off
    /// the counter. Fewer wait where a later refund has taken some.
    pub(super) fn take(&self, counter: KeyHash, hits: u64) -> u64 {
        let mut all = self.hits.lock();
        let Some(waiting) = all.get_mut(&counter) else { return 0 };
        let taken = hits.min(*waiting);
        *waiting -= taken;
        if *waiting == 0 {
            all.remove(&counter);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: KeyHash = KeyHash { token: 1, tag: 1 };

    fn left(left: u64, left_max: u64) -> Refunded {
        Refunded { taken: 0, left, left_max }
    }

    #[test]
    fn refunds_together_wait_for_what_is_counted() {
        let waiting = WaitingRefunds::default();
        let added: Vec<u64> = (0..10).map(|_| waiting.add(KEY, left(46, 46))).collect();
        assert_eq!(added, [46, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        // Twenty more were counted since.
        assert_eq!(waiting.add(KEY, left(50, 66)), 20);
        assert_eq!((waiting.take(KEY, 46), waiting.take(KEY, 20)), (46, 20));
        assert_eq!(waiting.take(KEY, 1), 0);
    }

    #[test]
    fn what_a_later_refund_took_at_once_waits_no_more() {
        let waiting = WaitingRefunds::default();
        assert_eq!(waiting.add(KEY, left(46, 46)), 46);
        assert_eq!(waiting.add(KEY, left(0, 6)), 0);
        assert_eq!((waiting.take(KEY, 46), waiting.take(KEY, 46)), (6, 0));
    }
}

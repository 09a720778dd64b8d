//! Refusals that still hold: a key that is over its limit costs no forward.
//!
//! A refusal contains the time after which the same hits may pass. Until then the node that
//! forwarded the check refuses as many hits or more by itself.
//!
//! **Contents.** On the forwarding node, for strict checks: the counters with their quotas, the
//! hits, the verdicts, and `until`: the time of the check plus the shortest wait of the limits that
//! refused. That time is taken before the owner decides, so an entry never lasts too long; and
//! while the shortest wait lasts, every refusal in the entry still holds.
//!
//! **Worked example.** At 10:00:00 the owner refuses 3 hits with "retry after 40 s, reset in 55 s".
//! At 10:00:15 a check for 3 or more is refused here with 25 s and 40 s. A check for 2 is
//! forwarded, and so is every check from 10:00:40 on.
//!
//! **Never answered from the cache**: fewer hits, peeks and refunds; more hits than the limit can
//! hold, which are refused for ever; counters of a rule that changed, because quotas are compared;
//! a key to which hits were given back, or whose window another length has moved, because the owner
//! notifies every node of its ring
//! ([`Call::Refunded`](tidegate_cluster::mesh::wire::Call::Refunded)). That notice is sent once;
//! [`TTL_MAX`] bounds the effect of a lost one, except for windows.
//!
//! **Difference to forwarding**: a `fixed_window` counts the hits that it refuses, and those
//! refused here are not counted; envoyproxy/ratelimit's local cache has the same effect (its
//! README, "Local Cache"). A larger check gets the wait of the smaller one, which may be too short
//! for it.
//!
//! **Windows.** With `[envoy] local_cache` every refusal of a fixed window is cached until the
//! window ends, also one decided here, and covers the key for any hits: more, fewer, a peek,
//! another limit of the same unit. This matches envoyproxy/ratelimit's local cache, whose entries
//! are named after the window. A refusal because of what is reserved is not cached.
//!
//! **Bound.** [`SLOTS`] slots of [`WAYS`] entries each, so that the limits of one descriptor do not
//! evict each other; a new entry evicts the oldest.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{Counter, Verdicts};
use tidegate_limiter::units::{Hits, Span, Timestamp};

/// Slots of the table; 32 bytes each, and some 200 more for an entry of one limit.
const SLOTS: usize = 16_384;
/// Entries per slot: one per unit, for requests that carry limits of every unit.
const WAYS: usize = 8;
const TTL_MAX: Span = Span::from_secs(60);
/// At an edge, which is not told when hits are given back: an owner would have to tell a thousand.
const EDGE_TTL_MAX: Span = Span::from_millis(100);

#[derive(Debug)]
pub(super) struct NegativeCache {
    /// Longest time that a refusal is used without another forward.
    ttl_max: Span,
    slots: Box<[Mutex<Slot>]>,
    /// Entries in all slots; while there are none, a look-up costs one load.
    len: AtomicUsize,
}

/// How often the slot of a token had been invalidated when a check began. A verdict that arrives
/// after another invalidation is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u32);

#[derive(Debug, Default)]
struct Slot {
    invalidations: u32,
    /// At most [`WAYS`], the oldest first.
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    counters: SmallVec<[Counter; 1]>,
    hits: Hits,
    verdicts: Verdicts,
    /// When the check began.
    checked: Timestamp,
    until: Timestamp,
}

impl NegativeCache {
    /// That of an edge.
    pub(super) fn at_edge() -> Self {
        Self { ttl_max: EDGE_TTL_MAX, ..Self::default() }
    }

    /// The verdicts at `now` if a cached refusal covers these counters and hits.
    pub(super) fn recall(
        &self,
        counters: &[Counter],
        hits: Hits,
        now: Timestamp,
    ) -> Option<Verdicts> {
        if self.len.load(Ordering::Relaxed) == 0 || hits.charge() == 0 {
            return None;
        }
        let mut slot = self.slot(counters.first()?.key.token).lock();
        self.retain(&mut slot, |entry| entry.until > now);
        let entry = slot.entries.iter().find(|entry| *entry.counters == *counters)?;
        let is_covered = hits >= entry.hits
            && counters.iter().all(|counter| can_ever_pass(hits, &counter.quota));
        is_covered.then(|| {
            let elapsed = now.since(entry.checked);
            entry.verdicts.iter().map(|verdict| after(verdict, elapsed)).collect()
        })
    }

    /// To be taken before a check of `token` is forwarded.
    pub(super) fn ticket(&self, token: u64) -> Ticket {
        Ticket(self.slot(token).lock().invalidations)
    }

    /// Caches the verdicts of a check that began at `checked`, after `ticket` was taken, if they
    /// are a refusal that ends.
    pub(super) fn insert(
        &self,
        ticket: Ticket,
        counters: &[Counter],
        hits: Hits,
        verdicts: &Verdicts,
        checked: Timestamp,
    ) {
        let Some(wait) = shortest_wait(verdicts).filter(|_| hits.charge() > 0) else { return };
        self.put(ticket, counters, hits, verdicts, checked, wait.min(self.ttl_max));
    }

    /// The verdicts at `now` if a fixed window of these counters is cached and has not ended. Not
    /// for refunds.
    pub(super) fn recall_window(
        &self,
        counters: &[Counter],
        hits: Hits,
        now: Timestamp,
    ) -> Option<Verdicts> {
        if self.len.load(Ordering::Relaxed) == 0 || hits.refund() > 0 {
            return None;
        }
        let mut slot = self.slot(counters.first()?.key.token).lock();
        self.retain(&mut slot, |entry| entry.until > now);
        let is_match = |entry: &&Entry| entry.is_window() && entry.has_keys_of(counters);
        let entry = slot.entries.iter().find(is_match)?;
        let elapsed = now.since(entry.checked);
        let verdicts = entry.verdicts.iter().zip(counters).map(|(verdict, counter)| {
            let verdict = after(verdict, elapsed);
            if verdict.allowed { verdict } else { refused_window(&verdict, counter, hits) }
        });
        Some(verdicts.collect())
    }

    /// Caches the verdicts of a check that began at `checked`, after `ticket` was taken, if all
    /// limits that refused are fixed windows.
    pub(super) fn insert_window(
        &self,
        ticket: Ticket,
        counters: &[Counter],
        hits: Hits,
        verdicts: &Verdicts,
        checked: Timestamp,
    ) {
        if !is_window(counters, verdicts) || hits.refund() > 0 {
            return;
        }
        // Of several limits none is charged when one refuses: fewer hits may still pass.
        let is_used_up = |it: &&Verdict| {
            let is_charged = verdicts.len() == 1 || u64::from(it.excess) >= hits.charge();
            !it.allowed && is_charged && lasts_as_long_as_its_window(it, hits)
        };
        let refusals = verdicts.iter().filter(is_used_up);
        let Some(reset) = refusals.map(|verdict| verdict.reset).min() else { return };
        self.put(ticket, counters, hits, verdicts, checked, reset);
    }

    /// The owner admitted hits of this counter. If it is a first-hit window, the open one of longer
    /// windows may have ended with that, so their refusals are dropped: the notice of the owner may
    /// come after its reply.
    pub(super) fn admitted(&self, counter: &Counter) {
        let Counter { key, quota } = counter;
        if quota.algorithm() != Algorithm::FirstHitWindow || self.len.load(Ordering::Relaxed) == 0 {
            return;
        }
        let is_longer = |it: &Counter| it.key == *key && it.quota.window() > quota.window();
        let mut slot = self.slot(key.token).lock();
        self.retain(&mut slot, |entry| !entry.counters.iter().any(is_longer));
    }

    /// Drops all refusals at `token`, and those of checks that are being forwarded now.
    pub(super) fn forget(&self, token: u64) {
        let mut slot = self.slot(token).lock();
        slot.invalidations = slot.invalidations.wrapping_add(1);
        self.retain(&mut slot, |entry| entry.counters.iter().all(|it| it.key.token != token));
    }

    fn put(
        &self,
        ticket: Ticket,
        counters: &[Counter],
        hits: Hits,
        verdicts: &Verdicts,
        checked: Timestamp,
        ttl: Span,
    ) {
        let Some(first) = counters.first() else { return };
        let (verdicts, until) = (verdicts.clone(), checked.plus(ttl));
        let entry = Entry { counters: counters.into(), hits, verdicts, checked, until };
        let mut slot = self.slot(first.key.token).lock();
        if slot.invalidations != ticket.0 {
            return;
        }
        self.retain(&mut slot, |old| !old.has_keys_of(counters));
        if slot.entries.len() >= WAYS {
            slot.entries.remove(0);
        } else {
            self.len.fetch_add(1, Ordering::Relaxed);
        }
        slot.entries.push(entry);
    }

    fn retain(&self, slot: &mut Slot, is_kept: impl Fn(&Entry) -> bool) {
        let before = slot.entries.len();
        slot.entries.retain(is_kept);
        self.len.fetch_sub(before - slot.entries.len(), Ordering::Relaxed);
    }

    fn slot(&self, token: u64) -> &Mutex<Slot> {
        let at = token % self.slots.len() as u64;
        &self.slots[usize::try_from(at).unwrap_or(0)]
    }
}

impl Entry {
    fn is_window(&self) -> bool {
        is_window(&self.counters, &self.verdicts)
    }

    /// Whether it is of the same counters, whatever their quotas.
    fn has_keys_of(&self, counters: &[Counter]) -> bool {
        let keys = self.counters.iter().map(|counter| counter.key);
        keys.eq(counters.iter().map(|counter| counter.key))
    }
}

impl Default for NegativeCache {
    fn default() -> Self {
        let slots = std::iter::repeat_with(Mutex::default).take(SLOTS).collect();
        Self { ttl_max: TTL_MAX, slots, len: AtomicUsize::new(0) }
    }
}

/// Whether any limit refuses, and all that do are fixed windows.
fn is_window(counters: &[Counter], verdicts: &[Verdict]) -> bool {
    let mut refusing = counters.iter().zip(verdicts).filter(|(_, verdict)| !verdict.allowed);
    let is_fixed =
        |(counter, _): (&Counter, &Verdict)| counter.quota.algorithm() == Algorithm::FixedWindow;
    verdicts.iter().any(|verdict| !verdict.allowed) && refusing.all(is_fixed)
}

/// Whether the window refuses whatever comes until it ends. Not if it refuses `hits` because of
/// what is reserved: that may end earlier, and fewer hits may pass.
fn lasts_as_long_as_its_window(verdict: &Verdict, hits: Hits) -> bool {
    verdict.remaining == 0
        && match verdict.retry {
            Retry::Now => false,
            Retry::After(wait) => wait >= verdict.reset,
            // A window counts what it refuses, but not beside a reservation.
            Retry::Never => u64::from(verdict.excess) < hits.charge(),
        }
}

/// The verdict on `hits` of a window that is cached as refused, by the present quota.
fn refused_window(verdict: &Verdict, counter: &Counter, hits: Hits) -> Verdict {
    let retry = if hits.charge() > u64::from(counter.quota.limit()) {
        Retry::Never
    } else {
        Retry::After(verdict.reset.max(Span::from_nanos(1)))
    };
    let excess = u32::try_from(hits.charge()).unwrap_or(u32::MAX);
    Verdict { limit: counter.quota.limit(), remaining: 0, retry, excess, ..*verdict }
}

/// The shortest wait among the limits that refuse; `None` when none does, or one does for ever.
fn shortest_wait(verdicts: &[Verdict]) -> Option<Span> {
    let refusals = verdicts.iter().filter(|verdict| !verdict.allowed);
    let waits: Option<SmallVec<[Span; 4]>> =
        refusals.map(|refusal| refusal.retry.after()).collect();
    waits?.into_iter().min()
}

/// Whether the limit can hold so many hits; otherwise the refusal never ends.
fn can_ever_pass(hits: Hits, quota: &Quota) -> bool {
    let hits_max = match quota.queue() {
        Some(queued) => queued.saturating_add(1),
        None => quota.burst(),
    };
    hits.charge() <= u64::from(hits_max)
}

/// The verdict after `elapsed`.
fn after(verdict: &Verdict, elapsed: Span) -> Verdict {
    let left = |span: Span| Span::from_nanos(span.as_nanos().saturating_sub(elapsed.as_nanos()));
    let retry = match verdict.retry {
        Retry::After(span) => Retry::After(left(span)),
        Retry::Now | Retry::Never => verdict.retry,
    };
    Verdict { reset: left(verdict.reset), retry, delay: left(verdict.delay), ..*verdict }
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::store::KeyHash;

    use super::*;

    const CHECKED: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn counter(token: u64, tag: u64, limit: u32) -> Counter {
        of(Algorithm::Gcra, token, tag, limit)
    }

    fn window(tag: u64, limit: u32) -> Counter {
        of(Algorithm::FixedWindow, 7, tag, limit)
    }

    fn of(algorithm: Algorithm, token: u64, tag: u64, limit: u32) -> Counter {
        let quota = Quota::simple(algorithm, limit, Span::from_secs(60)).expect("valid");
        Counter { key: KeyHash { token, tag }, quota }
    }

    fn verdict(retry: Retry) -> Verdict {
        Verdict {
            allowed: retry == Retry::Now,
            limit: 10,
            remaining: 2,
            reset: Span::from_secs(55),
            retry,
            delay: Span::ZERO,
            excess: 0,
        }
    }

    /// Of a window that has counted what it refuses.
    fn used_up(retry: Retry) -> Verdict {
        Verdict { remaining: 0, excess: 1, ..verdict(retry) }
    }

    fn wait(secs: u64) -> Retry {
        Retry::After(Span::from_secs(secs))
    }

    fn at(secs: u64) -> Timestamp {
        CHECKED.plus(Span::from_secs(secs))
    }

    /// A cache with one refusal of 3 hits.
    fn cached(retries: &[Retry]) -> (NegativeCache, Vec<Counter>) {
        let (cache, tags) = (NegativeCache::default(), 1..=retries.len() as u64);
        let counters: Vec<_> = tags.map(|tag| counter(7, tag, 10)).collect();
        let verdicts = retries.iter().map(|&retry| verdict(retry)).collect();
        cache.insert(cache.ticket(7), &counters, Hits::new(3), &verdicts, CHECKED);
        (cache, counters)
    }

    #[test]
    fn a_cached_refusal_has_the_time_that_is_left() {
        let (cache, counters) = cached(&[wait(40)]);
        for hits in [3, 4, 10] {
            let verdicts = cache.recall(&counters, Hits::new(hits), at(15)).expect("cached");
            assert_eq!(verdicts[0].retry, wait(25));
            assert_eq!(verdicts[0].reset, Span::from_secs(40));
            assert!(!verdicts[0].allowed);
        }
        let last = at(40).minus(Span::from_nanos(1));
        assert!(cache.recall(&counters, Hits::new(3), last).is_some());
        assert_eq!(cache.recall(&counters, Hits::new(3), at(40)), None);
        assert_eq!(cache.len.load(Ordering::Relaxed), 0, "ended entries are removed");
    }

    #[test]
    fn an_edge_asks_again_after_a_tenth_of_a_second() {
        let (cache, counters) = (NegativeCache::at_edge(), [counter(7, 1, 10)]);
        let verdicts = Verdicts::from_iter([verdict(wait(40))]);
        cache.insert(cache.ticket(7), &counters, Hits::new(3), &verdicts, CHECKED);
        let after = |ms| CHECKED.plus(Span::from_millis(ms));
        assert!(cache.recall(&counters, Hits::new(3), after(99)).is_some());
        assert_eq!(cache.recall(&counters, Hits::new(3), after(100)), None);
    }

    #[test]
    fn fewer_hits_peeks_and_refunds_are_forwarded() {
        let (cache, counters) = cached(&[wait(40)]);
        for hits in [2, 1, 0, -3] {
            assert_eq!(cache.recall(&counters, Hits::new(hits), CHECKED), None, "{hits} hits");
        }
    }

    #[test]
    fn more_hits_than_the_limit_can_hold_are_forwarded() {
        let (cache, counters) = cached(&[wait(40)]);
        assert_eq!(cache.recall(&counters, Hits::new(11), CHECKED), None);
    }

    #[test]
    fn a_changed_rule_is_forwarded() {
        let (cache, _) = cached(&[wait(40)]);
        assert_eq!(
            cache.recall(&[counter(7, 1, 11)], Hits::new(3), CHECKED),
            None,
            "a limit raised"
        );
        assert_eq!(
            cache.recall(&[counter(7, 2, 10)], Hits::new(3), CHECKED),
            None,
            "another limit"
        );
        let both = [counter(7, 1, 10), counter(7, 2, 10)];
        assert_eq!(cache.recall(&both, Hits::new(3), CHECKED), None, "a limit more");
    }

    #[test]
    fn several_limits_are_refused_until_the_first_refusal_ends() {
        let (cache, counters) = cached(&[wait(40), Retry::Now, wait(10)]);
        let verdicts = cache.recall(&counters, Hits::new(3), at(9)).expect("cached");
        let retries: Vec<_> = verdicts.iter().map(|verdict| verdict.retry).collect();
        assert_eq!(retries, [wait(31), Retry::Now, wait(1)]);
        assert_eq!(cache.recall(&counters, Hits::new(3), at(10)), None);
    }

    #[test]
    fn only_a_refusal_that_ends_is_cached() {
        for retries in [&[Retry::Now][..], &[Retry::Never], &[wait(40), Retry::Never]] {
            let (cache, counters) = cached(retries);
            assert_eq!(cache.recall(&counters, Hits::new(3), CHECKED), None, "{retries:?}");
        }
    }

    #[test]
    fn a_long_refusal_is_forwarded_again_after_the_longest_ttl() {
        let (cache, counters) = cached(&[wait(86_400)]);
        assert!(cache.recall(&counters, Hits::new(3), at(59)).is_some());
        assert_eq!(cache.recall(&counters, Hits::new(3), at(60)), None);
    }

    #[test]
    fn a_refusal_that_arrives_after_a_refund_is_not_cached() {
        let (cache, counters) = cached(&[wait(40)]);
        let ticket = cache.ticket(7);
        cache.forget(7);
        assert_eq!(cache.recall(&counters, Hits::new(3), CHECKED), None);
        let verdicts = smallvec::smallvec![verdict(wait(40))];
        cache.insert(ticket, &counters, Hits::new(3), &verdicts, CHECKED);
        assert_eq!(cache.recall(&counters, Hits::new(3), CHECKED), None);
        cache.insert(cache.ticket(7), &counters, Hits::new(3), &verdicts, CHECKED);
        assert!(cache.recall(&counters, Hits::new(3), CHECKED).is_some());
    }

    #[test]
    fn a_full_slot_evicts_the_oldest_entry() {
        let (cache, counters) = cached(&[wait(40)]);
        let other = |n: usize| [counter(7 + (n * SLOTS) as u64, 1, 10)];
        let verdicts = smallvec::smallvec![verdict(wait(40))];
        for n in 1..=WAYS {
            assert!(cache.recall(&counters, Hits::new(3), CHECKED).is_some());
            cache.insert(cache.ticket(7), &other(n), Hits::new(3), &verdicts, CHECKED);
            assert!(cache.recall(&other(n), Hits::new(3), CHECKED).is_some());
        }
        assert_eq!(cache.recall(&counters, Hits::new(3), CHECKED), None);
        assert_eq!(cache.len.load(Ordering::Relaxed), WAYS);
    }

    #[test]
    fn a_refused_window_covers_any_hits_until_it_ends() {
        let cache = NegativeCache::default();
        let (minute, raised) = (window(1, 10), window(1, 20));
        let verdicts = smallvec::smallvec![used_up(Retry::Never)];
        cache.insert_window(cache.ticket(7), &[minute], Hits::new(11), &verdicts, CHECKED);
        for (hits, retry) in [(0, wait(40)), (1, wait(40)), (20, wait(40)), (21, Retry::Never)] {
            let recalled = cache.recall_window(&[raised], Hits::new(hits), at(15));
            let verdict = recalled.expect("cached")[0];
            assert_eq!((verdict.allowed, verdict.limit, verdict.remaining), (false, 20, 0));
            assert_eq!((verdict.reset, verdict.retry), (Span::from_secs(40), retry));
        }
        assert_eq!(cache.recall_window(&[raised], Hits::new(-1), at(15)), None, "a refund");
        let other = window(2, 10);
        assert_eq!(cache.recall_window(&[other], Hits::new(1), at(15)), None, "another unit");
        assert_eq!(cache.recall_window(&[raised], Hits::new(1), at(55)), None, "it ended");
    }

    #[test]
    fn a_refusal_of_what_is_reserved_is_no_used_up_window() {
        let cache = NegativeCache::default();
        let refusals = [
            // 60 of 100 are reserved, and 50 are refused: 40 may pass.
            Verdict { remaining: 40, excess: 10, ..verdict(wait(55)) },
            // All is reserved, until before the window ends.
            Verdict { remaining: 0, excess: 50, ..verdict(wait(5)) },
            // The same, and more than the limit is asked for.
            Verdict { remaining: 0, excess: 50, ..verdict(Retry::Never) },
        ];
        for refusal in refusals {
            let verdicts = smallvec::smallvec![refusal];
            cache.insert_window(
                cache.ticket(7),
                &[window(1, 100)],
                Hits::new(50),
                &verdicts,
                CHECKED,
            );
            assert_eq!(cache.recall_window(&[window(1, 100)], Hits::ONE, at(1)), None);
        }
    }

    #[test]
    fn windows_of_one_descriptor_are_kept_apart_and_a_refund_drops_all() {
        let cache = NegativeCache::default();
        let verdicts = smallvec::smallvec![used_up(wait(55))];
        let units = [window(1, 10), window(2, 10)];
        for unit in units {
            cache.insert_window(cache.ticket(7), &[unit], Hits::new(1), &verdicts, CHECKED);
        }
        assert!(
            units.iter().all(|&it| cache.recall_window(&[it], Hits::new(1), CHECKED).is_some())
        );
        cache.forget(7);
        assert!(
            units.iter().all(|&it| cache.recall_window(&[it], Hits::new(1), CHECKED).is_none())
        );
        assert_eq!(cache.len.load(Ordering::Relaxed), 0);
    }
}

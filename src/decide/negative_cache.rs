//! Refusals of owners that still hold: a key under attack costs no forward.
//!
//! An owner that refuses says when the same hits may pass. Until then nobody needs to ask it for
//! as many hits or more: the node that was told answers by itself.
//!
//! **What is remembered**: at the asking node, for forwarded strict checks, the counters with
//! their quotas, the hits, the verdicts, and `until`: the instant of the ask plus the shortest
//! wait of the limits that refused. It begins at the ask, before the owner decided, so it never
//! ends too late; and while the shortest wait lasts, every remembered refusal is still one.
//!
//! **Worked example.** Asked at 10:00:00 for 3 hits, the owner refuses with "retry after 40 s,
//! reset in 55 s". At 10:00:15 an ask for 3 or more is refused here with 25 s and 40 s. An ask for
//! 2 goes to the owner, and so does every ask from 10:00:40 on.
//!
//! **What is asked all the same**: fewer hits, peeks and refunds; more hits than the limit can
//! hold, which are refused for ever; counters of a rule that changed, because the quotas are
//! compared; a key that was given hits back, because the owner tells every node of its ring
//! ([`Call::Refunded`](tidegate_cluster::mesh::wire::Call::Refunded)). That notice is sent once;
//! [`HOLDS_MAX`] bounds what a lost one does, but for remembered windows.
//!
//! **What differs from asking**: a `fixed_window` counts hits that it refuses, and those refused
//! here are not counted; envoyproxy/ratelimit's local cache has the same effect (its README,
//! "Local Cache"). A larger ask is told the time of the smaller one, which may be too early for
//! it.
//!
//! **Windows.** With `[envoy] local_cache` every refusal of a fixed window is remembered, also one
//! decided here, until the window ends, and covers the key whatever is asked: more hits, fewer, a
//! look, another limit of the same unit. That is envoyproxy/ratelimit's local cache, whose entries
//! are named after the window.
//!
//! **Bound.** [`SLOTS`] places with [`WAYS`] refusals each, so that the limits of one descriptor do
//! not forget each other; the newest takes the room of the oldest.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_cluster::mesh::wire::Check;
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::quota::Algorithm;
use tidegate_limiter::store::{Counter, Verdicts};
use tidegate_limiter::units::{Hits, Span, Timestamp};

use super::refusal::{later, may_ever_pass, refused_again, shortest_wait};

/// Slots of the table; 32 bytes each, and some 200 more for a refusal of one limit.
const SLOTS: usize = 16_384;
/// Refusals of a slot: one a unit, as far as requests bring limits of every unit along.
const WAYS: usize = 8;
/// The longest that a refusal is believed without asking again.
const HOLDS_MAX: Span = Span::from_secs(60);

/// The refusals that a node was told.
#[derive(Debug)]
pub(super) struct NegativeCache {
    slots: Box<[Mutex<Slot>]>,
    /// Refusals remembered: while there are none, a look costs one load.
    taken: AtomicUsize,
}

/// How often the slot of a place was forgotten when an ask began: what the owner answers is stale
/// if it was forgotten since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u32);

#[derive(Debug, Default)]
struct Slot {
    forgotten: u32,
    /// At most [`WAYS`], the oldest first.
    negative_cache: Vec<Denial>,
}

#[derive(Debug)]
struct Denial {
    counters: SmallVec<[Counter; 1]>,
    hits: Hits,
    verdicts: Verdicts,
    asked: Timestamp,
    until: Timestamp,
}

impl NegativeCache {
    /// The verdicts of `check` at `now`, if a refusal that was remembered covers it.
    pub(super) fn recall(&self, check: &Check, now: Timestamp) -> Option<Verdicts> {
        if self.taken.load(Ordering::Relaxed) == 0 || check.hits.charge() == 0 {
            return None;
        }
        let mut slot = self.slot(check.counters.first()?.key.token).lock();
        self.keep(&mut slot, |denial| denial.until > now);
        let denial = slot.negative_cache.iter().find(|denial| denial.counters == check.counters)?;
        let is_covered = check.hits >= denial.hits
            && check.counters.iter().all(|counter| may_ever_pass(check.hits, &counter.quota));
        is_covered.then(|| {
            let passed = now.since(denial.asked);
            denial.verdicts.iter().map(|verdict| later(verdict, passed)).collect()
        })
    }

    /// To be taken before the owner of `token` is asked.
    pub(super) fn ticket(&self, token: u64) -> Ticket {
        Ticket(self.slot(token).lock().forgotten)
    }

    /// Remembers what the owner of a check answered, if it is a refusal that ends. It was asked at
    /// `asked`, after `ticket` was taken.
    pub(super) fn remember(
        &self,
        ticket: Ticket,
        check: &Check,
        asked: Timestamp,
        verdicts: &Verdicts,
    ) {
        let (Some(first), Some(wait)) = (check.counters.first(), shortest_wait(verdicts)) else {
            return;
        };
        if check.hits.charge() == 0 {
            return;
        }
        let mut slot = self.slot(first.key.token).lock();
        if slot.forgotten != ticket.0 {
            return;
        }
        self.put(&mut slot, check, verdicts, (asked, asked.plus(wait.min(HOLDS_MAX))));
    }

    /// The verdicts of `check` at `now`, if one of its fixed windows was refused and lasts. Not for
    /// refunds.
    pub(super) fn recall_window(&self, check: &Check, now: Timestamp) -> Option<Verdicts> {
        if self.taken.load(Ordering::Relaxed) == 0 || check.hits.refund() > 0 {
            return None;
        }
        let mut slot = self.slot(check.counters.first()?.key.token).lock();
        self.keep(&mut slot, |denial| denial.until > now);
        let is_it = |denial: &&Denial| denial.is_window() && denial.is_of(&check.counters);
        let denial = slot.negative_cache.iter().find(is_it)?;
        let passed = now.since(denial.asked);
        let verdicts = denial.verdicts.iter().zip(&check.counters).map(|(verdict, counter)| {
            let verdict = later(verdict, passed);
            if verdict.allowed { verdict } else { refused_again(&verdict, counter, check.hits) }
        });
        Some(verdicts.collect())
    }

    /// Remembers what was decided of a check at `asked`, after `ticket` was taken, if all that
    /// refused it are fixed windows.
    pub(super) fn remember_window(
        &self,
        ticket: Ticket,
        check: &Check,
        asked: Timestamp,
        verdicts: &Verdicts,
    ) {
        let Some(first) = check.counters.first() else { return };
        if !is_window(&check.counters, verdicts) || check.hits.refund() > 0 {
            return;
        }
        // Of several limits none is charged when one refuses: fewer hits may still pass.
        let is_used_up = |it: &&Verdict| {
            !it.allowed && (verdicts.len() == 1 || u64::from(it.excess) >= check.hits.charge())
        };
        let refusals = verdicts.iter().filter(is_used_up);
        let Some(rest) = refusals.map(|verdict| verdict.reset).min() else { return };
        let mut slot = self.slot(first.key.token).lock();
        if slot.forgotten == ticket.0 {
            self.put(&mut slot, check, verdicts, (asked, asked.plus(rest)));
        }
    }

    fn put(
        &self,
        slot: &mut Slot,
        check: &Check,
        verdicts: &Verdicts,
        (asked, until): (Timestamp, Timestamp),
    ) {
        let (counters, verdicts) = (check.counters.clone(), verdicts.clone());
        self.keep(slot, |denial| !denial.is_of(&counters));
        if slot.negative_cache.len() >= WAYS {
            slot.negative_cache.remove(0);
        } else {
            self.taken.fetch_add(1, Ordering::Relaxed);
        }
        slot.negative_cache.push(Denial { counters, hits: check.hits, verdicts, asked, until });
    }

    /// Forgets what was refused at `token`, and what owners that are being asked now will refuse.
    pub(super) fn forget(&self, token: u64) {
        let mut slot = self.slot(token).lock();
        slot.forgotten = slot.forgotten.wrapping_add(1);
        self.keep(&mut slot, |denial| denial.counters.iter().all(|it| it.key.token != token));
    }

    fn keep(&self, slot: &mut Slot, is_kept: impl Fn(&Denial) -> bool) {
        let before = slot.negative_cache.len();
        slot.negative_cache.retain(is_kept);
        self.taken.fetch_sub(before - slot.negative_cache.len(), Ordering::Relaxed);
    }

    fn slot(&self, token: u64) -> &Mutex<Slot> {
        let at = token % self.slots.len() as u64;
        &self.slots[usize::try_from(at).unwrap_or(0)]
    }
}

impl Denial {
    fn is_window(&self) -> bool {
        is_window(&self.counters, &self.verdicts)
    }

    /// Whether it is of the same counters, whatever they allow.
    fn is_of(&self, counters: &[Counter]) -> bool {
        let ours = self.counters.iter().map(|counter| counter.key);
        ours.eq(counters.iter().map(|counter| counter.key))
    }
}

impl Default for NegativeCache {
    fn default() -> Self {
        let slots = std::iter::repeat_with(Mutex::default).take(SLOTS).collect();
        Self { slots, taken: AtomicUsize::new(0) }
    }
}

/// Whether all that refuses is fixed windows, and anything refuses.
fn is_window(counters: &[Counter], verdicts: &[Verdict]) -> bool {
    let mut refusing = counters.iter().zip(verdicts).filter(|(_, verdict)| !verdict.allowed);
    let is_fixed =
        |(counter, _): (&Counter, &Verdict)| counter.quota.algorithm() == Algorithm::FixedWindow;
    verdicts.iter().any(|verdict| !verdict.allowed) && refusing.all(is_fixed)
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::engine::Retry;
    use tidegate_limiter::policy::{Durability, Scope};
    use tidegate_limiter::quota::Quota;
    use tidegate_limiter::store::KeyHash;

    use super::*;

    const ASKED: Timestamp = Timestamp::from_secs(1_700_000_000);

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

    fn check(counters: &[Counter], hits: i64) -> Check {
        Check {
            id: 1,
            scope: Scope::Region,
            counters: counters.into(),
            hits: Hits::new(hits),
            durability: Durability::Async,
        }
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

    fn wait(secs: u64) -> Retry {
        Retry::After(Span::from_secs(secs))
    }

    fn after(secs: u64) -> Timestamp {
        ASKED.plus(Span::from_secs(secs))
    }

    /// Denials that were told of a refusal of 3 hits for 40 s.
    fn told(retries: &[Retry]) -> (NegativeCache, Vec<Counter>) {
        let (negative_cache, tags) = (NegativeCache::default(), 1..=retries.len() as u64);
        let counters: Vec<_> = tags.map(|tag| counter(7, tag, 10)).collect();
        let verdicts = retries.iter().map(|&retry| verdict(retry)).collect();
        negative_cache.remember(negative_cache.ticket(7), &check(&counters, 3), ASKED, &verdicts);
        (negative_cache, counters)
    }

    #[test]
    fn a_refusal_is_given_again_with_the_time_that_is_left() {
        let (negative_cache, counters) = told(&[wait(40)]);
        for hits in [3, 4, 10] {
            let verdicts =
                negative_cache.recall(&check(&counters, hits), after(15)).expect("remembered");
            assert_eq!(verdicts[0].retry, wait(25));
            assert_eq!(verdicts[0].reset, Span::from_secs(40));
            assert!(!verdicts[0].allowed);
        }
        let last = after(40).minus(Span::from_nanos(1));
        assert!(negative_cache.recall(&check(&counters, 3), last).is_some());
        assert_eq!(negative_cache.recall(&check(&counters, 3), after(40)), None);
        assert_eq!(negative_cache.taken.load(Ordering::Relaxed), 0, "what is over is given up");
    }

    #[test]
    fn fewer_hits_peeks_and_refunds_are_asked() {
        let (negative_cache, counters) = told(&[wait(40)]);
        for hits in [2, 1, 0, -3] {
            assert_eq!(negative_cache.recall(&check(&counters, hits), ASKED), None, "{hits} hits");
        }
    }

    #[test]
    fn more_than_the_limit_can_hold_is_asked_because_it_never_may_pass() {
        let (negative_cache, counters) = told(&[wait(40)]);
        assert_eq!(negative_cache.recall(&check(&counters, 11), ASKED), None);
    }

    #[test]
    fn a_rule_that_changed_is_asked() {
        let (negative_cache, _) = told(&[wait(40)]);
        assert_eq!(
            negative_cache.recall(&check(&[counter(7, 1, 11)], 3), ASKED),
            None,
            "a limit raised"
        );
        assert_eq!(
            negative_cache.recall(&check(&[counter(7, 2, 10)], 3), ASKED),
            None,
            "another limit"
        );
        let both = [counter(7, 1, 10), counter(7, 2, 10)];
        assert_eq!(negative_cache.recall(&check(&both, 3), ASKED), None, "a limit more");
    }

    #[test]
    fn several_limits_are_refused_as_long_as_all_that_refused_still_do() {
        let (negative_cache, counters) = told(&[wait(40), Retry::Now, wait(10)]);
        let verdicts = negative_cache.recall(&check(&counters, 3), after(9)).expect("remembered");
        let retries: Vec<_> = verdicts.iter().map(|verdict| verdict.retry).collect();
        assert_eq!(retries, [wait(31), Retry::Now, wait(1)]);
        assert_eq!(negative_cache.recall(&check(&counters, 3), after(10)), None);
    }

    #[test]
    fn only_a_refusal_that_ends_is_remembered() {
        for retries in [&[Retry::Now][..], &[Retry::Never], &[wait(40), Retry::Never]] {
            let (negative_cache, counters) = told(retries);
            assert_eq!(negative_cache.recall(&check(&counters, 3), ASKED), None, "{retries:?}");
        }
    }

    #[test]
    fn a_long_refusal_is_asked_again_at_times() {
        let (negative_cache, counters) = told(&[wait(86_400)]);
        assert!(negative_cache.recall(&check(&counters, 3), after(59)).is_some());
        assert_eq!(negative_cache.recall(&check(&counters, 3), after(60)), None);
    }

    #[test]
    fn a_refusal_that_was_under_way_while_hits_were_given_back_is_not_remembered() {
        let (negative_cache, counters) = told(&[wait(40)]);
        let ticket = negative_cache.ticket(7);
        negative_cache.forget(7);
        assert_eq!(negative_cache.recall(&check(&counters, 3), ASKED), None);
        let verdicts = smallvec::smallvec![verdict(wait(40))];
        negative_cache.remember(ticket, &check(&counters, 3), ASKED, &verdicts);
        assert_eq!(negative_cache.recall(&check(&counters, 3), ASKED), None);
        negative_cache.remember(negative_cache.ticket(7), &check(&counters, 3), ASKED, &verdicts);
        assert!(negative_cache.recall(&check(&counters, 3), ASKED).is_some());
    }

    #[test]
    fn the_newest_refusal_takes_the_room_of_the_oldest() {
        let (negative_cache, counters) = told(&[wait(40)]);
        let other = |n: usize| [counter(7 + (n * SLOTS) as u64, 1, 10)];
        let verdicts = smallvec::smallvec![verdict(wait(40))];
        for n in 1..=WAYS {
            assert!(negative_cache.recall(&check(&counters, 3), ASKED).is_some());
            negative_cache.remember(
                negative_cache.ticket(7),
                &check(&other(n), 3),
                ASKED,
                &verdicts,
            );
            assert!(negative_cache.recall(&check(&other(n), 3), ASKED).is_some());
        }
        assert_eq!(negative_cache.recall(&check(&counters, 3), ASKED), None);
        assert_eq!(negative_cache.taken.load(Ordering::Relaxed), WAYS);
    }

    #[test]
    fn a_window_that_was_refused_covers_whatever_is_asked_of_its_key_until_it_ends() {
        let negative_cache = NegativeCache::default();
        let (minute, raised) = (window(1, 10), window(1, 20));
        let verdicts = smallvec::smallvec![verdict(Retry::Never)];
        negative_cache.remember_window(
            negative_cache.ticket(7),
            &check(&[minute], 11),
            ASKED,
            &verdicts,
        );
        for (hits, retry) in [(0, wait(40)), (1, wait(40)), (20, wait(40)), (21, Retry::Never)] {
            let recalled = negative_cache.recall_window(&check(&[raised], hits), after(15));
            let verdict = recalled.expect("remembered")[0];
            assert_eq!((verdict.allowed, verdict.limit, verdict.remaining), (false, 20, 0));
            assert_eq!((verdict.reset, verdict.retry), (Span::from_secs(40), retry));
        }
        assert_eq!(
            negative_cache.recall_window(&check(&[raised], -1), after(15)),
            None,
            "a refund"
        );
        let other = window(2, 10);
        assert_eq!(
            negative_cache.recall_window(&check(&[other], 1), after(15)),
            None,
            "another unit"
        );
        assert_eq!(negative_cache.recall_window(&check(&[raised], 1), after(55)), None, "it ended");
    }

    #[test]
    fn the_windows_of_one_descriptor_do_not_forget_each_other_and_a_refund_forgets_all() {
        let negative_cache = NegativeCache::default();
        let verdicts = smallvec::smallvec![verdict(wait(55))];
        let units = [window(1, 10), window(2, 10)];
        for unit in units {
            negative_cache.remember_window(
                negative_cache.ticket(7),
                &check(&[unit], 1),
                ASKED,
                &verdicts,
            );
        }
        assert!(
            units.iter().all(|&it| negative_cache.recall_window(&check(&[it], 1), ASKED).is_some())
        );
        negative_cache.forget(7);
        assert!(
            units.iter().all(|&it| negative_cache.recall_window(&check(&[it], 1), ASKED).is_none())
        );
        assert_eq!(negative_cache.taken.load(Ordering::Relaxed), 0);
    }
}

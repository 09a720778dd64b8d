//! Checks of limits that their requests carry: what such a request may ask for beside its hits.
//!
//! - **Resets**: it ends what was counted. Of a window that is open it counts nothing itself; of a
//!   window that is not, and of a bucket, it counts its hits afterwards.
//! - **Its own time**: a bucket is decided as of an instant that the request names, for clients
//!   that count what they did before. The store keeps such a bucket for [`BEHIND_MAX`] longer, so
//!   that a request which is late finds what earlier ones took.
//! - A [`Behavior`]: it takes what is left when it is refused, or gives back more than was used.
//!
//! **Worked example.** A bucket of 10 per 30 s. At 12:00:00 nine hits are taken as of 12:00:00, and
//! at 12:00:01 one as of 12:00:03: it finds 2 tokens and leaves 1.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use super::counting_mode::{BEHIND_MAX, CheckParams};
use super::key::{Counter, KeyHash};
use super::overflow::Overflow;
use super::shard::Shard;
use super::sharded::Store;
use crate::engine::grant::{Outstanding, Refunded};
use crate::engine::{self, Behavior, State, Verdict, first_hit_window};
use crate::quota::Algorithm;
use crate::units::{Hits, Span, Timestamp};

/// A check of one limit that its request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    pub counter: Counter,
    pub hits: Hits,
    pub behavior: Behavior,
    /// The instant as of which a bucket is decided; `None` for now. Other algorithms ignore it.
    pub at: Option<Timestamp>,
    /// It ends what was counted before.
    pub resets: bool,
}

impl Carried {
    /// Whether it asks for nothing but its hits.
    pub fn is_plain(&self) -> bool {
        self.behavior == Behavior::default() && self.at.is_none() && !self.resets
    }

    /// Whether afterwards hits may pass that were refused before.
    pub const fn gives_back(&self) -> bool {
        self.resets || self.hits.refund() > 0
    }

    fn params(&self, now: Timestamp) -> CheckParams {
        let (behavior, at) = (self.behavior, self.instant(now));
        CheckParams { behavior, at, ..CheckParams::strict(self.hits, now) }
    }

    /// The instant as of which a node whose clock reads `now` decides it.
    fn instant(&self, now: Timestamp) -> Option<Timestamp> {
        let is_instant =
            matches!(self.counter.quota.algorithm(), Algorithm::TokenBucket | Algorithm::Gcra);
        let at = self.at.filter(|_| is_instant).map(|at| at.max(now.minus(BEHIND_MAX)));
        // Hits come back now, also those of a client whose clock is ahead.
        if self.hits.refund() > 0 { at.map(|at| at.min(now)) } else { at }
    }
}

impl Counter {
    fn is_first_hit_window(&self) -> bool {
        self.quota.algorithm() == Algorithm::FirstHitWindow
    }
}

impl Store {
    /// Decides `check`, but only if `owns` returns true under the lock; otherwise returns `None`
    /// and counts nothing.
    pub fn check_carried_if(
        &self,
        check: &Carried,
        now: Timestamp,
        owns: impl FnOnce() -> bool,
    ) -> Option<Verdict> {
        let mut shard = self.lock_for(check.counter.key);
        let verdict = owns().then(|| shard.check_carried(check, now, &self.overflow));
        self.moved_windows.note(&mut shard, check.counter.key);
        verdict
    }

    /// The same for one that [`gives back`](Carried::gives_back) while granted hits of its counter
    /// are `outstanding`: it takes nothing of these, because they may pass yet, and nothing beyond
    /// what was used is credited. The second result is what became of the refund; empty for one
    /// that gives nothing back, and for a reset beside which nothing was outstanding.
    pub fn check_carried_beside_if(
        &self,
        check: &Carried,
        outstanding: Outstanding,
        now: Timestamp,
        owns: impl FnOnce() -> bool,
    ) -> Option<(Verdict, SmallVec<[Refunded; 1]>)> {
        let counters = std::slice::from_ref(&check.counter);
        let mut shard = self.lock_for(check.counter.key);
        if !owns() {
            return None;
        }
        if outstanding.hits == 0 || !check.gives_back() {
            let verdict = shard.check_carried(check, now, &self.overflow);
            let mut refunded = SmallVec::new();
            if check.gives_back() && !check.resets {
                // All is taken; earlier ones wait for no more than is counted now.
                refunded.push(Refunded::default());
                shard.refund(counters, 0, &[], &mut refunded, now);
            }
            self.moved_windows.note(&mut shard, check.counter.key);
            return Some((verdict, refunded));
        }
        let was_open = shard.is_open(check, now);
        let refund = if check.resets { u32::MAX.into() } else { check.hits.refund() };
        let mut refunded = smallvec![Refunded::default()];
        if check.resets {
            shard.end_credit(check.counter.key, now);
        }
        let verdicts = shard.refund(counters, refund, &[outstanding], &mut refunded, now);
        let is_counted = check.resets && !(was_open && check.counter.is_first_hit_window());
        let verdict = match verdicts.first() {
            Some(verdict) if !is_counted => *verdict,
            _ => shard.check_single(&check.counter, check.params(now), &self.overflow),
        };
        self.moved_windows.note(&mut shard, check.counter.key);
        Some((verdict, refunded))
    }
}

impl Shard {
    fn check_carried(&mut self, check: &Carried, now: Timestamp, overflow: &Overflow) -> Verdict {
        let Carried { counter, resets, .. } = check;
        let params = check.params(now);
        if *resets {
            let was_open = self.is_open(check, now);
            if counter.is_first_hit_window() && !was_open {
                // Over by the request's own length, it may be open for longer ones.
                self.end_window(counter.key, now);
                return self.check_single(counter, params, overflow);
            }
            let at = params.at.map(|at| at.min(now));
            let all = CheckParams { at, ..CheckParams::strict(Hits::new(i64::MIN), now) };
            let reset = self.check_single(counter, all, overflow);
            if was_open && counter.is_first_hit_window() {
                return reset;
            }
        }
        self.check_single(counter, params, overflow)
    }

    /// Ends a window, whatever its length.
    fn end_window(&mut self, key: KeyHash, now: Timestamp) {
        let now = self.instant(now);
        if let Some((slot, queues)) = self.live_mut(key, now)
            && matches!(slot.state, State::FirstHitWindow { .. })
        {
            slot.state = State::Absent;
            queues.enqueue_strict(slot);
            queues.enqueue_snapshot(slot);
        }
    }

    /// Ends what refunds have added to the limit of a window.
    fn end_credit(&mut self, key: KeyHash, now: Timestamp) {
        let now = self.instant(now);
        if let Some((slot, queues)) = self.live_mut(key, now) {
            first_hit_window::end_credit(&mut slot.state);
            queues.enqueue_strict(slot);
            queues.enqueue_snapshot(slot);
        }
    }

    /// Whether something is counted.
    fn is_open(&self, check: &Carried, now: Timestamp) -> bool {
        let Counter { key, quota } = &check.counter;
        let state = self.state(*key, self.instant(now)).unwrap_or(&State::Absent);
        engine::preview(state, quota, Hits::PEEK, now).reset > Span::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Mode, Scope};
    use crate::quota::Quota;
    use crate::store::{KeyHasher, OnFull, Options};

    const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);

    fn store() -> Store {
        Store::new(Options { keys_max: 1_000, on_full: OnFull::Share, shards: None })
    }

    fn carried(algorithm: Algorithm, hits: i64) -> Carried {
        let quota = Quota::simple(algorithm, 10, Span::from_secs(30)).expect("valid");
        let key = KeyHasher::new([7; 16]).carried("n", "k", [0; 3]);
        let counter = Counter { key: key.counter(&quota, Mode::Strict, Scope::Region), quota };
        let (hits, behavior) = (Hits::new(hits), Behavior::default());
        Carried { counter, hits, behavior, at: None, resets: false }
    }

    fn remaining(store: &Store, check: Carried, now: Timestamp) -> u32 {
        store.check_carried_if(&check, now, || true).expect("owned").remaining
    }

    #[test]
    fn the_worked_example_holds() {
        let store = store();
        let after = |secs| NOW.plus(Span::from_secs(secs));
        let of =
            |hits, secs| Carried { at: Some(after(secs)), ..carried(Algorithm::TokenBucket, hits) };
        assert_eq!(remaining(&store, of(9, 0), NOW), 1);
        assert_eq!(remaining(&store, of(1, 3), after(1)), 1);
    }

    #[test]
    fn a_client_whose_requests_are_late_gets_no_more() {
        let store = store();
        // A hit every 200 ms, as of 900 ms ago, of a limit of one per 3 s beyond the first ten.
        let mut passed = 0;
        for number in 0..300 {
            let now = NOW.plus(Span::from_millis(200 * number));
            let at = Some(now.minus(Span::from_millis(900)));
            let check = Carried { at, ..carried(Algorithm::TokenBucket, 1) };
            passed +=
                u32::from(store.check_carried_if(&check, now, || true).expect("owned").allowed);
        }
        assert_eq!(passed, 10 + 19);
        // Earlier than that is taken for that.
        let late = Carried { at: Some(Timestamp::EPOCH), ..carried(Algorithm::TokenBucket, 0) };
        let now = NOW.plus(Span::from_secs(60));
        assert_eq!(remaining(&store, late, now), 0);
    }

    /// A window of a longer request goes on, whatever a refused one says of its length.
    #[test]
    fn a_refused_request_ends_no_window() {
        let store = store();
        let window = |hits| carried(Algorithm::FirstHitWindow, hits);
        let short = |hits| {
            let quota = Quota::simple(Algorithm::FirstHitWindow, 10, Span::from_secs(1));
            let quota = quota.expect("valid");
            Carried { counter: Counter { quota, ..window(hits).counter }, ..window(hits) }
        };
        let after = |millis| NOW.plus(Span::from_millis(millis));
        assert_eq!(remaining(&store, window(10), NOW), 0);
        let refused = store.check_carried_if(&short(1), after(300), || true).expect("owned");
        assert!(!refused.allowed);
        assert_eq!(remaining(&store, window(0), after(1_300)), 0);
        let later = store.check_carried_if(&window(1), after(1_300), || true).expect("owned");
        assert!(!later.allowed);
    }

    /// By its own length the window is over, so it has nothing to give back.
    #[test]
    fn a_refund_with_a_shorter_window_ends_none() {
        let store = store();
        let of = |hits, millis| {
            let window = Span::from_millis(millis);
            let quota = Quota::simple(Algorithm::FirstHitWindow, 10, window).expect("valid");
            let check = carried(Algorithm::FirstHitWindow, hits);
            Carried { counter: Counter { quota, ..check.counter }, ..check }
        };
        let after = |millis| NOW.plus(Span::from_millis(millis));
        assert_eq!(remaining(&store, of(5, 30_000), NOW), 5);
        assert_eq!(remaining(&store, of(-2, 50), after(200)), 10);
        assert_eq!(remaining(&store, of(0, 30_000), after(300)), 5);
        // One that is open by it gives back, and ends no earlier.
        assert_eq!(remaining(&store, of(-2, 1_000), after(400)), 7);
        assert_eq!(remaining(&store, of(0, 30_000), after(2_000)), 7);
    }

    /// A window of 10 that lasts `millis`.
    fn lasting(hits: i64, millis: u64) -> Carried {
        let window = Span::from_millis(millis);
        let quota = Quota::simple(Algorithm::FirstHitWindow, 10, window).expect("valid");
        let check = carried(Algorithm::FirstHitWindow, hits);
        Carried { counter: Counter { quota, ..check.counter }, ..check }
    }

    fn after(millis: u64) -> Timestamp {
        NOW.plus(Span::from_millis(millis))
    }

    #[test]
    fn a_credit_lasts_whatever_the_key_has_counted_before() {
        let credits = Behavior { credits: true, ..Behavior::default() };
        let credit = |hits| Carried { behavior: credits, ..lasting(hits, 30_000) };
        for what in ["new", "reset", "given back", "ended"] {
            let store = store();
            if what != "new" {
                assert_eq!(remaining(&store, lasting(3, 500), NOW), 7);
            }
            match what {
                "reset" => {
                    let reset = Carried { resets: true, ..lasting(0, 500) };
                    assert_eq!(remaining(&store, reset, NOW), 10);
                }
                "given back" => assert_eq!(remaining(&store, lasting(-3, 500), NOW), 10),
                _ => {}
            }
            for left in [11, 12] {
                assert_eq!(remaining(&store, credit(-1), after(500)), left, "{what}");
            }
            assert_eq!(remaining(&store, credit(12), after(20_000)), 0, "{what}");
        }
    }

    #[test]
    fn a_refund_with_a_shorter_window_credits_nothing() {
        let store = store();
        let credits = Behavior { credits: true, ..Behavior::default() };
        assert_eq!(remaining(&store, lasting(5, 30_000), NOW), 5);
        let refund = Carried { behavior: credits, ..lasting(-2, 50) };
        assert_eq!(remaining(&store, refund, after(200)), 10);
        assert_eq!(remaining(&store, lasting(0, 30_000), after(300)), 5);
    }

    #[test]
    fn a_request_that_takes_nothing_says_when_the_window_really_ends() {
        let second = Span::from_secs(1);
        for (hits, allowed) in [(0, true), (-1, true), (8, false)] {
            let store = store();
            assert_eq!(remaining(&store, lasting(5, 1_000), NOW), 5);
            let longer = lasting(hits, 60_000);
            let verdict = store.check_carried_if(&longer, NOW, || true).expect("owned");
            assert_eq!((verdict.allowed, verdict.reset <= second), (allowed, true), "{hits} hits");
            if let Some(wait) = verdict.retry.after() {
                assert!(wait <= second, "{wait:?}");
                let then = store.check_carried_if(&longer, NOW.plus(wait), || true).expect("owned");
                assert!(then.allowed, "{hits} hits");
            }
        }
    }

    #[test]
    fn a_reset_with_a_shorter_window_ends_the_longer_one() {
        for (hits, left) in [(0, 10), (4, 6), (20, 10)] {
            let store = store();
            assert_eq!(remaining(&store, lasting(5, 30_000), NOW), 5);
            let reset = Carried { resets: true, ..lasting(hits, 50) };
            assert_eq!(remaining(&store, reset, after(200)), left);
            assert_eq!(remaining(&store, lasting(0, 30_000), after(200)), left, "{hits} hits");
        }
    }

    #[test]
    fn what_was_given_back_in_full_is_removed_from_the_disk() {
        let hits = |hits| {
            let check = lasting(hits, 7_200_000);
            let hash = KeyHasher::new([7; 16]).carried("n", "k", [0; 3]);
            let key = hash.counter(&check.counter.quota, Mode::Strict, Scope::Region);
            Carried { counter: Counter { key, ..check.counter }, ..check }
        };
        for ends in [hits(-5), Carried { resets: true, ..hits(0) }] {
            let store = store();
            store.set_snapshotted(true);
            assert_eq!(remaining(&store, hits(5), NOW), 5);
            assert_eq!(store.take_dropped(), []);
            assert_eq!(remaining(&store, ends, NOW), 10);
            assert_eq!(store.take_dropped(), [ends.counter.key]);
            assert_eq!(store.take_dropped(), []);
        }
    }

    /// It may be over when the next snapshot is written, which has the longer one.
    #[test]
    fn a_window_that_a_shorter_one_ends_is_removed_from_the_disk() {
        let store = store();
        store.set_snapshotted(true);
        let long = lasting(5, 7_200_000);
        let hash = KeyHasher::new([7; 16]).carried("n", "k", [0; 3]);
        let key = hash.counter(&long.counter.quota, Mode::Strict, Scope::Region);
        let of = |check: Carried| Carried { counter: Counter { key, ..check.counter }, ..check };
        assert_eq!(remaining(&store, of(long), NOW), 5);
        assert_eq!(remaining(&store, of(lasting(1, 20)), after(100)), 9);
        assert_eq!(store.take_dropped(), [key]);
    }

    #[test]
    fn a_reset_and_a_refund_take_nothing_of_what_is_outstanding() {
        for algorithm in [Algorithm::FirstHitWindow, Algorithm::TokenBucket] {
            let store = store();
            let check = |hits, resets| Carried { resets, ..carried(algorithm, hits) };
            let outstanding = Outstanding { hits: 4, until: NOW };
            let beside = |check| {
                let checked = store.check_carried_beside_if(&check, outstanding, NOW, || true);
                checked.expect("owned")
            };
            assert_eq!(remaining(&store, check(9, false), NOW), 1);
            let (verdict, refunded) = beside(check(0, true));
            assert_eq!((verdict.remaining, refunded[0].taken), (6, 5), "{algorithm:?}");
            let credits = Behavior { credits: true, ..Behavior::default() };
            let (verdict, refunded) = beside(Carried { behavior: credits, ..check(-9, false) });
            assert_eq!((verdict.remaining, refunded[0].taken), (6, 0), "{algorithm:?}");
        }
    }

    #[test]
    fn a_reset_ends_an_open_window_and_fills_a_bucket() {
        let store = store();
        let window = |hits, resets| Carried { resets, ..carried(Algorithm::FirstHitWindow, hits) };
        assert_eq!(remaining(&store, window(1, true), NOW), 9, "there was nothing to reset");
        assert_eq!(remaining(&store, window(3, false), NOW), 6);
        assert_eq!(remaining(&store, window(1, true), NOW), 10);
        assert_eq!(remaining(&store, window(1, false), NOW), 9);
        let bucket = |hits, resets| Carried { resets, ..carried(Algorithm::TokenBucket, hits) };
        assert_eq!(remaining(&store, bucket(5, false), NOW), 5);
        assert_eq!(remaining(&store, bucket(1, true), NOW), 9);
        // Also of a client whose request is late.
        let at = Some(NOW.minus(Span::from_millis(5)));
        assert_eq!(remaining(&store, Carried { at, ..bucket(0, true) }, NOW), 10);
    }

    /// A window that is over has its place in the table until it is needed.
    #[test]
    fn what_a_refused_request_takes_outlasts_the_window_before() {
        let millis = |millis| Span::from_millis(millis);
        let of = |hits, window| {
            let quota = Quota::simple(Algorithm::FirstHitWindow, 10, window).expect("valid");
            let check = carried(Algorithm::FirstHitWindow, hits);
            Carried { counter: Counter { quota, ..check.counter }, ..check }
        };
        let drains = Behavior { drains: true, ..Behavior::default() };
        let hour = Span::from_secs(3_600);
        let drain = Carried { behavior: drains, ..of(50, hour) };
        let ended = |store: &Store| assert_eq!(remaining(store, of(3, millis(700)), NOW), 7);
        let reset = |store: &Store| {
            assert_eq!(remaining(store, of(3, hour), NOW), 7);
            assert_eq!(remaining(store, Carried { resets: true, ..of(0, hour) }, NOW), 10);
        };
        let given_back = |store: &Store| {
            assert_eq!(remaining(store, of(3, hour), NOW), 7);
            assert_eq!(remaining(store, of(-3, hour), NOW), 10);
        };
        let open = |store: &Store| assert_eq!(remaining(store, of(3, hour), NOW), 7);
        for what in ["ended", "reset", "given back", "open"] {
            let store = store();
            match what {
                "ended" => ended(&store),
                "reset" => reset(&store),
                "given back" => given_back(&store),
                _ => open(&store),
            }
            let now = NOW.plus(millis(700));
            let refused = store.check_carried_if(&drain, now, || true).expect("owned");
            assert_eq!((refused.allowed, refused.remaining), (false, 0), "{what}");
            for later in [now, now.plus(Span::from_secs(10))] {
                assert_eq!(remaining(&store, of(0, hour), later), 0, "{what}");
            }
        }
    }

    /// A longer request that drains an open window gives it its length.
    #[test]
    fn a_window_that_was_drained_lasts_as_its_answer_says() {
        let store = store();
        let window = |hits, millis| {
            let window = Span::from_millis(millis);
            let quota = Quota::simple(Algorithm::FirstHitWindow, 10, window).expect("valid");
            let check = carried(Algorithm::FirstHitWindow, hits);
            Carried { counter: Counter { quota, ..check.counter }, ..check }
        };
        assert_eq!(remaining(&store, window(3, 600), NOW), 7);
        let behavior = Behavior { drains: true, ..Behavior::default() };
        let drain = Carried { behavior, ..window(50, 60_000) };
        let now = NOW.plus(Span::from_millis(100));
        let refused = store.check_carried_if(&drain, now, || true).expect("owned");
        assert_eq!(refused.reset, Span::from_millis(59_900));
        assert_eq!(remaining(&store, window(0, 60_000), NOW.plus(Span::from_secs(30))), 0);
    }

    #[test]
    fn hits_that_come_back_as_of_the_future_come_back_now() {
        let at = Some(NOW.plus(Span::from_secs(20)));
        for (hits, resets, left) in [(-1, false, 9), (0, true, 10)] {
            let store = store();
            let of = |hits| carried(Algorithm::TokenBucket, hits);
            assert_eq!(remaining(&store, of(2), NOW), 8);
            let back = Carried { at, resets, ..of(hits) };
            assert!(store.check_carried_if(&back, NOW, || true).expect("owned").allowed);
            assert_eq!(remaining(&store, of(0), NOW), left);
        }
    }

    /// A key that the table has no room for uses none of what such keys share itself.
    #[test]
    fn a_key_without_a_place_gives_nothing_back_to_others() {
        let store = Store::new(Options { keys_max: 1, on_full: OnFull::Share, shards: Some(1) });
        let of = |key: &str, hits| {
            let check = carried(Algorithm::FirstHitWindow, hits);
            let key = KeyHasher::new([7; 16]).carried("n", key, [0; 3]);
            let quota = check.counter.quota;
            let key = key.counter(&quota, Mode::Strict, Scope::Region);
            Carried { counter: Counter { key, quota }, ..check }
        };
        let known: Vec<String> = (0..100).map(|key| key.to_string()).collect();
        for key in &known {
            remaining(&store, of(key, 1), NOW);
        }
        let shared = remaining(&store, of("new", 0), NOW);
        assert!(shared < 10, "the table has room");
        let reset = Carried { resets: true, ..of("another", 0) };
        assert_eq!(remaining(&store, reset, NOW), shared);
        assert_eq!(remaining(&store, of("another", -5), NOW), shared);
        assert_eq!(remaining(&store, of("new", 0), NOW), shared);
    }
}

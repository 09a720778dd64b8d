//! Known mistakes of other limiters, each as a test over every algorithm that it could affect.

use tidegate_limiter::engine::{
    ActorId, FineKeys, Retry, State, Verdict, decide, decide_eventual, preview, preview_eventual,
};
use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts, WINDOW_MAX};
use tidegate_limiter::units::{Hits, Span, Timestamp};

/// 2026, on a multiple of an hour, so that windows begin here.
const START: Timestamp = Timestamp::from_secs(1_790_002_800);
const NS: Span = Span::from_nanos(1);
const YEAR: Span = Span::from_secs(365 * 86_400);

#[test]
fn a_burst_of_one_does_not_admit_everything() {
    for mut counter in every(1, Span::from_secs(1)) {
        assert!(counter.request(1, START).allowed, "{counter:?}");
        for wait in [Span::ZERO, NS, Span::from_millis(500)] {
            assert!(!counter.request(1, START.plus(wait)).allowed, "{counter:?} after {wait}");
        }
        let expires = counter.state.expires_at(&counter.quota);
        assert!(expires > START.plus(Span::from_millis(999)), "{counter:?} expires at once");
    }
}

#[test]
fn a_burst_after_idle_is_not_larger_than_the_bucket() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra] {
        let mut counter = Counter::of(parts(algorithm, 10, 3, Span::from_secs(1)));
        counter.request(1, START);
        let later = START.plus(YEAR);
        let admitted = (0..100).filter(|_| counter.request(1, later).allowed).count();
        assert_eq!(admitted, 3, "{algorithm:?}");
    }
}

#[test]
fn a_retry_time_is_never_zero() {
    // At 2^32 − 1 a second a bucket regains four hits a nanosecond: a floored retry would be 0.
    for mut counter in every(u32::MAX, Span::from_secs(1)) {
        assert!(counter.request(i64::from(u32::MAX), START).allowed, "{counter:?}");
        match counter.request(1, START).retry {
            Retry::After(wait) => assert!(wait >= NS, "{counter:?}"),
            other => panic!("{counter:?} answered {other:?}"),
        }
    }
}

#[test]
fn polling_loses_no_fraction_of_a_refill() {
    // 7 a second is one every 142,857,142 6/7 ns. A bucket of two that is emptied and then polled
    // every 1,000,003 ns never fills, so in 10 s exactly 70 hits come back: the polls take
    // 69, and the 70th is available at the last instant.
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra] {
        let mut counter = Counter::of(parts(algorithm, 7, 2, Span::from_secs(1)));
        counter.request(2, START);
        let polls = (1..).map(|n| START.plus(Span::from_nanos(n * 1_000_003)));
        let until = START.plus(Span::from_secs(10));
        let admitted = polls
            .take_while(|now| *now <= until)
            .filter(|now| counter.request(1, *now).allowed)
            .count();
        assert_eq!(admitted, 69, "{algorithm:?}");
        assert_eq!(counter.peek(START.plus(Span::from_secs(10))).remaining, 1, "{algorithm:?}");
    }
}

#[test]
fn huge_amounts_and_windows_do_not_overflow() {
    for limit in [1, 1_000, u32::MAX] {
        for window in [Span::from_secs(1), WINDOW_MAX] {
            for mut counter in every(limit, window) {
                let huge = counter.request(i64::MAX, START);
                assert_eq!((huge.allowed, huge.retry), (false, Retry::Never), "{counter:?}");
                assert!(counter.request(i64::MIN, START).allowed, "{counter:?}");
                let whole = counter.peek(START);
                assert_eq!((whole.allowed, whole.remaining), (true, counter.size()), "{counter:?}");
            }
        }
    }
}

#[test]
fn a_huge_denied_request_consumes_nothing_or_fills_a_strict_fixed_window() {
    for mut counter in every(10, Span::from_secs(60)) {
        counter.request(i64::MAX, START);
        let expected = if counter.counts_denied() { 0 } else { 10 };
        assert_eq!(counter.peek(START).remaining, expected, "{counter:?}");
    }
}

#[test]
fn a_denied_hit_consumes_nothing() {
    for mut counter in every(10, Span::from_secs(60)).filter(|counter| !counter.counts_denied()) {
        assert!(counter.request(8, START).allowed);
        for hits in [3, 10, 11, i64::MAX] {
            assert!(!counter.request(hits, START).allowed, "{counter:?}");
        }
        assert!(counter.request(2, START).allowed, "{counter:?}");
    }
}

#[test]
fn a_denied_hit_counts_in_a_strict_fixed_window_and_nowhere_else() {
    for mut counter in every(10, Span::from_secs(60)) {
        counter.request(11, START);
        let after = counter.request(1, START);
        assert_eq!(after.allowed, !counter.counts_denied(), "{counter:?}");
    }
}

#[test]
fn a_peek_changes_nothing() {
    for mut counter in every(10, Span::from_secs(60)) {
        assert_eq!(counter.request(0, START).remaining, 10);
        assert_eq!(counter.state, State::Absent, "{counter:?}");
        counter.request(10, START);
        let before = counter.state.clone();
        for wait in [Span::ZERO, NS, Span::from_secs(90), YEAR] {
            counter.request(0, START.plus(wait));
        }
        assert_eq!(counter.state, before);
    }
}

#[test]
fn a_peek_is_allowed_until_the_count_is_over_the_limit() {
    for mut counter in every(10, Span::from_secs(60)) {
        counter.request(10, START);
        let full = counter.peek(START);
        assert_eq!((full.allowed, full.remaining), (true, 0), "{counter:?}");
        counter.quota = smaller(&counter.quota, 5);
        let over = counter.peek(START);
        assert_eq!((over.allowed, over.remaining), (false, 0), "{counter:?}");
        assert!(matches!(over.retry, Retry::After(_)), "{counter:?}");
    }
}

#[test]
fn a_refund_stops_at_zero() {
    for mut counter in every(10, Span::from_secs(60)) {
        counter.request(10, START);
        let verdict = counter.request(-4, START);
        assert_eq!((verdict.allowed, verdict.remaining), (true, 4), "{counter:?}");
        assert!(counter.request(4, START).allowed);
        assert!(!counter.request(1, START).allowed);
        for refund in [-100, i64::MIN] {
            assert_eq!(counter.request(refund, START).remaining, 10, "{counter:?}");
        }
        assert!(counter.request(10, START).allowed);
        assert!(!counter.request(1, START).allowed, "{counter:?} kept more than the limit");
    }
}

#[test]
fn a_refund_without_hits_creates_no_state() {
    for mut counter in every(10, Span::from_secs(60)) {
        let verdict = counter.request(-5, START);
        assert_eq!((verdict.allowed, verdict.remaining), (true, 10), "{counter:?}");
        assert_eq!(counter.state, State::Absent, "{counter:?}");
    }
}

#[test]
fn more_than_the_limit_can_hold_is_never() {
    for mut counter in every(10, Span::from_secs(60)) {
        assert_eq!(counter.request(11, START).retry, Retry::Never, "{counter:?}");
        assert_eq!(counter.request(i64::MAX, START).retry, Retry::Never, "{counter:?}");
    }
}

#[test]
fn a_limit_of_zero_denies_every_hit() {
    for mut counter in every(0, Span::from_secs(60)) {
        for wait in [Span::ZERO, YEAR] {
            let verdict = counter.request(1, START.plus(wait));
            assert_eq!(verdict.retry, Retry::Never, "{counter:?}");
            assert_eq!(verdict.remaining, 0, "{counter:?}");
        }
    }
}

#[test]
fn a_clock_that_stands_still_grants_the_limit_once() {
    for mut counter in every(10, Span::from_secs(60)) {
        let admitted = (0..1_000).filter(|_| counter.request(1, START).allowed).count();
        assert_eq!(admitted, 10, "{counter:?}");
    }
}

#[test]
fn a_clock_that_steps_back_grants_nothing_more() {
    for mut counter in every(10, Span::from_secs(60)) {
        assert!(counter.request(10, START).allowed);
        for back in [NS, Span::from_secs(1), Span::from_secs(61), YEAR, Span::MAX] {
            let earlier = START.minus(back);
            let verdict = counter.request(1, earlier);
            assert!(!verdict.allowed, "{counter:?} {back} back");
            let Retry::After(wait) = verdict.retry else { panic!("{counter:?} {back} back") };
            assert!(counter.preview(1, earlier.plus(wait)).allowed, "{counter:?} {back} back");
        }
    }
}

#[test]
fn a_clock_that_jumps_ten_years_and_back_grants_one_limit_more() {
    let decade = START.plus(Span::from_secs(10 * 365 * 86_400));
    for mut counter in every(10, Span::from_secs(60)) {
        assert!(counter.request(10, START).allowed);
        let admitted = (0..1_000).filter(|_| counter.request(1, decade).allowed).count();
        assert_eq!(admitted, 10, "{counter:?}");
        assert!(!counter.request(1, START).allowed, "{counter:?} lost hits on the way back");
    }
}

#[test]
fn a_lowered_limit_keeps_the_count_and_does_not_underflow() {
    for mut counter in every(10, Span::from_secs(60)) {
        assert!(counter.request(10, START).allowed);
        counter.quota = with_limit(&counter.quota, 3);
        let verdict = counter.request(1, START);
        assert_eq!(
            (verdict.allowed, verdict.limit, verdict.remaining),
            (false, 3, 0),
            "{counter:?}"
        );
        let Retry::After(wait) = verdict.retry else { panic!("{counter:?}") };
        assert!(counter.preview(1, START.plus(wait)).allowed, "{counter:?}");
    }
}

#[test]
fn a_raised_limit_grants_no_more_than_the_difference() {
    for mut counter in every(10, Span::from_secs(60)) {
        assert!(counter.request(10, START).allowed);
        counter.quota = with_limit(&counter.quota, 15);
        // A bucket stores a time, not hits: a full one stays full.
        let difference = if matches!(counter.state, State::Tat(_)) { 0 } else { 5 };
        assert_eq!(counter.peek(START).remaining, difference, "{counter:?}");
        assert!(!counter.request(i64::from(difference) + 1, START).allowed, "{counter:?}");
    }
}

#[test]
fn a_state_of_another_algorithm_counts_as_absent() {
    for other in every(10, Span::from_secs(60)) {
        for mut counter in every(10, Span::from_secs(60)) {
            let mut before = other.clone();
            before.request(10, START);
            if std::mem::discriminant(&form(&before)) == std::mem::discriminant(&form(&counter)) {
                continue;
            }
            counter.state = before.state.clone();
            assert!(counter.request(10, START).allowed, "{before:?} then {counter:?}");
            assert!(!counter.request(1, START).allowed, "{before:?} then {counter:?}");
        }
    }
}

#[test]
fn the_first_and_the_last_instant_admit_no_more_than_the_limit() {
    for now in [Timestamp::EPOCH, Timestamp::NEVER, Timestamp::NEVER.minus(NS)] {
        for mut counter in every(10, Span::from_secs(60)) {
            let admitted = (0..100).filter(|_| counter.request(1, now).allowed).count();
            assert!(admitted <= 10, "{counter:?} at {now:?}");
        }
    }
}

// === Every algorithm, side by side ===

/// A counter of one algorithm, strict or eventual, with or without a fine window.
#[derive(Clone, Debug)]
struct Counter {
    quota: Quota,
    eventual: bool,
    is_fine: bool,
    state: State,
}

impl Counter {
    fn of(parts: QuotaParts) -> Self {
        let quota = Quota::new(parts).expect("a valid quota");
        Self { quota, eventual: false, is_fine: false, state: State::Absent }
    }

    fn request(&mut self, hits: i64, now: Timestamp) -> Verdict {
        let hits = Hits::new(hits);
        if self.eventual {
            decide_eventual(&mut self.state, ActorId::new(1), &self.quota, hits, now)
        } else {
            let verdict = decide(&mut self.state, &self.quota, hits, now);
            if self.is_fine {
                self.state.refine(&self.quota, now, &FineKeys::new(1));
            }
            verdict
        }
    }

    fn preview(&self, hits: i64, now: Timestamp) -> Verdict {
        let hits = Hits::new(hits);
        if self.eventual {
            preview_eventual(&self.state, &self.quota, hits, now)
        } else {
            preview(&self.state, &self.quota, hits, now)
        }
    }

    fn peek(&self, now: Timestamp) -> Verdict {
        self.preview(0, now)
    }

    fn counts_denied(&self) -> bool {
        !self.eventual && self.quota.algorithm() == Algorithm::FixedWindow
    }

    /// The most that passes at once.
    fn size(&self) -> u32 {
        self.quota.queue().map_or_else(|| self.quota.burst(), |waiting| waiting + 1)
    }
}

fn parts(algorithm: Algorithm, limit: u32, burst: u32, window: Span) -> QuotaParts {
    QuotaParts { algorithm, limit, window, burst, sub_windows: 1, queue: None }
}

/// All algorithms, the sliding counter also with slices and with a fine window, the leaky
/// bucket also as a queue, the windows also in eventual mode. Skips those for which the limit is
/// not valid.
fn every(limit: u32, window: Span) -> impl Iterator<Item = Counter> {
    let plain = Algorithm::ALL.map(|algorithm| parts(algorithm, limit, limit, window));
    let sliced = QuotaParts {
        sub_windows: 10,
        ..parts(Algorithm::SlidingWindowCounter, limit, limit, window)
    };
    let queue = QuotaParts {
        queue: Some(limit.saturating_sub(1)),
        ..parts(Algorithm::LeakyBucket, limit, limit, window)
    };
    let strict = plain.into_iter().chain([sliced, queue]).map(|parts| (parts, false, false));
    let fine = [(plain[2], false, true)];
    let eventual = [plain[0], plain[2], sliced].map(|parts| (parts, true, false));
    strict.chain(fine).chain(eventual).filter_map(|(parts, eventual, is_fine)| {
        let quota = Quota::new(parts).ok()?;
        Some(Counter { quota, eventual, is_fine, state: State::Absent })
    })
}

/// The same quota with another limit and an equal burst.
fn with_limit(quota: &Quota, limit: u32) -> Quota {
    let parts = QuotaParts::from(*quota);
    let queue = parts.queue.map(|_| limit - 1);
    Quota::new(QuotaParts { limit, burst: limit, queue, ..parts }).expect("a valid quota")
}

/// The same quota with a smaller size: a smaller burst or queue at the same rate, or a lower limit.
fn smaller(quota: &Quota, size: u32) -> Quota {
    let parts = QuotaParts::from(*quota);
    let smaller = match (quota.algorithm(), quota.queue()) {
        (Algorithm::LeakyBucket, Some(_)) => QuotaParts { queue: Some(size - 1), ..parts },
        (Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra, _) => {
            QuotaParts { burst: size, ..parts }
        }
        _ => return with_limit(quota, size),
    };
    Quota::new(smaller).expect("a valid quota")
}

/// A state of the form that the counter stores.
fn form(counter: &Counter) -> State {
    let mut counter = counter.clone();
    counter.state = State::Absent;
    counter.request(1, START);
    counter.state
}

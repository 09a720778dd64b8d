//! Laws that hold for every algorithm, on random quotas, hits and times.
//!
//! Each case draws a quota, applies a random history to a counter, and checks one law on the
//! result. A failing case is shrunk and printed in full; proptest writes no regression file.

use std::collections::BTreeMap;

use crdts::{CmRDT, CvRDT, GCounter, VClock};
use proptest::prelude::*;
use tidegate_limiter::engine::delta::{Bounds, DeltaSlice};
use tidegate_limiter::engine::{
    ActorCounters, ActorId, Behavior, Delta, FineKeys, Retry, State, Verdict, decide,
    decide_eventual, decide_with, preview, preview_eventual, preview_with,
};
use tidegate_limiter::quota::{
    Algorithm, LOG_LIMIT_MAX, QUEUE_MAX, Quota, QuotaParts, SUB_WINDOWS_MAX, WINDOW_MAX,
};
use tidegate_limiter::soft_limit::SoftLimit;
use tidegate_limiter::units::{Hits, Span, Timestamp};

/// In the year 2026.
const START: Timestamp = Timestamp::from_secs(1_790_000_000);
const ME: ActorId = ActorId::new(1);

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(8_000))]

    /// The retry time is exact: denied one nanosecond earlier, admitted then, or never.
    #[test]
    fn retry_is_exact_to_the_nanosecond(history in history(), request in 0..24_u64) {
        let (counter, now) = history.replay();
        let request = history.hits(request);
        let verdict = counter.preview(request, now);
        match verdict.retry {
            Retry::Now => prop_assert!(verdict.allowed),
            Retry::After(wait) => {
                prop_assert!(!verdict.allowed);
                prop_assert!(!wait.is_zero());
                let then = now.plus(wait);
                prop_assert!(counter.preview(request, then).allowed, "denied at {wait:?}");
                let before = then.minus(Span::from_nanos(1));
                prop_assert!(!counter.preview(request, before).allowed, "admitted before {wait:?}");
            }
            Retry::Never => {
                prop_assert!(!verdict.allowed);
                let idle = Counter { state: State::Absent, ..counter };
                prop_assert!(!idle.preview(request, now).allowed);
            }
        }
    }

    /// At `reset`, and not a nanosecond before, the whole limit is available. (A fixed window
    /// reports its end whether or not anything was used.)
    #[test]
    fn reset_is_exact_to_the_nanosecond(history in history()) {
        let (counter, now) = history.replay();
        let reset = counter.preview(Hits::PEEK, now).reset;
        let whole = Counter { state: State::Absent, ..counter.clone() };
        let then = now.plus(reset);
        let left = |counter: &Counter, at| counter.preview(Hits::PEEK, at).remaining;
        prop_assert_eq!(left(&counter, then), left(&whole, then));
        if !reset.is_zero() && history.quota.algorithm() != Algorithm::FixedWindow {
            let before = then.minus(Span::from_nanos(1));
            prop_assert!(left(&counter, before) < left(&whole, before));
        }
    }

    /// `remaining` is the largest request that would pass.
    #[test]
    fn remaining_is_what_still_passes(history in history()) {
        let (counter, now) = history.replay();
        let verdict = counter.preview(Hits::PEEK, now);
        let fits = i64::from(verdict.remaining);
        prop_assert!(!verdict.allowed || counter.preview(Hits::new(fits), now).allowed);
        prop_assert!(!counter.preview(Hits::new(fits + 1), now).allowed);
    }

    /// A soft limit signals an admitted request exactly when what it leaves is less than the part
    /// of the limit above the soft one.
    #[test]
    fn a_soft_limit_signals_what_leaves_too_little(
        history in history(),
        request in 0..24_u64,
        percent in 0..100_u8,
    ) {
        let (mut counter, now) = history.replay();
        let soft = SoftLimit::percent(percent, &history.quota).expect("below the limit");
        let verdict = counter.decide(history.hits(request), now);
        let above = i64::from(history.quota.capacity() - soft.get());
        let has_room = counter.preview(Hits::new(above), now).allowed;
        let is_signalled = soft.is_exceeded(&history.quota, &verdict);
        prop_assert_eq!(is_signalled, verdict.allowed && !has_room);
    }

    /// A preview equals the decision and changes nothing that a later request could observe.
    #[test]
    fn preview_equals_decide(history in history(), request in 0..40_u64, sign in prop::bool::ANY) {
        let (mut counter, now) = history.replay();
        let request = if sign { history.hits(request) } else { Hits::new(-history.hits(request).get()) };
        let expected = counter.preview(request, now);
        prop_assert_eq!(counter.decide(request, now), expected);
    }

    /// A denied request leaves a counter that answers as before; only `fixed_window` counts it.
    #[test]
    fn denied_requests_consume_nothing(history in history(), request in 0..40_u64, later in 0..400_u64) {
        let (counter, now) = history.replay();
        if history.quota.algorithm() == Algorithm::FixedWindow {
            return Ok(());
        }
        let request = history.hits(request);
        let mut denied = counter.clone();
        if !denied.decide(request, now).allowed {
            let later = now.plus(history.fraction(later));
            for hits in [Hits::PEEK, Hits::ONE, request] {
                prop_assert_eq!(denied.preview(hits, later), counter.preview(hits, later));
            }
        }
    }

    /// A request that drains is decided as any other. Refused, it leaves nothing, as if a request
    /// for what was left had passed, and the time to retry is exact.
    #[test]
    fn a_refused_request_that_drains_takes_what_is_left(history in history(), request in 1..40_u64) {
        let (counter, now) = history.replay();
        let (request, quota) = (history.hits(request), &history.quota);
        let drains = Behavior { drains: true, credits: false };
        let (mut drained, mut alone) = (counter.state.clone(), counter.state.clone());
        let previewed = preview_with(&counter.state, quota, request, drains, now);
        let verdict = decide_with(&mut drained, quota, request, drains, now);
        prop_assert_eq!(previewed, verdict);
        let plain = decide(&mut alone, quota, request, now);
        prop_assert_eq!(verdict.allowed, plain.allowed);
        if plain.allowed || plain.remaining == 0 {
            prop_assert_eq!((verdict, &drained), (plain, &alone));
            return Ok(());
        }
        prop_assert_eq!((verdict.remaining, verdict.excess), (0, plain.excess));
        prop_assert!(!preview(&drained, quota, Hits::ONE, now).allowed);
        decide(&mut alone, quota, Hits::new(i64::from(plain.remaining)), now);
        prop_assert_eq!(&drained, &alone);
        if let Retry::After(wait) = verdict.retry {
            let then = now.plus(wait);
            prop_assert!(preview(&drained, quota, request, then).allowed);
            prop_assert!(!preview(&drained, quota, request, then.minus(Span::from_nanos(1))).allowed);
        } else {
            prop_assert_eq!(verdict.retry, Retry::Never);
        }
    }

    /// What passes at one time passes at any later one. Conversely, a clock that steps back grants
    /// nothing that it would not have granted before.
    #[test]
    fn a_clock_that_steps_back_grants_nothing(history in history(), request in 0..40_u64, back in 0..400_u64) {
        let (counter, now) = history.replay();
        let request = history.hits(request);
        let earlier = now.minus(history.fraction(back));
        if counter.preview(request, earlier).allowed {
            prop_assert!(counter.preview(request, now).allowed);
        }
        let left = |at| counter.preview(Hits::PEEK, at).remaining;
        prop_assert!(left(earlier) <= left(now));
    }

    /// From `expires_at` on a state may be dropped without effect.
    #[test]
    fn a_state_equals_absence_once_it_expired(history in history(), request in 0..40_u64, on in 0..400_u64) {
        let (counter, now) = history.replay();
        prop_assert!(counter.state.last_update(&history.quota) <= now);
        let request = history.hits(request);
        let then = counter.state.expires_at(&history.quota).plus(history.fraction(on));
        let dropped = Counter { state: State::Absent, ..counter.clone() };
        // A new counter has no ring yet, and its first hits are there again a window later.
        let preview = |counter: &Counter| {
            let verdict = counter.preview(request, then);
            if counter.is_fine { Verdict { reset: Span::ZERO, ..verdict } } else { verdict }
        };
        prop_assert_eq!(preview(&counter), preview(&dropped));
    }

    /// Hits one by one at one instant are admitted up to `remaining`, and leave the same state as
    /// one request for as many.
    #[test]
    fn one_request_for_many_equals_many_for_one(history in history(), many in 1..60_u32) {
        let (mut singly, now) = history.replay();
        let mut at_once = singly.clone();
        let fits = singly.preview(Hits::PEEK, now).remaining.min(many);
        let admitted = (0..many).filter(|_| singly.decide(Hits::ONE, now).allowed).count();
        prop_assert_eq!(admitted, usize::try_from(fits).expect("a small number"));
        if fits > 0 && history.quota.algorithm() != Algorithm::FixedWindow {
            at_once.decide(Hits::new(i64::from(fits)), now);
            // A ring that begins with the first of them takes earlier hits for other times.
            prop_assert_eq!(singly.state.copy(), at_once.state.copy());
        }
    }

    /// In any interval no more hits pass than the algorithm's documentation states.
    #[test]
    fn admitted_hits_stay_within_the_bound(history in history()) {
        let admitted = history.admitted();
        for (from, &(start, _)) in admitted.iter().enumerate() {
            let mut sum = 0_u128;
            for &(end, hits) in &admitted[from..] {
                sum += u128::from(hits);
                history.check_bound(sum, admitted[from].1, end.since(start))?;
            }
        }
    }

    /// A sliding counter is wrong by at most the hits of the slice that overlaps in part.
    #[test]
    fn a_sliding_counter_errs_by_at_most_one_slice(history in history()) {
        if history.quota.algorithm() != Algorithm::SlidingWindowCounter {
            return Ok(());
        }
        let (limit, window) = (u64::from(history.quota.limit()), history.quota.window());
        let slice = window.as_nanos() / u64::from(history.quota.sub_windows());
        let admitted = history.admitted();
        for &(end, _) in &admitted {
            let until_end = admitted.iter().take_while(|(at, _)| *at <= end);
            let in_window = until_end.filter(|(at, _)| end.since(*at) < window);
            let sum: u64 = in_window.map(|(_, hits)| hits).sum();
            let partial = end.as_nanos() / slice - u64::from(history.quota.sub_windows());
            let in_partial = admitted.iter().filter(|(at, _)| at.as_nanos() / slice == partial);
            let spare: u64 = in_partial.map(|(_, hits)| hits).sum();
            prop_assert!(sum <= limit + spare, "{sum} of {limit} with {spare} in the partial slice");
        }
    }

    /// Extreme times and amounts give a verdict, never a panic.
    #[test]
    fn no_time_and_no_amount_panics(
        quota in quota(),
        eventual in prop::bool::ANY,
        requests in prop::collection::vec((any::<i64>(), edge_time()), 1..12),
    ) {
        let mut counter = Counter::new(quota, eventual);
        for (hits, now) in requests {
            let verdict = counter.decide(Hits::new(hits), now);
            prop_assert_eq!(verdict.allowed, verdict.retry == Retry::Now);
            prop_assert_ne!(verdict.retry, Retry::After(Span::ZERO));
            counter.state.expires_at(&quota);
            counter.state.last_update(&quota);
        }
    }

    /// Encoding and decoding a state yields the same state.
    #[test]
    fn a_state_reads_back_as_it_was_written(history in history()) {
        let (counter, _) = history.replay();
        // A ring stays in its process.
        let copy = counter.state.copy();
        let bytes = bincode::serde::encode_to_vec(&copy, bincode::config::standard());
        let bytes = bytes.expect("a state encodes");
        let (state, _): (State, usize) =
            bincode::serde::decode_from_slice(&bytes, bincode::config::standard())
                .expect("a state decodes");
        prop_assert_eq!(state, copy);
    }

    /// Random bytes either fail to decode or decode to a state that gives verdicts without a panic.
    #[test]
    fn a_state_from_random_bytes_never_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        other in prop::collection::vec(any::<u8>(), 0..80),
        quota in quota(),
        hits in any::<i64>(),
        now in edge_time(),
    ) {
        let config = bincode::config::standard().with_limit::<4096>();
        let read = |bytes: &[u8]| bincode::serde::decode_from_slice::<State, _>(bytes, config);
        if let (Ok((mut state, _)), Ok((other, _))) = (read(&bytes), read(&other)) {
            state.merge(other);
            preview_eventual(&state, &quota, Hits::new(hits), now);
            decide(&mut state, &quota, Hits::new(hits), now);
            decide_eventual(&mut state, ME, &quota, Hits::new(hits), now);
        }
    }
}

proptest! {
    #![proptest_config(config(6_000))]

    /// Commutative, associative, idempotent, and Absent is its zero; also for states of different
    /// forms.
    #[test]
    fn merge_is_a_join(a in small_state(), b in small_state(), c in small_state()) {
        prop_assert_eq!(join(&a, &b), join(&b, &a));
        prop_assert_eq!(join(&join(&a, &b), &c), join(&a, &join(&b, &c)));
        prop_assert_eq!(join(&a, &a), a.clone());
        prop_assert_eq!(join(&a, &State::Absent), a.clone());
        prop_assert_eq!(join(&join(&a, &b), &b), join(&a, &b));
    }

    /// What other nodes get to know of a joined state is what is joined of what they know.
    #[test]
    fn copies_merge_like_their_states(a in small_state(), b in small_state()) {
        prop_assert_eq!(join(&a, &b).copy(), join(&a.copy(), &b.copy()));
    }

    /// A copy that has counted nothing more changes nothing, so that a ring survives its own echo.
    #[test]
    fn a_copy_of_a_state_changes_nothing(a in small_state()) {
        prop_assert_eq!(join(&a, &a.copy()), a);
    }

    /// Once time has reached the last update of both sides, the joined state admits no more than
    /// either.
    #[test]
    fn merge_loses_no_hit(
        (quota, eventual, a, b) in siblings(false),
        on in 0..400_u64,
        hits in 1..25_i64,
    ) {
        let now = a.last_update(&quota).max(b.last_update(&quota)).max(SMALL_START);
        let now = now.plus(Span::from_nanos(quota.window().as_nanos() / 200 * on));
        let both = join(&a, &b);
        let preview = |state: &State, hits| {
            Counter { state: state.clone(), quota, eventual, is_fine: false }.preview(hits, now)
        };
        for side in [&a, &b] {
            prop_assert!(preview(&both, Hits::PEEK).remaining <= preview(side, Hits::PEEK).remaining);
            if preview(&both, Hits::new(hits)).allowed {
                prop_assert!(preview(side, Hits::new(hits)).allowed);
            }
        }
    }

    /// Per-actor counters equal `crdts::GCounter`, whatever was lost, repeated or reordered.
    #[test]
    fn per_actor_counters_equal_the_reference_g_counter(
        steps in prop::collection::vec((0..3_usize, 0..3_usize, 0..4_u64, 0..50_u64), 1..60),
    ) {
        let quota = sliding(1_000_000, 60, 4);
        let mut ours: Vec<State> = vec![State::Absent; 3];
        let mut reference = vec![BTreeMap::<u64, GCounter<ActorId>>::new(); 3];
        let first = START.as_secs() / 15;
        for (node, from, slice, hits) in steps {
            if hits == 0 {
                let Some(sent) = ours[from].actor_counters().map(ActorCounters::to_delta) else { continue };
                merge_delta(&mut ours[node], &sent);
                let sent = reference[from].clone();
                for (slice, counter) in sent {
                    reference[node].entry(slice).or_default().merge(counter);
                }
                continue;
            }
            let me = ActorId::new(node as u64);
            let now = Timestamp::from_secs((first + slice) * 15);
            // The decision counts in the newest slice that the node holds.
            let newest = reference[node].keys().next_back().copied().unwrap_or(0);
            let counter = reference[node].entry(newest.max(first + slice)).or_default();
            counter.apply(counter.inc_many(me, hits));
            let hits = Hits::new(i64::try_from(hits).expect("small"));
            prop_assert!(decide_eventual(&mut ours[node], me, &quota, hits, now).allowed);
        }
        for (ours, reference) in ours.iter().zip(&reference) {
            for (slice, counter) in reference {
                let sum = ours.actor_counters().map_or(0, |actor_counters| actor_counters.sum(*slice));
                prop_assert_eq!(sum.to_string(), counter.read().to_string());
            }
        }
    }

    /// A delta that passes validation can be merged, decided on and forwarded; another gives an
    /// error.
    #[test]
    fn a_valid_delta_does_no_harm(delta in delta(), mine in eventual_state()) {
        let bounds =
            Bounds { now: SMALL_START, ahead_max: Span::from_secs(200), actors_max: 3 };
        if let Err(error) = delta.validate(&bounds) {
            prop_assert!(!error.to_string().is_empty());
            return Ok(());
        }
        let quota = small_quota(SLICED);
        let mut state = mine.clone();
        merge_delta(&mut state, &delta);
        let left = |state: &State, at| preview_eventual(state, &quota, Hits::PEEK, at).remaining;
        let now = state.last_update(&quota).max(SMALL_START);
        prop_assert!(left(&state, now) <= quota.limit());
        // A delta without refunds never raises `remaining`.
        if delta.slices.iter().all(|slice| slice.refunded.is_empty()) {
            prop_assert!(left(&state, now) <= left(&mine, now));
        }
        let forwarded = state.actor_counters().map(ActorCounters::to_delta);
        prop_assert_eq!(forwarded.and_then(|delta| ActorCounters::try_from(delta).ok()), state.actor_counters().cloned());
    }

    /// Deltas yield the same counts in any order, repeated or not.
    #[test]
    fn deltas_in_any_order_yield_the_same_counters(
        states in prop::collection::vec(eventual_state(), 1..5),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut straight = State::Absent;
        for state in &states {
            straight.merge(state.clone());
        }
        let mut shuffled = State::Absent;
        for state in order.iter().map(|index| index.get(&states)).chain(states.iter().rev()) {
            if let Some(actor_counters) = state.actor_counters() {
                merge_delta(&mut shuffled, &actor_counters.to_delta());
            }
        }
        prop_assert_eq!(straight, shuffled);
    }
}

// === A random history ===

#[derive(Clone, Debug)]
struct Counter {
    state: State,
    quota: Quota,
    eventual: bool,
    /// Whether it has a ring near its limit.
    is_fine: bool,
}

impl Counter {
    fn new(quota: Quota, eventual: bool) -> Self {
        let is_window =
            matches!(quota.algorithm(), Algorithm::FixedWindow | Algorithm::SlidingWindowCounter);
        Self { state: State::Absent, quota, eventual: eventual && is_window, is_fine: false }
    }

    fn preview(&self, hits: Hits, now: Timestamp) -> Verdict {
        if self.eventual {
            preview_eventual(&self.state, &self.quota, hits, now)
        } else {
            preview(&self.state, &self.quota, hits, now)
        }
    }

    fn decide(&mut self, hits: Hits, now: Timestamp) -> Verdict {
        if self.eventual {
            decide_eventual(&mut self.state, ME, &self.quota, hits, now)
        } else {
            let verdict = decide(&mut self.state, &self.quota, hits, now);
            if self.is_fine {
                self.state.refine(&self.quota, now, &FineKeys::new(1));
            }
            verdict
        }
    }
}

/// Requests for one counter, in fractions of its limit and its window.
#[derive(Clone, Debug)]
struct History {
    quota: Quota,
    eventual: bool,
    is_fine: bool,
    offset: u64,
    requests: Vec<(u64, u64)>,
}

impl History {
    fn counter(&self) -> Counter {
        let counter = Counter::new(self.quota, self.eventual);
        Counter { is_fine: self.is_fine && !counter.eventual, ..counter }
    }

    /// Applies it; returns the counter and the time of the last request.
    fn replay(&self) -> (Counter, Timestamp) {
        let mut counter = self.counter();
        let mut now = START.plus(Span::from_nanos(self.offset));
        for &(hits, wait) in &self.requests {
            now = now.plus(self.fraction(wait));
            counter.decide(self.hits(hits), now);
        }
        (counter, now)
    }

    /// The time and the hits of every admitted request.
    fn admitted(&self) -> Vec<(Timestamp, u64)> {
        let mut counter = self.counter();
        let mut now = START.plus(Span::from_nanos(self.offset));
        let mut admitted = Vec::new();
        for &(hits, wait) in &self.requests {
            now = now.plus(self.fraction(wait));
            let hits = self.hits(hits);
            let verdict = counter.decide(hits, now);
            if verdict.allowed {
                admitted.push((now.plus(verdict.delay), hits.charge()));
            }
        }
        admitted
    }

    /// `n` twentieths of what passes at once, at least `n` hits.
    fn hits(&self, n: u64) -> Hits {
        let size = self.quota.queue().map_or_else(|| self.quota.burst(), |waiting| waiting + 1);
        Hits::new(i64::try_from((u64::from(size) * n / 20).max(n)).expect("below 2^38"))
    }

    /// `n` hundredths of a window, and `n` more nanoseconds to leave round numbers.
    fn fraction(&self, n: u64) -> Span {
        Span::from_nanos(self.quota.window().as_nanos() / 100 * n + n)
    }

    /// Checks `hits` of several requests, `first` of them from the first, within `interval`.
    fn check_bound(&self, hits: u128, first: u64, interval: Span) -> Result<(), TestCaseError> {
        let (limit, window) = (u128::from(self.quota.limit()), self.quota.window());
        let ticks = u128::from(window.as_nanos());
        let earned = u128::from(interval.as_nanos()) * limit;
        match self.quota.algorithm() {
            Algorithm::SlidingWindowLog if interval < window => prop_assert!(hits <= limit),
            Algorithm::FixedWindow | Algorithm::FirstHitWindow if interval < window => {
                prop_assert!(hits <= 2 * limit);
            }
            Algorithm::SlidingWindowCounter if interval < window => {
                prop_assert!(hits < 2 * limit || hits == limit);
            }
            Algorithm::LeakyBucket if self.quota.queue().is_some() => {
                let after_first = hits - u128::from(first);
                prop_assert!(after_first * ticks <= earned + limit);
            }
            Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket => {
                prop_assert!(hits * ticks <= u128::from(self.quota.burst()) * ticks + earned);
            }
            _ => {}
        }
        Ok(())
    }
}

fn history() -> impl Strategy<Value = History> {
    let wait = prop_oneof![4 => Just(0_u64), 6 => 0..20_u64, 1 => 20..250_u64];
    let hits = prop_oneof![4 => 1..8_u64, 2 => 8..45_u64];
    let requests = prop::collection::vec((hits, wait), 0..30);
    // Two kinds of counters in four: what is neither eventual nor fine is two counts.
    let kind =
        prop::sample::select(vec![(true, false), (false, true), (false, true), (false, false)]);
    (quota(), kind, 0..WINDOW_MAX.as_nanos(), requests).prop_map(
        |(quota, (eventual, is_fine), offset, requests)| History {
            quota,
            eventual,
            is_fine,
            offset,
            requests,
        },
    )
}

/// Any valid quota.
fn quota() -> impl Strategy<Value = Quota> {
    let limit = prop_oneof![Just(1_u32), 2..50_u32, 50..5_000_u32, any::<u32>(), Just(u32::MAX)];
    let millis_max = WINDOW_MAX.as_nanos() / 1_000_000;
    let millis =
        prop_oneof![Just(1_000_u64), 1_000..100_000_u64, 1_000..=millis_max, Just(millis_max)];
    let slices = prop_oneof![2 => Just(1_u8), 1 => 1..=10_u8, 1 => Just(SUB_WINDOWS_MAX)];
    let algorithm = prop_oneof![
        3 => prop::sample::select(&Algorithm::ALL[..]),
        1 => Just(Algorithm::SlidingWindowCounter),
    ];
    let burst = prop_oneof![Just(1_u32), 1..100_u32, any::<u32>()];
    let queue = prop::option::of(prop_oneof![0..20_u32, 0..=QUEUE_MAX]);
    (algorithm, limit, millis, slices, burst, queue).prop_filter_map(
        "a valid quota",
        |(algorithm, limit, millis, slices, burst, queue)| {
            let is_bucket = matches!(algorithm, Algorithm::TokenBucket | Algorithm::Gcra);
            let is_leaky = algorithm == Algorithm::LeakyBucket;
            let is_log = algorithm == Algorithm::SlidingWindowLog;
            let limit = if is_log { limit % LOG_LIMIT_MAX + 1 } else { limit.max(1) };
            let slices = if algorithm == Algorithm::SlidingWindowCounter { slices } else { 1 };
            Quota::new(QuotaParts {
                algorithm,
                limit,
                window: Span::from_millis(millis / u64::from(slices) * u64::from(slices)),
                burst: if is_bucket || (is_leaky && queue.is_none()) {
                    burst.max(1)
                } else {
                    limit
                },
                sub_windows: slices,
                queue: queue.filter(|_| is_leaky),
            })
            .ok()
        },
    )
}

fn edge_time() -> impl Strategy<Value = Timestamp> {
    let ten_years = Span::from_secs(10 * 365 * 86_400).as_nanos();
    let year_2026 = START.as_nanos();
    prop_oneof![
        Just(0),
        Just(u64::MAX),
        0..1_000_u64,
        year_2026 - ten_years..year_2026 + ten_years,
        any::<u64>(),
    ]
    .prop_map(Timestamp::from_nanos)
}

// === Random states of a few quotas ===

const SMALL_START: Timestamp = Timestamp::from_secs(600);

fn sliding(limit: u32, secs: u64, sub_windows: u8) -> Quota {
    Quota::new(QuotaParts {
        algorithm: Algorithm::SlidingWindowCounter,
        limit,
        window: Span::from_secs(secs),
        burst: limit,
        sub_windows,
        queue: None,
    })
    .expect("a valid quota")
}

/// A sliding window counter with sub-windows, after those of each algorithm.
const SLICED: usize = Algorithm::ALL.len();

/// Quotas that one key may have had: each algorithm, and sub-windows.
fn small_quota(kind: usize) -> Quota {
    match Algorithm::ALL.get(kind) {
        Some(&algorithm) => {
            Quota::simple(algorithm, 20, Span::from_secs(60)).expect("a valid quota")
        }
        None => sliding(20, 60, 3),
    }
}

/// A state of `quota` after a few requests around [`SMALL_START`] by one of three actors.
fn state_of(
    quota: Quota,
    eventual: bool,
    is_fine: bool,
    refunds: bool,
) -> impl Strategy<Value = State> {
    let least = if refunds { -3_i64 } else { 0 };
    let request = (least..9_i64, 0..200_u64, 1..4_u64);
    prop::collection::vec(request, 0..10).prop_map(move |mut requests| {
        requests.sort_by_key(|&(_, secs, _)| secs);
        let mut state = State::Absent;
        for (hits, secs, actor) in requests {
            let (hits, now) = (Hits::new(hits), SMALL_START.plus(Span::from_secs(secs)));
            if eventual {
                decide_eventual(&mut state, ActorId::new(actor), &quota, hits, now);
            } else {
                decide(&mut state, &quota, hits, now);
                if is_fine {
                    state.refine(&quota, now, &FineKeys::new(1));
                }
            }
        }
        state
    })
}

/// Any form of state, refunds included.
fn small_state() -> impl Strategy<Value = State> {
    let kind = prop_oneof![3 => 0..=SLICED, 2 => Just(2)];
    (kind, prop::bool::ANY, prop::bool::ANY).prop_flat_map(|(kind, eventual, is_fine)| {
        state_of(small_quota(kind), eventual, is_fine, true)
    })
}

/// Two states of the same counter.
fn siblings(refunds: bool) -> impl Strategy<Value = (Quota, bool, State, State)> {
    (0..=SLICED, prop::bool::ANY).prop_flat_map(move |(kind, eventual)| {
        let quota = small_quota(kind);
        let eventual = Counter::new(quota, eventual).eventual;
        let state = || state_of(quota, eventual, false, refunds);
        (Just(quota), Just(eventual), state(), state())
    })
}

fn eventual_state() -> impl Strategy<Value = State> {
    state_of(small_quota(SLICED), true, false, true)
}

/// Valid and invalid deltas for [`small_quota`] [`SLICED`].
fn delta() -> impl Strategy<Value = Delta> {
    let value = prop_oneof![8 => 1..30_u64, 1 => Just(u64::from(u32::MAX)), 1 => any::<u64>()];
    let clock = move || {
        prop::collection::btree_map((1..6_u64).prop_map(ActorId::new), value.clone(), 0..4)
            .prop_map(|dots| VClock { dots })
    };
    let refunds = prop_oneof![3 => Just(VClock::new()), 1 => clock()];
    let index = prop_oneof![20 => 25..45_u64, 1 => any::<u64>()];
    let slice = (index, clock(), refunds).prop_map(|(index, used, refunded)| DeltaSlice {
        index,
        used,
        refunded,
    });
    let shape = prop_oneof![
        20 => Just((20_000_000_000, 4)),
        1 => (any::<u64>(), any::<u8>()),
        1 => (0..3_000_000_000_u64, 0..4_u8),
    ];
    let order = prop::bool::weighted(0.9);
    (shape, prop::collection::vec(slice, 0..4), order).prop_map(
        |((slice_ns, slices_kept), mut slices, in_order)| {
            if in_order {
                slices.sort_by_key(|slice| std::cmp::Reverse(slice.index));
                let newest = slices.first().map_or(0, |slice| slice.index);
                slices.retain(|slice| newest - slice.index < u64::from(slices_kept));
                slices.dedup_by_key(|slice| slice.index);
            }
            Delta { slice_ns, slices_kept, slices }
        },
    )
}

/// Merges the counters of a peer as the store does.
fn merge_delta(state: &mut State, delta: &Delta) {
    if let State::ActorCounters(actor_counters) = state {
        actor_counters.merge(delta);
    } else if let Ok(theirs) = ActorCounters::try_from(delta.clone()) {
        state.merge(State::ActorCounters(Box::new(theirs)));
    }
}

fn join(a: &State, b: &State) -> State {
    let mut joined = a.clone();
    joined.merge(b.clone());
    joined
}

//! Whether any honest node could hold a state, told without its rule.
//!
//! A node's clock may be [`AHEAD_MAX`] ahead of this one's, so a state may have seen a time that
//! much later, and must not matter for longer than its kind can:
//!
//! ```text
//! seen    ≤ now + AHEAD_MAX                      (State::last_update_from_expiry)
//! expires ≤ now + AHEAD_MAX + 2 × the longest window     or, of a bucket, + the longest drain
//! ```
//!
//! A state of the far future would push present counts out and refuse its key for years; one with
//! an expiry that is too early would be dropped while it matters.

use tidegate_limiter::engine::State;
use tidegate_limiter::quota::{DRAIN_MAX, WINDOW_MAX};
use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::{Span, Timestamp};

/// How far ahead of ours a peer's clock may be.
const AHEAD_MAX: Span = Span::from_secs(5);

/// Whether an honest node with a clock at most five seconds ahead could tell this at `now`.
/// Columns travel by synchronisation, which checks whose they are.
pub fn is_plausible(key: KeyHash, state: &State, expires: Timestamp, now: Timestamp) -> bool {
    let ahead = now.plus(AHEAD_MAX);
    let last = match state {
        // Two rounding steps: of the TAT to a nanosecond and of the expiry.
        State::Tat(_) => ahead.plus(DRAIN_MAX).plus(Span::from_nanos(32)),
        _ => ahead.plus(WINDOW_MAX).plus(WINDOW_MAX),
    };
    let is_of_time =
        state.last_update_from_expiry(expires).is_some_and(|seen| seen <= ahead.plus(ROUNDING));
    key.is_owned() && is_of_time && expires <= last
}

/// A TAT is rounded up to a nanosecond.
const ROUNDING: Span = Span::from_nanos(1);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_limiter::descriptor::Entry;
    use tidegate_limiter::engine::{ActorCounters, Tat};
    use tidegate_limiter::policy::{Mode, Scope};
    use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
    use tidegate_limiter::store::OnFull;
    use tidegate_limiter::store::{Counter, KeyHasher, Options, Store};
    use tidegate_limiter::units::Hits;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn counter(quota: Quota) -> Counter {
        let descriptor = KeyHasher::new([1; 16]).descriptor("d", &[Entry { key: "k", value: "v" }]);
        Counter { key: descriptor.counter(&quota, Mode::Strict, Scope::Region), quota }
    }

    /// Every kind of quota, the slowest and the longest included.
    fn quota() -> impl Strategy<Value = Quota> {
        let secs = prop_oneof![1..100_u64, 3_600..90_000_u64, Just(400 * 86_400_u64)];
        let parts = (
            prop::sample::select(Algorithm::ALL.to_vec()),
            prop_oneof![1..20_u32, 9_000..=10_000_u32],
            secs,
            prop::sample::select(vec![1_u8, 4, 60]),
            prop_oneof![1..50_u32, Just(40_000)],
        );
        parts.prop_filter_map("no quota", |(algorithm, limit, secs, slices, burst)| {
            let is_bucket = matches!(
                algorithm,
                Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra
            );
            let is_sliding = algorithm == Algorithm::SlidingWindowCounter;
            let parts = QuotaParts {
                algorithm,
                limit,
                window: Span::from_secs(secs),
                burst: if is_bucket { burst } else { limit },
                sub_windows: if is_sliding { slices } else { 1 },
                queue: None,
            };
            Quota::new(parts).ok()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn whatever_an_honest_node_counts_is_taken(
            quota in quota(),
            asks in prop::collection::vec((-3..9_i64, 0..30_000_000_000_u64), 1..30),
            skew_ms in -5_000..=5_000_i64,
            nanos in 0..2_000_u64,
        ) {
            let store =
                Store::new(Options { keys_max: 10, on_full: OnFull::Refuse, shards: Some(1) });
            let skew = Span::from_millis(skew_ms.unsigned_abs());
            let mut now = NOW.plus(Span::from_nanos(nanos));
            let counter = counter(quota);
            for (hits, wait) in asks {
                now = now.plus(Span::from_nanos(wait));
                let theirs = if skew_ms > 0 { now.plus(skew) } else { now.minus(skew) };
                store.check(&[counter], Hits::new(hits), theirs);
                if let Some(told) = store.get(counter.key, theirs) {
                    let is_taken = is_plausible(told.key, &told.state, told.expires, now);
                    prop_assert!(is_taken, "{told:?} at {now:?}");
                }
            }
        }

        #[test]
        fn what_is_counted_in_the_far_future_is_refused(
            quota in quota(),
            hits in 1..9_i64,
            ahead in 6..1_000_000_000_u64,
        ) {
            // A window that began before now cannot be told from one that is asked about now, and
            // neither can a bucket that is less full than the fullest.
            let (window, drain) = (quota.window(), DRAIN_MAX);
            let far = match quota.algorithm() {
                Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra => drain,
                Algorithm::SlidingWindowLog => Span::ZERO,
                Algorithm::FixedWindow | Algorithm::SlidingWindowCounter => window,
            };
            let then = NOW.plus(far).plus(Span::from_secs(ahead));
            let store =
                Store::new(Options { keys_max: 10, on_full: OnFull::Refuse, shards: Some(1) });
            let counter = counter(quota);
            store.check(&[counter], Hits::new(hits), then);
            if let Some(told) = store.get(counter.key, then) {
                prop_assert!(!is_plausible(told.key, &told.state, told.expires, NOW), "{told:?}");
            }
        }
    }

    #[test]
    fn an_expiry_that_no_quota_gives_is_refused() {
        let key = counter(Quota::simple(Algorithm::Gcra, 1, WINDOW_MAX).expect("valid")).key;
        let is_taken = |state: State, expires| is_plausible(key, &state, expires, NOW);
        let soon = NOW.plus(Span::from_secs(60));
        let index = 1_700_000_000 / 60;
        let window = |index| State::FixedWindow { index, used: 7 };
        assert!(is_taken(window(index), Timestamp::from_secs(u64::from(index + 1) * 60)));
        assert!(!is_taken(window(index), Timestamp::NEVER), "it would never be dropped");
        assert!(!is_taken(window(0), soon), "a window of 54 years");
        assert!(!is_taken(window(u32::MAX), Timestamp::from_nanos(7)), "a window of no length");
        let counter = State::SlidingCounter { index: u32::MAX, prev: 1, cur: 1 };
        assert!(!is_taken(counter, NOW.plus(WINDOW_MAX)), "its window begins in months");
        let tat = State::Tat(Tat::new(soon.as_nanos(), 0));
        assert!(is_taken(tat.clone(), soon));
        assert!(!is_taken(tat.clone(), NOW), "it would be dropped while it matters");
        assert!(!is_taken(tat, Timestamp::NEVER));
        assert!(!is_taken(State::Log(Box::default()), Timestamp::NEVER));
    }

    #[test]
    fn columns_and_shares_are_nobodys_copies() {
        let quota = Quota::simple(Algorithm::FixedWindow, 1, Span::from_secs(60)).expect("valid");
        let (key, soon) = (counter(quota).key, NOW.plus(Span::from_secs(60)));
        let actor_counters = State::ActorCounters(Box::new(ActorCounters::new(&quota)));
        assert!(!is_plausible(key, &actor_counters, soon, NOW));
        let state = State::Tat(Tat::new(soon.as_nanos(), 0));
        assert!(is_plausible(key, &state, soon, NOW));
        assert!(!is_plausible(key.share(), &state, soon, NOW));
    }
}

//! The fixed window: a counter that starts again at every multiple of the window since the epoch.
//!
//! # Idea
//!
//! Time is cut into windows that all nodes number alike. Hits of the current window are counted,
//! **denied ones too**: envoyproxy/ratelimit does the same with one `INCRBY` a request, and its
//! rule files rely on it. A client that keeps sending stays denied until the window ends, as it
//! would anyway.
//!
//! # Formula
//!
//! ```text
//! index     = ⌊now / window⌋
//! used      = hits so far in this window + n          counted whether admitted or denied
//! admit n   ⇔ used ≤ limit
//! remaining = max(0, limit − used)
//! reset     = (index + 1)·window − now           1 ns to one window, also when nothing was used
//! retry     = reset                                   never when n > limit
//! ```
//!
//! # Example
//!
//! 100 a minute. At 12:00:59 a client sends 100 hits: all pass. The next is denied with retry after
//! at most 1 s, and at 12:01:00 another 100 are available.
//!
//! # Bound
//!
//! At most `limit` hits in a window, so at most `2 × limit` in any interval as long as a window:
//! the end of one and the beginning of the next, as in the example.
//!
//! The window number has 32 bits. With the shortest window (1 s) it runs out in 2106; the last
//! window then never ends, which denies rather than grants.
//!
//! Source: envoyproxy/ratelimit, `src/limiter/base_limiter.go` and `src/redis/fixed_cache_impl.go`.

use super::state::State;
use super::verdict::{Retry, Update, Verdict};
use super::windows;
use crate::quota::Quota;
use crate::units::{Hits, Span, Timestamp};

pub(super) fn evaluate(state: &State, quota: &Quota, hits: Hits, now: Timestamp) -> Update<State> {
    let present = windows::index_at(now, quota);
    let (index, before) = match state {
        // A later window was counted by a clock ahead of this one: it stays the current window.
        State::FixedWindow { index, used } if *index >= present => (*index, *used),
        _ => (present, 0),
    };
    let used = if hits.refund() > 0 {
        u64::from(before).saturating_sub(hits.refund())
    } else {
        u64::from(before).saturating_add(hits.charge())
    };
    let verdict = verdict(used, quota, hits, now, windows::end(index, quota));
    let counted = State::FixedWindow { index, used: u32::try_from(used).unwrap_or(u32::MAX) };
    let nothing_to_refund = hits.get() < 0 && before == 0;
    let next = (hits != Hits::PEEK && !nothing_to_refund).then_some(counted);
    (next, verdict)
}

/// The verdict on a request after which the window that ends at `end` holds `used` hits.
pub(super) fn verdict(
    used: u64,
    quota: &Quota,
    hits: Hits,
    now: Timestamp,
    end: Timestamp,
) -> Verdict {
    let limit = u64::from(quota.limit());
    let reset = end.since(now);
    let allowed = used <= limit || hits.refund() > 0;
    let retry = match allowed {
        true => Retry::Now,
        false if hits.charge() > limit => Retry::Never,
        // Zero only where time saturates; a denied request never gets a zero wait.
        false => Retry::After(reset.max(Span::from_nanos(1))),
    };
    let excess = if allowed { 0 } else { u32::try_from(used - limit).unwrap_or(u32::MAX) };
    Verdict { excess, ..Verdict::new(quota, hits, limit.saturating_sub(used), reset, retry) }
}

#[cfg(test)]
mod tests {
    use super::super::decide;
    use super::*;
    use crate::quota::Algorithm;

    fn quota(limit: u32, secs: u64) -> Quota {
        Quota::simple(Algorithm::FixedWindow, limit, Span::from_secs(secs)).expect("valid")
    }

    #[test]
    fn the_worked_example_holds() {
        let (quota, mut state) = (quota(100, 60), State::Absent);
        let late = Timestamp::from_secs(59);
        assert!(decide(&mut state, &quota, Hits::new(100), late).allowed);
        let denied = decide(&mut state, &quota, Hits::ONE, late);
        assert_eq!(denied.retry, Retry::After(Span::from_secs(1)));
        let next = decide(&mut state, &quota, Hits::ONE, Timestamp::from_secs(60));
        assert_eq!((next.allowed, next.remaining, next.reset), (true, 99, Span::from_secs(60)));
    }

    #[test]
    fn denied_hits_count_as_in_envoyproxy_ratelimit() {
        let (quota, mut state) = (quota(10, 60), State::Absent);
        assert!(!decide(&mut state, &quota, Hits::new(11), Timestamp::EPOCH).allowed);
        assert_eq!(state, State::FixedWindow { index: 0, used: 11 });
        assert!(!decide(&mut state, &quota, Hits::ONE, Timestamp::EPOCH).allowed);
    }

    #[test]
    fn a_full_counter_does_not_admit_at_the_largest_limit() {
        let (quota, mut state) = (quota(u32::MAX, 60), State::Absent);
        decide(&mut state, &quota, Hits::new(i64::MAX), Timestamp::EPOCH);
        let verdict = decide(&mut state, &quota, Hits::ONE, Timestamp::EPOCH);
        assert_eq!((verdict.allowed, verdict.remaining), (false, 0));
    }
}

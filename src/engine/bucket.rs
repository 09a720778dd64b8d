//! The step that GCRA, the token bucket and the leaky bucket share.
//!
//! The three are one machine seen from three sides. With `debt` as in [`super::tat`] and room for
//! `size` hits:
//!
//! ```text
//! admit n hits  ⇔  debt + n·T ≤ size·T
//! GCRA          TAT = now + debt, tolerance τ = (size − 1)·T:   TAT + (n − 1)·T ≤ now + τ
//! token bucket  tokens = size − debt/T:                        n ≤ tokens
//! leaky bucket  level  = debt/T:                               level + n ≤ size
//! ```
//!
//! An idle bucket has debt 0 and not less, so no burst after an idle time is larger than `size`.
//!
//! When refused, the ask fits as soon as the debt has fallen to `(size − n)·T`, which time does at
//! one tick a tick: `retry = debt + n·T − size·T`, rounded up to a nanosecond.

use super::tat::{Rate, Tat};
use super::verdict::{Verdict, excess};
use super::{Retry, State, Step};
use crate::rules::quota::Quota;
use crate::units::{Hits, Span, Timestamp};

/// Asks a bucket of `quota`'s rate with room for `size` hits; returns the TAT to keep, if it
/// changes, and the answer.
#[inline]
pub(super) fn step(
    state: &State,
    quota: &Quota,
    size: u32,
    hits: Hits,
    now: Timestamp,
) -> (Option<Tat>, Verdict) {
    let Some(rate) = Rate::of(quota) else { return (None, refuse_all(quota, hits)) };
    let room = rate.cost(u64::from(size));
    let debt = rate.debt(tat(state), now);
    let verdict = |debt: u128, retry: Retry| {
        let allowed = retry == Retry::Now;
        let remaining = u32::try_from(rate.hits(room.saturating_sub(debt))).unwrap_or(u32::MAX);
        Verdict {
            allowed,
            limit: quota.limit(),
            remaining,
            reset: rate.span_ceil(debt),
            retry,
            delay: Span::ZERO,
            excess: excess(allowed, hits, remaining),
        }
    };

    if hits.refund() > 0 {
        let debt = debt.saturating_sub(rate.cost(hits.refund()));
        // Without a state there is nothing to give back, and none is made for it.
        let next = tat(state).and_then(|_| rate.tat(debt, now));
        return (next, verdict(debt, Retry::Now));
    }
    if hits.charge() > u64::from(size) {
        return (None, verdict(debt, Retry::Never));
    }
    let charged = debt + rate.cost(hits.charge());
    if charged > room {
        return (None, verdict(debt, Retry::After(rate.span_ceil(charged - room))));
    }
    if hits == Hits::PEEK {
        return (None, verdict(debt, Retry::Now));
    }
    match rate.tat(charged, now) {
        Some(tat) => (Some(tat), verdict(charged, Retry::Now)),
        // What cannot be remembered must not be granted.
        None => (None, verdict(debt, Retry::Never)),
    }
}

/// The step of a bucket as that of an algorithm.
#[inline]
pub(super) fn remembered((tat, verdict): (Option<Tat>, Verdict)) -> Step {
    (tat.map(State::Tat), verdict)
}

/// How far ahead of the present a TAT of `quota` can be.
pub(super) fn depth(quota: &Quota) -> Span {
    let size = match quota.queue() {
        Some(waiting_max) => waiting_max.saturating_add(1),
        None => quota.burst(),
    };
    Rate::of(quota).map_or(Span::ZERO, |rate| rate.span_ceil(rate.cost(u64::from(size))))
}

/// What `state` remembers of a bucket; a state of another algorithm counts as none.
pub(super) fn tat(state: &State) -> Option<Tat> {
    if let State::Tat(tat) = state { Some(*tat) } else { None }
}

/// The answer of a limit of zero: only what takes nothing passes.
fn refuse_all(quota: &Quota, hits: Hits) -> Verdict {
    let allowed = hits.charge() == 0;
    Verdict {
        allowed,
        limit: quota.limit(),
        remaining: 0,
        reset: Span::ZERO,
        retry: if allowed { Retry::Now } else { Retry::Never },
        delay: Span::ZERO,
        excess: excess(allowed, hits, 0),
    }
}

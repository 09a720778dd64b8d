//! The evaluation that GCRA, the token bucket and the leaky bucket share.
//!
//! The three are one machine with three descriptions. With `debt` as in [`super::tat`] and a bucket
//! of `size` hits:
//!
//! ```text
//! admit n hits  ⇔  debt + n·T ≤ size·T
//! GCRA          TAT = now + debt, tolerance τ = (size − 1)·T:   TAT + (n − 1)·T ≤ now + τ
//! token bucket  tokens = size − debt/T:                        n ≤ tokens
//! leaky bucket  level  = debt/T:                               level + n ≤ size
//! ```
//!
//! An idle bucket has debt 0, never less, so no burst after an idle time is larger than `size`.
//!
//! A denied request fits as soon as the debt has fallen to `(size − n)·T`, which takes as long as
//! the difference: `retry = debt + n·T − size·T`, rounded up to a nanosecond.

use super::state::State;
use super::tat::{Rate, Tat, Ticks, Wait};
use super::verdict::{Retry, Update, Verdict};
use crate::quota::Quota;
use crate::units::{Hits, Span, Timestamp};

/// Evaluates a request against a bucket of `size` hits that drains at the rate of `quota`.
#[inline]
pub(super) fn evaluate(
    state: &State,
    quota: &Quota,
    size: u32,
    hits: Hits,
    now: Timestamp,
) -> Update<Tat> {
    let Some(rate) = Rate::of(quota) else { return (None, deny_all(quota, hits)) };
    let request = BucketRequest { rate, size, before: tat(state), hits, now };
    let Some(Outcome { next, remaining, reset, retry }) =
        request.evaluate::<u64>().or_else(|| request.evaluate_wide())
    else {
        return (None, deny_all(quota, hits));
    };
    (next, Verdict::new(quota, hits, remaining, reset, retry))
}

#[derive(Clone, Copy)]
struct BucketRequest {
    rate: Rate,
    size: u32,
    before: Option<Tat>,
    hits: Hits,
    now: Timestamp,
}

struct Outcome {
    next: Option<Tat>,
    remaining: u64,
    reset: Span,
    retry: Retry,
}

impl BucketRequest {
    /// Nothing is too wide for 128 bits.
    #[cold]
    fn evaluate_wide(self) -> Option<Outcome> {
        self.evaluate::<u128>()
    }

    /// Evaluates in ticks of this width; `None` when it is too narrow.
    #[inline]
    fn evaluate<T: Ticks>(self) -> Option<Outcome> {
        let Self { rate, size, before, hits, now } = self;
        let capacity: T = rate.cost(u64::from(size))?;
        let debt: T = rate.debt(before, now)?;
        // The debt after the request, and when the request may succeed.
        let (debt_after, retry) = if hits.refund() > 0 {
            (debt.saturating_sub(rate.cost(hits.refund())?), Retry::Now)
        } else if hits.charge() > u64::from(size) {
            (debt, Retry::Never)
        } else {
            let charged = debt.checked_add(&rate.cost(hits.charge())?)?;
            if charged > capacity {
                (debt, Retry::After(rate.wait(charged - capacity)?.span_ceil()))
            } else {
                (charged, Retry::Now)
            }
        };
        let wait = rate.wait(debt_after)?;
        let outcome = |debt_after: T, wait: Wait, next, retry| {
            let remaining = rate.hits(capacity.saturating_sub(debt_after))?;
            Some(Outcome { next, remaining, reset: wait.span_ceil(), retry })
        };
        // Without a state there is nothing to refund, and none is created for a refund.
        let is_stored = if hits.refund() > 0 { before.is_some() } else { hits != Hits::PEEK };
        if retry != Retry::Now || !is_stored {
            return outcome(debt_after, wait, None, retry);
        }
        match wait.tat(now) {
            // A charge that cannot be stored must not be granted.
            None if hits.charge() > 0 => outcome(debt, rate.wait(debt)?, None, Retry::Never),
            next => outcome(debt_after, wait, next, Retry::Now),
        }
    }
}

/// Stores the new TAT in `state` and returns the verdict.
#[inline]
pub(super) fn store((next, verdict): Update<Tat>, state: &mut State) -> Verdict {
    match (state, next) {
        (_, None) => {}
        // In place: replacing the whole state would have to drop the old one.
        (State::Tat(tat), Some(next)) => *tat = next,
        (state, Some(next)) => *state = State::Tat(next),
    }
    verdict
}

/// The longest time in which a bucket of `quota` drains: how far ahead of now its TAT can be.
pub(super) fn drain_time(quota: &Quota) -> Span {
    let cost = |rate: Rate| rate.cost::<u128>(u64::from(quota.capacity()));
    let drained = |rate: Rate| Some(rate.wait(cost(rate)?)?.span_ceil());
    Rate::of(quota).and_then(drained).unwrap_or(Span::ZERO)
}

/// The TAT in `state`; a state of another algorithm counts as none.
pub(super) fn tat(state: &State) -> Option<Tat> {
    if let State::Tat(tat) = state { Some(*tat) } else { None }
}

/// The verdict of a limit of zero: only peeks and refunds pass.
fn deny_all(quota: &Quota, hits: Hits) -> Verdict {
    let retry = if hits.charge() == 0 { Retry::Now } else { Retry::Never };
    Verdict::new(quota, hits, 0, Span::ZERO, retry)
}

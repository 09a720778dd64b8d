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

use super::tat::{Rate, Tat, Ticks, Wait};
use super::verdict::{Verdict, excess};
use super::{Retry, State};
use crate::quota::Quota;
use crate::units::{Hits, Span, Timestamp};

/// What a step of a bucket gives: the TAT to keep, if it changes, and the answer.
pub(super) type Step = (Option<Tat>, Verdict);

/// Asks a bucket of `quota`'s rate with room for `size` hits.
#[inline]
pub(super) fn step(state: &State, quota: &Quota, size: u32, hits: Hits, now: Timestamp) -> Step {
    let Some(rate) = Rate::of(quota) else { return (None, refuse_all(quota, hits)) };
    let ask = Ask { rate, size, before: tat(state), hits, now };
    let Some(Outcome { next, remaining, reset, retry }) = ask.narrow().or_else(|| ask.wide())
    else {
        return (None, refuse_all(quota, hits));
    };
    let allowed = retry == Retry::Now;
    let excess = excess(allowed, hits, remaining);
    let limit = quota.limit();
    (next, Verdict { allowed, limit, remaining, reset, retry, delay: Span::ZERO, excess })
}

/// What is asked of a bucket.
#[derive(Clone, Copy)]
struct Ask {
    rate: Rate,
    size: u32,
    before: Option<Tat>,
    hits: Hits,
    now: Timestamp,
}

/// What comes of it.
struct Outcome {
    next: Option<Tat>,
    remaining: u32,
    reset: Span,
    retry: Retry,
}

impl Ask {
    #[inline]
    fn narrow(self) -> Option<Outcome> {
        self.outcome::<u64>()
    }

    /// Nothing is too wide for 128 bits.
    #[cold]
    fn wide(self) -> Option<Outcome> {
        self.outcome::<u128>()
    }

    /// The step, in ticks of this width; `None` when it is too narrow.
    #[inline]
    fn outcome<T: Ticks>(self) -> Option<Outcome> {
        let Self { rate, size, before, hits, now } = self;
        let room: T = rate.cost(u64::from(size))?;
        let debt: T = rate.debt(before, now)?;
        // What is owed afterwards, and when the ask may succeed.
        let (owed, retry) = if hits.refund() > 0 {
            (debt.saturating_sub(rate.cost(hits.refund())?), Retry::Now)
        } else if hits.charge() > u64::from(size) {
            (debt, Retry::Never)
        } else {
            let charged = debt.checked_add(&rate.cost(hits.charge())?)?;
            if charged > room {
                (debt, Retry::After(rate.wait(charged - room)?.span_ceil()))
            } else {
                (charged, Retry::Now)
            }
        };
        let wait = rate.wait(owed)?;
        let outcome = |owed: T, wait: Wait, next, retry| {
            let remaining = rate.hits(room.saturating_sub(owed))?;
            let remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
            Some(Outcome { next, remaining, reset: wait.span_ceil(), retry })
        };
        // Without a state there is nothing to give back, and none is made for it.
        let is_kept = if hits.refund() > 0 { before.is_some() } else { hits != Hits::PEEK };
        if retry != Retry::Now || !is_kept {
            return outcome(owed, wait, None, retry);
        }
        match wait.tat(now) {
            // What cannot be remembered must not be granted.
            None if hits.charge() > 0 => outcome(debt, rate.wait(debt)?, None, Retry::Never),
            next => outcome(owed, wait, next, Retry::Now),
        }
    }
}

/// Has `state` remember what a step gave.
#[inline]
pub(super) fn keep((next, verdict): Step, state: &mut State) -> Verdict {
    match (state, next) {
        (_, None) => {}
        // In place: a state as a whole may have something to free.
        (State::Tat(tat), Some(next)) => *tat = next,
        (state, Some(next)) => *state = State::Tat(next),
    }
    verdict
}

/// How far ahead of the present a TAT of `quota` can be.
pub(super) fn depth(quota: &Quota) -> Span {
    let size = match quota.queue() {
        Some(waiting_max) => waiting_max.saturating_add(1),
        None => quota.burst(),
    };
    let drained = |rate: Rate| Some(rate.wait(rate.cost::<u128>(u64::from(size))?)?.span_ceil());
    Rate::of(quota).and_then(drained).unwrap_or(Span::ZERO)
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

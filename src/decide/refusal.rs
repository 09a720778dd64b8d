//! What a refusal says when it is remembered: how long it holds, and what is left of its times.

use smallvec::SmallVec;
use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::quota::Quota;
use tidegate_limiter::store::Counter;
use tidegate_limiter::units::{Hits, Span};

/// What a window that is remembered as refused says to `hits`, by the quota of today.
pub(super) fn refused_again(verdict: &Verdict, counter: &Counter, hits: Hits) -> Verdict {
    let retry = if hits.charge() > u64::from(counter.quota.limit()) {
        Retry::Never
    } else {
        Retry::After(verdict.reset.max(Span::from_nanos(1)))
    };
    let excess = u32::try_from(hits.charge()).unwrap_or(u32::MAX);
    Verdict { limit: counter.quota.limit(), remaining: 0, retry, excess, ..*verdict }
}

/// The shortest wait among the limits that refuse; `None` when none does, or one does for ever.
pub(super) fn shortest_wait(verdicts: &[Verdict]) -> Option<Span> {
    let refusals = verdicts.iter().filter(|verdict| !verdict.allowed);
    let waits: Option<SmallVec<[Span; 4]>> =
        refusals.map(|refusal| refusal.retry.after()).collect();
    waits?.into_iter().min()
}

/// Whether so many hits fit the limit at all; if not, the refusal is one for ever.
pub(super) fn may_ever_pass(hits: Hits, quota: &Quota) -> bool {
    let most = match quota.queue() {
        Some(waiting) => waiting.saturating_add(1),
        None => quota.burst(),
    };
    hits.charge() <= u64::from(most)
}

/// What `verdict` says when `passed` has gone by.
pub(super) fn later(verdict: &Verdict, passed: Span) -> Verdict {
    let less = |span: Span| Span::from_nanos(span.as_nanos().saturating_sub(passed.as_nanos()));
    let retry = match verdict.retry {
        Retry::After(span) => Retry::After(less(span)),
        Retry::Now | Retry::Never => verdict.retry,
    };
    Verdict { reset: less(verdict.reset), retry, delay: less(verdict.delay), ..*verdict }
}

//! The answer of one limit, independent of protocol.

use serde::{Deserialize, Serialize};

use crate::quota::Quota;
use crate::units::{Hits, Span};

/// The answer of one limit to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether the hits may pass.
    pub allowed: bool,
    /// The limit that was applied, in hits per window.
    pub limit: u32,
    /// Hits that would still pass at this instant, after this decision.
    pub remaining: u32,
    /// Time until the whole limit is available again if no further request arrives.
    pub reset: Span,
    /// When the same request may succeed.
    pub retry: Retry,
    /// How long an admitted hit has to be delayed. Above zero only for a leaky bucket used as a
    /// queue.
    pub delay: Span,
    /// For a denied request: hits beyond the limit. A fixed window counts denied hits, so there it
    /// is how far the count exceeds the limit; elsewhere, how many of the requested hits are too
    /// many, and in a sliding window counter those that are over without them: nodes that had not
    /// synchronised admitted them, or the limit was lowered.
    pub excess: u32,
}

impl Verdict {
    /// The verdict of `retry`, without a delay.
    #[inline]
    pub(crate) fn new(
        quota: &Quota,
        hits: Hits,
        remaining: u64,
        reset: Span,
        retry: Retry,
    ) -> Self {
        let narrow = |hits: u64| u32::try_from(hits).unwrap_or(u32::MAX);
        let (allowed, remaining) = (retry == Retry::Now, narrow(remaining));
        let too_many = hits.charge().saturating_sub(u64::from(remaining));
        let excess = if allowed { 0 } else { narrow(too_many) };
        Self { allowed, limit: quota.limit(), remaining, reset, retry, delay: Span::ZERO, excess }
    }

    /// The same, when `reserved` hits of what remains are kept free.
    #[inline]
    pub(crate) fn beside(self, reserved: u64) -> Self {
        let left = u64::from(self.remaining).saturating_sub(reserved);
        Self { remaining: u32::try_from(left).unwrap_or(u32::MAX), ..self }
    }

    /// The same of a counter that is forgotten after `left`.
    pub(crate) fn within(self, left: Span) -> Self {
        let retry = match self.retry {
            Retry::After(wait) => Retry::After(wait.min(left)),
            other => other,
        };
        Self { reset: self.reset.min(left), retry, ..self }
    }

    /// The same of a window that is `over` hits above the limit without those of the request.
    #[inline]
    pub(super) fn over(self, over: u64) -> Self {
        if self.allowed {
            return self;
        }
        let over = u32::try_from(over).unwrap_or(u32::MAX);
        Self { excess: self.excess.saturating_add(over), ..self }
    }
}

/// When a denied request may be tried again.
///
/// **Invariant:** the time is exact. If no other request arrives, the same request is denied one
/// nanosecond earlier and admitted at that time. Listeners round it up, never down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Retry {
    /// The request was admitted.
    Now,
    /// After this span.
    After(Span),
    /// Never: the request exceeds what the limit can ever hold.
    Never,
}

impl Retry {
    /// The time to wait, if waiting helps.
    pub const fn after(self) -> Option<Span> {
        if let Self::After(span) = self { Some(span) } else { None }
    }
}

/// The outcome of evaluating a small state: the state to store, if it changes, and the verdict.
pub(super) type Update<S> = (Option<S>, Verdict);

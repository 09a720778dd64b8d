//! What a decision says, in terms every front door can render.

use serde::{Deserialize, Serialize};

use crate::units::{Hits, Span};

/// The answer of one limit to one ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether the hits may pass.
    pub allowed: bool,
    /// The limit that was applied, in hits per window.
    pub limit: u32,
    /// Hits that would still pass right now, after this decision.
    pub remaining: u32,
    /// Time until the whole limit is there again if nothing more is asked.
    pub reset: Span,
    /// When the same ask may succeed.
    pub retry: Retry,
    /// How long an admitted hit has to wait before it passes; only a leaky bucket used as a queue
    /// answers more than zero.
    pub delay: Span,
    /// Of a refusal: hits beyond the limit. A fixed window counts what it refuses, so there it is
    /// how far its count stands over the limit; elsewhere, how many of the asked hits are too many.
    pub excess: u32,
}

/// When a refused ask may be tried again.
///
/// **Invariant:** the named time is honest. The same ask is refused one nanosecond earlier and
/// admitted at that time, if nothing else is asked in between. (A sliding window counter and every
/// other algorithm hold it exactly; front doors round it up, never down.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Retry {
    /// It was admitted.
    Now,
    /// After this span.
    After(Span),
    /// Never: it asks for more than the limit can ever hold.
    Never,
}

impl Retry {
    /// The span to wait, when there is one.
    pub const fn after(self) -> Option<Span> {
        match self {
            Self::After(span) => Some(span),
            Self::Now | Self::Never => None,
        }
    }
}

/// How many of refused `hits` are too many where `remaining` would pass.
pub(super) fn excess(allowed: bool, hits: Hits, remaining: u32) -> u32 {
    if allowed {
        return 0;
    }
    u32::try_from(hits.charge().saturating_sub(u64::from(remaining))).unwrap_or(u32::MAX)
}

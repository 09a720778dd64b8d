//! What became of one check.

use tidegate_limiter::store::Verdicts;

use super::check::VerdictSource;

/// The verdicts of one check, one per counter, and where they come from.
pub(super) type Decided = (Verdicts, VerdictSource);

/// Why there is no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoVerdict {
    /// No node that could be reached in time owns the key.
    Unavailable,
    /// The check was decided and counted, but no replica confirmed the count in time.
    Unconfirmed,
}

/// What became of a check that was sent.
#[derive(Clone, Debug)]
pub(super) struct Forwarded {
    pub(super) decided: Decided,
    /// A refusal may end before it says.
    pub(super) may_end_early: bool,
}

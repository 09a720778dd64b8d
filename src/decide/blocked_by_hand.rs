//! What is said of a descriptor that an operator has blocked.

use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::store::{Counter, Verdicts};
use tidegate_limiter::units::{Span, Timestamp};

use super::fallback::denied;
use super::plan::PlannedCheck;

/// The refusal of each limit, if the descriptor is blocked at `now`.
pub(super) fn refusals(check: &PlannedCheck, now: Timestamp) -> Option<Verdicts> {
    let until = Some(check.blocked_until).filter(|until| *until > now)?;
    let (retry, reset) = match until {
        Timestamp::NEVER => (Retry::Never, Span::ZERO),
        until => (Retry::After(until.since(now)), until.since(now)),
    };
    let refusal = |counter: &Counter| Verdict { retry, reset, ..denied(&counter.quota) };
    Some(check.counters.iter().map(refusal).collect())
}

//! What is said of a descriptor that an operator has blocked.

use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::quota::Quota;
use tidegate_limiter::store::Verdicts;
use tidegate_limiter::units::{Span, Timestamp};

use super::fallback::denied;
use super::plan::PlannedCheck;

/// The refusal of each limit, if the descriptor is blocked at `now`.
pub(super) fn refusals(check: &PlannedCheck, now: Timestamp) -> Option<Verdicts> {
    let until = Some(check.blocked_until).filter(|until| *until > now)?;
    let refusals = check.counters.iter();
    refusals.map(|counter| refusal(&counter.quota, until, now)).collect()
}

/// The refusal of a limit whose key is blocked until `until`, if it is at `now`.
pub(super) fn refusal(quota: &Quota, until: Timestamp, now: Timestamp) -> Option<Verdict> {
    let until = Some(until).filter(|until| *until > now)?;
    let (retry, reset) = match until {
        Timestamp::NEVER => (Retry::Never, Span::ZERO),
        until => (Retry::After(until.since(now)), until.since(now)),
    };
    Some(Verdict { retry, reset, ..denied(quota) })
}

//! The verdicts when no owner gives one in time: the rule's `on_unavailable`.

use smallvec::SmallVec;
use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::policy::OnUnavailable;
use tidegate_limiter::quota::Quota;
use tidegate_limiter::store::{Counter, Store, Verdicts};
use tidegate_limiter::units::{Hits, Span, Timestamp};
use tidegate_ownership::route::Topology;

use super::plan::PlannedCheck;

/// The `retry_after` of a refusal: by then the ring usually has another owner.
const RETRY_AFTER: Span = Span::from_secs(1);

/// Decides `check` by the `on_unavailable` of its rule.
///
/// `Local` decides on this node's whole-number share of the limit, in separate counters. The shares
/// of all nodes sum to the limit, so nodes that cannot reach the owner admit no more than the limit
/// together.
pub(super) fn decide(
    check: &PlannedCheck,
    hits: Hits,
    topology: &Topology,
    store: &Store,
    now: Timestamp,
) -> Verdicts {
    let PlannedCheck { rule, counters, .. } = check;
    match rule.on_unavailable {
        OnUnavailable::Allow => counters.iter().map(|it| allowed(&it.quota)).collect(),
        OnUnavailable::Deny => counters.iter().map(|it| denied(&it.quota)).collect(),
        OnUnavailable::Local => {
            let shares: SmallVec<[Counter; 1]> = counters
                .iter()
                .map(|counter| {
                    let share = topology.share_of(rule.scope, counter.quota.limit());
                    Counter { key: counter.key.share(), quota: counter.quota.with_limit(share) }
                })
                .collect();
            // The hits may have been taken from the owner's counter, not from this share.
            let hits = if hits.refund() > 0 { Hits::PEEK } else { hits };
            store.check(&shares, hits, now)
        }
    }
}

fn allowed(quota: &Quota) -> Verdict {
    let remaining = quota.limit();
    Verdict { allowed: true, remaining, retry: Retry::Now, ..denied(quota) }
}

/// A refusal that does not depend on any count.
pub(super) fn denied(quota: &Quota) -> Verdict {
    Verdict {
        allowed: false,
        limit: quota.limit(),
        remaining: 0,
        reset: quota.window(),
        retry: Retry::After(RETRY_AFTER),
        delay: Span::ZERO,
        excess: 0,
    }
}

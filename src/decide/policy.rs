//! The answer when nobody who could decide exactly does: the rule's `on_unavailable`.

use smallvec::SmallVec;
use tidegate_cluster::mesh::wire::Check;
use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::policy::OnUnavailable;
use tidegate_limiter::quota::Quota;
use tidegate_limiter::store::{Counter, Store};
use tidegate_limiter::units::{Hits, Span, Timestamp};
use tidegate_ownership::route::Topology;

/// When to ask again after a refusal by policy: by then the ring has another owner.
const RETRY_AFTER: Span = Span::from_secs(1);

/// Answers `check` by `policy`.
///
/// `Local` decides on this node's whole-number share of the limit, in counters of its own: the
/// shares of all nodes sum to the limit, so that nodes cut off from an owner admit no more than the
/// limit together.
pub(super) fn answer(
    policy: OnUnavailable,
    check: &Check,
    topology: &Topology,
    store: &Store,
    now: Timestamp,
) -> SmallVec<[Verdict; 1]> {
    match policy {
        OnUnavailable::Allow => check.counters.iter().map(|c| allowed(&c.quota)).collect(),
        OnUnavailable::Deny => check.counters.iter().map(|c| denied(&c.quota)).collect(),
        OnUnavailable::Local => {
            let shares: SmallVec<[Counter; 1]> = check
                .counters
                .iter()
                .map(|counter| {
                    let share = topology.share_of(check.scope, counter.quota.limit());
                    Counter { key: counter.key.share(), quota: counter.quota.with_limit(share) }
                })
                .collect();
            // What is given back may have been the owner's: then this share never had it.
            let hits = if check.hits.refund() > 0 { Hits::PEEK } else { check.hits };
            store.check(&shares, hits, now)
        }
    }
}

fn allowed(quota: &Quota) -> Verdict {
    Verdict {
        allowed: true,
        limit: quota.limit(),
        remaining: quota.limit(),
        reset: quota.window(),
        retry: Retry::Now,
        delay: Span::ZERO,
        excess: 0,
    }
}

/// The refusal of whoever knows nothing.
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

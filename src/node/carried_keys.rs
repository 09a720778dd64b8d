//! One key whose requests carry their limit, for `tidegate key`.
//!
//! A store knows its counters by their hashes alone, and no counter knows its limit: so an order
//! names a counter by what its requests say, and it is found as theirs is.

use tidegate_limiter::quota::Quota;
use tidegate_limiter::store::DescriptorHash;
use tidegate_proto::gubernator::{Algorithm, Behavior, RateLimitReq};

use super::inspect::View;
use crate::admin::key::{CarriedKey, CarriedLimit, Period};
use crate::decide::{CarriedVerdict, DecideCarried};
use crate::front::gubernator::Settings;
use crate::front::gubernator::limit::{self, Asked};

/// What became of a check by hand.
pub(super) struct CarriedFound {
    /// Of the counter, before it was begun anew.
    pub(super) hash: DescriptorHash,
    pub(super) quota: Quota,
    pub(super) decided: CarriedVerdict,
}

impl View {
    /// Has a counter of `key` decided as if a client had sent the check. Hits that are more than
    /// are left take what is left. `None` if the key names no counter.
    pub(super) async fn decide_carried_key(
        &self,
        key: &CarriedKey,
        hits: i64,
    ) -> Option<CarriedFound> {
        let request = request(key, hits)?;
        let decider = &self.core.decider;
        let zone = self.config.gubernator.time_zone.0.clone();
        let settings = Settings { zone, ..Settings::default() };
        let Asked::Check(mut check, _) = limit::asked(&request, &settings, decider.now()) else {
            return None;
        };
        check.behavior.credits = false;
        let hash = self.core.hasher.carried(&key.name, &key.unique_key, check.part);
        let decided = decider.decide_carried_by_hand(&[check]).await.into_iter().next()?;
        Some(CarriedFound { hash, quota: check.quota, decided })
    }
}

fn request(key: &CarriedKey, hits: i64) -> Option<RateLimitReq> {
    let CarriedLimit { limit, period, is_bucket, burst } = key.limit?;
    let (duration, calendar) = match period {
        Period::Span(span) => (i64::try_from(span.as_millis_ceil()).ok()?, 0),
        Period::Calendar(kind) => (i64::from(kind), Behavior::DurationIsGregorian as i32),
    };
    let algorithm = if is_bucket { Algorithm::LeakyBucket } else { Algorithm::TokenBucket };
    let drains = if hits > 0 { Behavior::DrainOverLimit as i32 } else { 0 };
    Some(RateLimitReq {
        name: key.name.clone(),
        unique_key: key.unique_key.clone(),
        hits,
        limit: limit.into(),
        duration,
        algorithm: algorithm.into(),
        behavior: calendar | drains,
        burst: burst.into(),
        ..RateLimitReq::default()
    })
}

//! The limits of one key, divided among regions.
//!
//! A share has the tag of the key, a token that is at home in its region
//! ([`tidegate_ownership::shares`]), and its part of limit and burst in whole hits. The parts sum
//! to the limit, and the home of the key has the first and largest one.
//!
//! **Example.** 10 a minute over three regions are 4, 3 and 3 a minute. Of 2 a minute two regions
//! have one each, and the third has none.
//!
//! **Bound.** [`REGIONS_MAX`] regions. With more, as with a log or a queue, the home region of the
//! key decides all of it.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_limiter::engine::grant;
use tidegate_limiter::quota::Quota;
use tidegate_limiter::store::{Counter, KeyHash};
use tidegate_ownership::shares;

use super::limits::Limits;

/// Most regions that share a limit: finding the tokens of a key takes their number squared.
pub const REGIONS_MAX: usize = 16;

/// How many of `regions` have a share of these limits; 0 if the home decides all of them.
pub fn regions_sharing(limits: &[Quota], regions: &[String]) -> usize {
    if !(2..=REGIONS_MAX).contains(&regions.len()) || !limits.iter().all(grant::can_grant) {
        return 0;
    }
    // A smaller limit is divided among fewer.
    let least = limits.iter().map(|quota| quota.limit().min(quota.burst())).min();
    least.and_then(|least| usize::try_from(least).ok()).unwrap_or(0).min(regions.len())
}

/// The shares of one key.
#[derive(Debug)]
pub(super) struct Shares {
    /// As if one owner decided all of it.
    pub(super) whole: Limits,
    regions: Arc<[String]>,
    /// That of the key's home first.
    pub(super) parts: SmallVec<[Limits; 4]>,
    /// Which of them is asked first: that of this region, or of the home if this one has none.
    pub(super) own: usize,
}

// === impl Shares ===

impl Shares {
    /// The shares of `whole` among `regions`, as asked from `own`; `None` if there are none.
    pub(super) fn of(whole: &Limits, regions: &Arc<[String]>, own: &str) -> Option<Self> {
        let token = whole.key()?.token;
        let quotas: SmallVec<[Quota; 4]> = whole.counters.iter().map(|it| it.quota).collect();
        let count = u32::try_from(regions_sharing(&quotas, regions)).ok()?;
        let mut own_at = 0;
        let mut parts = SmallVec::new();
        for (rank, share) in (0..count).zip(shares::of_key(regions, token)) {
            let part = |counter: &Counter| {
                let key = KeyHash { token: share.token, ..counter.key };
                Some(Counter { key, quota: counter.quota.part(rank, count)? })
            };
            let counters: Option<SmallVec<[Counter; 1]>> =
                whole.counters.iter().map(part).collect();
            if share.region == own {
                own_at = parts.len();
            }
            parts.push(Limits { counters: counters?, is_share: true, ..whole.clone() });
        }
        let (whole, regions) = (whole.clone(), regions.clone());
        (!parts.is_empty()).then_some(Self { whole, regions, parts, own: own_at })
    }

    /// Whether they are those of these limits.
    pub(super) fn are_of(&self, whole: &Limits, regions: &Arc<[String]>) -> bool {
        (Arc::ptr_eq(&self.regions, regions) || self.regions == *regions) && self.whole == *whole
    }

    /// A limit of share `at`.
    pub(super) fn quota(&self, at: usize, limit: usize) -> Option<&Quota> {
        self.parts.get(at)?.counters.get(limit).map(|counter| &counter.quota)
    }
}

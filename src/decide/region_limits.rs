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

#[cfg(test)]
mod tests {
    use tidegate_limiter::policy::{Durability, Scope};
    use tidegate_limiter::quota::{Algorithm, QuotaParts};
    use tidegate_limiter::units::Span;
    use tidegate_ownership::homes::Homes;

    use super::*;

    fn regions(names: &[&str]) -> Arc<[String]> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn limits(algorithms: &[(Algorithm, u32, u32)]) -> Limits {
        let counter = |(tag, &(algorithm, limit, burst)): (u64, &(Algorithm, u32, u32))| {
            let window = Span::from_secs(60);
            let parts = QuotaParts { algorithm, limit, window, burst, sub_windows: 1, queue: None };
            let quota = Quota::new(parts).expect("a valid quota");
            Counter { key: KeyHash { token: 7, tag }, quota }
        };
        let counters = (0..).zip(algorithms).map(counter).collect();
        let (scope, durability) = (Scope::Global, Durability::Async);
        Limits { scope, durability, leased: None, is_share: false, counters }
    }

    #[test]
    fn shares_sum_to_each_limit_and_are_at_home_in_their_regions() {
        let names = regions(&["ap", "eu", "us"]);
        let whole = limits(&[(Algorithm::FixedWindow, 10, 10), (Algorithm::Gcra, 100, 7)]);
        let homes = Homes::new("eu".to_owned(), names.to_vec());
        let shares = Shares::of(&whole, &names, "eu").expect("three shares");
        assert_eq!(shares.parts.len(), 3);
        assert_eq!(shares.parts[0].key(), whole.key(), "the home goes on with the key");
        assert_eq!(homes.home(shares.parts[shares.own].counters[0].key.token), "eu");
        for (limit, counter) in whole.counters.iter().enumerate() {
            let of_each = || shares.parts.iter().map(|part| part.counters[limit].quota);
            assert_eq!(of_each().map(|quota| quota.limit()).sum::<u32>(), counter.quota.limit());
            assert_eq!(of_each().map(|quota| quota.burst()).sum::<u32>(), counter.quota.burst());
            let tags = shares.parts.iter().map(|part| part.counters[limit].key.tag);
            assert!(tags.into_iter().all(|tag| tag == counter.key.tag));
        }
        for part in &shares.parts {
            let tokens = part.counters.iter().map(|counter| counter.key.token);
            assert!(
                part.is_share
                    && tokens.into_iter().all(|it| Some(it) == Some(part.counters[0].key.token))
            );
        }
    }

    #[test]
    fn of_a_limit_smaller_than_the_number_of_regions_some_have_none() {
        let names = regions(&["ap", "eu", "us"]);
        for (limit, burst, count) in [(2, 2, 2), (9, 1, 1), (1, 9, 1), (0, 0, 0)] {
            let whole = limits(&[(Algorithm::TokenBucket, limit, burst)]);
            let shares = Shares::of(&whole, &names, "eu");
            assert_eq!(shares.map_or(0, |shares| shares.parts.len()), count, "{limit}, {burst}");
        }
    }

    #[test]
    fn what_is_decided_in_the_home_is_not_divided() {
        let window = |algorithm| limits(&[(algorithm, 100, 100)]);
        let fixed = window(Algorithm::FixedWindow);
        let many: Vec<String> = (0..=REGIONS_MAX).map(|n| format!("r{n}")).collect();
        let two = regions(&["eu", "us"]);
        assert!(Shares::of(&fixed, &two, "eu").is_some());
        assert!(Shares::of(&fixed, &many[..REGIONS_MAX].into(), "r0").is_some());
        assert!(Shares::of(&fixed, &many.into(), "r0").is_none());
        assert!(Shares::of(&fixed, &regions(&["eu"]), "eu").is_none());
        assert!(Shares::of(&window(Algorithm::SlidingWindowLog), &two, "eu").is_none());
    }

    /// A witness asks the home first.
    #[test]
    fn a_region_without_a_share_begins_at_the_home() {
        let shares = Shares::of(
            &limits(&[(Algorithm::FixedWindow, 10, 10)]),
            &regions(&["eu", "us"]),
            "witness",
        );
        assert_eq!(shares.map(|shares| shares.own), Some(0));
    }
}

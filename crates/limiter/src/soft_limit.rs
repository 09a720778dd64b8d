//! A soft limit: the part of a limit above which hits are still admitted, and signalled.
//!
//! It is no state: the verdict says how much of the limit is used.
//!
//! ```text
//! used      = capacity − remaining          of the verdict, after its hits
//! signalled ⇔ admitted and used > soft limit
//! ```
//!
//! *Example*: 10 a minute with a soft limit of 80 % signals the ninth and the tenth hit of a
//! minute. Of a bucket with `burst: 20` it signals while fewer than 4 hits are left.
//!
//! A verdict of a part of the limit, such as a node's share while the owner cannot be reached, is
//! judged by the same part of the soft limit: 2 of a share of 5.
//!
//! **Bound.** The signal is as exact as `remaining`, which is an estimate for a leased rule that is
//! decided from granted hits, and leaves out what other nodes have not announced for an eventual
//! one.

use crate::engine::Verdict;
use crate::quota::Quota;

/// Most hits in use that are not signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SoftLimit(u32);

impl SoftLimit {
    /// `hits` of `quota`; `None` if no admitted hit could exceed it.
    pub fn hits(hits: u32, quota: &Quota) -> Option<Self> {
        (hits < quota.capacity()).then_some(Self(hits))
    }

    /// A part of `quota`, 0 to 99 percent, else `None`. It is rounded down, which signals the same
    /// hits: used hits are whole.
    ///
    /// ```
    /// use tidegate_limiter::quota::{Algorithm, Quota};
    /// use tidegate_limiter::soft_limit::SoftLimit;
    /// use tidegate_limiter::units::Span;
    ///
    /// let quota = Quota::simple(Algorithm::FixedWindow, 9, Span::from_secs(60))?;
    /// assert_eq!(SoftLimit::percent(80, &quota).map(SoftLimit::get), Some(7));
    /// assert_eq!(SoftLimit::percent(100, &quota), None);
    /// # Ok::<(), tidegate_limiter::quota::Error>(())
    /// ```
    pub fn percent(percent: u8, quota: &Quota) -> Option<Self> {
        let part = u64::from(quota.capacity()) * u64::from(percent) / 100;
        u32::try_from(part).ok().filter(|_| percent < 100).map(Self)
    }

    pub const fn get(self) -> u32 {
        self.0
    }

    /// Whether `verdict` on a request to `quota` admits it above this limit.
    pub fn is_exceeded(self, quota: &Quota, verdict: &Verdict) -> bool {
        let part = quota.with_limit(verdict.limit);
        let used = part.capacity().saturating_sub(verdict.remaining);
        let (used, soft) = (u64::from(used), u64::from(self.0));
        let (whole, part) = (u64::from(quota.limit()), u64::from(part.limit()));
        // Both below 2^64: each factor is below 2^32.
        verdict.allowed && used * whole > soft * part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Retry;
    use crate::quota::{Algorithm, QuotaParts};
    use crate::units::Span;

    fn quota(burst: u32, queue: Option<u32>) -> Quota {
        let (algorithm, limit, window) = (Algorithm::LeakyBucket, 10, Span::from_secs(60));
        Quota::new(QuotaParts { algorithm, limit, window, burst, sub_windows: 1, queue })
            .expect("a valid quota")
    }

    fn admitted(limit: u32, remaining: u32) -> Verdict {
        let (reset, delay) = (Span::ZERO, Span::ZERO);
        Verdict { allowed: true, limit, remaining, reset, retry: Retry::Now, delay, excess: 0 }
    }

    #[test]
    fn a_bucket_is_measured_by_what_it_holds() {
        for (quota, capacity) in [(quota(10, None), 10), (quota(20, None), 20)]
            .into_iter()
            .chain([(quota(10, Some(99)), 100)])
        {
            let soft = SoftLimit::percent(80, &quota).expect("a part");
            assert_eq!(soft.get(), capacity * 8 / 10);
            let least = capacity - soft.get();
            assert!(!soft.is_exceeded(&quota, &admitted(10, least)), "{capacity}");
            assert!(soft.is_exceeded(&quota, &admitted(10, least - 1)), "{capacity}");
            assert_eq!(SoftLimit::hits(capacity, &quota), None);
        }
    }

    #[test]
    fn a_share_is_judged_by_its_part() {
        let quota = quota(20, None);
        let soft = SoftLimit::percent(80, &quota).expect("a part");
        // A share of 5 has a burst of 10.
        assert!(!soft.is_exceeded(&quota, &admitted(5, 2)));
        assert!(soft.is_exceeded(&quota, &admitted(5, 1)));
    }

    #[test]
    fn a_refusal_is_not_signalled() {
        let quota = quota(10, None);
        let soft = SoftLimit::hits(0, &quota).expect("below the limit");
        assert!(soft.is_exceeded(&quota, &admitted(10, 0)));
        assert!(!soft.is_exceeded(&quota, &Verdict { allowed: false, ..admitted(10, 0) }));
    }
}

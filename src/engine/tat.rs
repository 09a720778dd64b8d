//! The one instant that all bucket algorithms remember, and exact arithmetic around it.
//!
//! # Idea
//!
//! A bucket that regains one hit every `T = window / limit` is described by a single instant: the
//! theoretical arrival time (TAT) at which it is back to its idle state, that is full of tokens or
//! empty of water. An ask moves it later, time passing brings it nearer.
//!
//! # Formula
//!
//! `T` is rarely a whole number of nanoseconds: 7 hits a second is one every 142,857,142 and 6/7
//! ns. Rounding `T` would let a polled bucket drift. So a TAT is kept as the exact fraction `ns +
//! rem / limit`, and sums are made in **ticks** of `1 / limit` ns, where everything is whole:
//!
//! ```text
//! one nanosecond = limit ticks          one hit = window ticks (window in ns)
//! debt           = max(0, TAT − now) in ticks
//! ```
//!
//! One hit is `window` ticks because `T × limit = window`. There is no division until the answer is
//! written down.
//!
//! # Example
//!
//! 7 hits a second, idle, one hit at `now = 0`: debt = 10⁹ ticks, so the TAT is
//! 10⁹ / 7 = 142,857,142 ns with `rem = 6`. Six hits later the debt is 7 × 10⁹ ticks and the TAT is
//! exactly 1 s with `rem = 0`: nothing was lost on the way.
//!
//! # Bound
//!
//! A debt is at most 2⁶⁴ ns × 2³² ticks, a cost at most 2⁶³ hits × 2⁵⁵ ticks: both fit in a `u128`,
//! which is divided in 64 bits while it is small ([`div_rem`]).
//!
//! # A rule that changes
//!
//! What is remembered is time, not hits: a bucket that is full stays full when its limit is raised
//! or lowered, and is idle again at the same instant. `rem` changes its meaning; it is cut to the
//! new limit, an error below one nanosecond.
//!
//! Source: ITU-T I.371 annex A for the TAT; the fraction is ours.

use serde::{Deserialize, Serialize};

use crate::rules::quota::Quota;
use crate::units::{Span, Timestamp};

/// A theoretical arrival time: the exact instant `ns + rem / limit` nanoseconds.
///
/// Packed so that a [`super::State`] that holds it stays at 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(Rust, packed(4))]
pub struct Tat {
    ns: u64,
    rem: u32,
}

impl Tat {
    /// The instant `ns + rem / limit` nanoseconds after the epoch.
    pub const fn new(ns: u64, rem: u32) -> Self {
        Self { ns, rem }
    }

    /// The first whole nanosecond that is not before it.
    pub const fn ceil(self) -> Timestamp {
        Timestamp::from_nanos(self.ns.saturating_add((self.rem > 0) as u64))
    }

    /// For a digest.
    pub(super) fn words(self) -> [u64; 3] {
        [3, self.ns, u64::from(self.rem)]
    }
}

/// How a quota turns hits and time into ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    ticks_per_ns: u32,
    ticks_per_hit: u64,
}

impl Rate {
    /// The rate of `quota`; `None` when its limit is zero and nothing ever comes back.
    pub(super) fn of(quota: &Quota) -> Option<Self> {
        (quota.limit() > 0)
            .then(|| Self { ticks_per_ns: quota.limit(), ticks_per_hit: quota.window().as_nanos() })
    }

    /// What `hits` cost. Exact for every count of hits an ask or a quota can name.
    pub(super) fn cost(self, hits: u64) -> u128 {
        u128::from(hits) * u128::from(self.ticks_per_hit)
    }

    /// How many whole hits `ticks` pay for.
    pub(super) fn hits(self, ticks: u128) -> u64 {
        let (hits, _) = div_rem(ticks, self.ticks_per_hit);
        u64::try_from(hits).unwrap_or(u64::MAX)
    }

    /// How far `tat` lies ahead of `now`.
    pub(super) fn debt(self, tat: Option<Tat>, now: Timestamp) -> u128 {
        let Some(Tat { ns, rem }) = tat else { return 0 };
        let Some(ahead) = ns.checked_sub(now.as_nanos()) else { return 0 };
        let rem = rem.min(self.ticks_per_ns.saturating_sub(1));
        u128::from(ahead) * u128::from(self.ticks_per_ns) + u128::from(rem)
    }

    /// The TAT that lies `debt` ahead of `now`; `None` beyond the end of representable time.
    pub(super) fn tat(self, debt: u128, now: Timestamp) -> Option<Tat> {
        let (ahead, rem) = div_rem(debt, u64::from(self.ticks_per_ns));
        let (ahead, rem) = (u64::try_from(ahead).ok()?, u32::try_from(rem).ok()?);
        Some(Tat { ns: now.as_nanos().checked_add(ahead)?, rem })
    }

    /// The whole nanoseconds in which `ticks` pass, rounded up: a wait is never named too short.
    pub(super) fn span_ceil(self, ticks: u128) -> Span {
        let (ns, rem) = div_rem(ticks, u64::from(self.ticks_per_ns));
        let ns = u64::try_from(ns).unwrap_or(u64::MAX);
        Span::from_nanos(ns.saturating_add(u64::from(rem > 0)))
    }
}

/// `ticks / by` and what is left. Nearly always both fit in 64 bits, and then it is one
/// instruction.
fn div_rem(ticks: u128, by: u64) -> (u128, u64) {
    if let Ok(ticks) = u64::try_from(ticks) {
        return (u128::from(ticks / by), ticks % by);
    }
    let by = u128::from(by);
    (ticks / by, u64::try_from(ticks % by).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::quota::Algorithm;

    #[test]
    fn fractions_add_up_to_whole_seconds() {
        let quota = Quota::simple(Algorithm::Gcra, 7, Span::from_secs(1)).expect("valid");
        let rate = Rate::of(&quota).expect("a limit above zero");
        let mut tat = None;
        for _ in 0..7 {
            let debt = rate.debt(tat, Timestamp::EPOCH) + rate.cost(1);
            tat = rate.tat(debt, Timestamp::EPOCH);
        }
        assert_eq!(tat, Some(Tat::new(1_000_000_000, 0)));
    }

    #[test]
    fn an_instant_with_a_fraction_is_not_over_before_the_next_nanosecond() {
        assert_eq!(Tat::new(10, 0).ceil(), Timestamp::from_nanos(10));
        assert_eq!(Tat::new(10, 1).ceil(), Timestamp::from_nanos(11));
        assert_eq!(Tat::new(u64::MAX, 1).ceil(), Timestamp::NEVER);
    }

    #[test]
    fn a_lowered_limit_cuts_the_fraction_to_less_than_a_nanosecond() {
        let quota = Quota::simple(Algorithm::Gcra, 2, Span::from_secs(1)).expect("valid");
        let rate = Rate::of(&quota).expect("a limit above zero");
        assert_eq!(rate.debt(Some(Tat::new(5, u32::MAX)), Timestamp::EPOCH), 11);
    }

    #[test]
    fn the_end_of_time_is_refused_rather_than_wrapped() {
        let quota = Quota::simple(Algorithm::Gcra, 1, Span::from_secs(1)).expect("valid");
        let rate = Rate::of(&quota).expect("a limit above zero");
        assert_eq!(rate.tat(rate.cost(1), Timestamp::NEVER), None);
        assert_eq!(rate.tat(u128::MAX, Timestamp::EPOCH), None);
    }
}

//! Whether the share of this region lasts, for keys whose limit is divided among regions
//! (`shares.rs`): the rate of a key here, and what the owners of its shares said last.
//!
//! ```text
//! is missing = checked here within T − (left of the own share + what returns within T) / nodes
//! T          = until the window ends and RESERVE_ROUND_TRIPS to the other regions more (at most a
//!              quarter of what is left of it), at most HORIZON_ROUND_TRIPS
//! returns    = what drains; of a sliding window what was used in the window before passes
//! ```
//!
//! The reserve is there because nothing can be asked for in the last round trips of a window: then
//! the own share has to be enough, although neither its owner nor this node knows how much of it
//! others will need. A call that arrives when the next window has begun asks for what will be
//! missing in that one, of which the own share is whole.
//!
//! A node takes its part of what is left for as large as that of each other node of its region, so
//! that it has to ask none of them. A node with most of the load asks other regions earlier than it
//! has to, which costs calls in the background.
//!
//! **Worked example.** Three nodes of a region, 160 ms from another one, check 100 hits a second
//! each. Of their share 330 hits are left in a window of a minute: within 1.28 s a node checks 128,
//! and its part is 110, so 18 are missing. It asks for them, and they are here long before.
//!
//! **Remaining.** What is left of other shares is what their owners said last, until the window
//! ends; of those that were never asked it is all. So it may be too high by what others used.
//!
//! **Bound.** [`SLOTS`] slots of [`WAYS`] keys; a new key takes the place of the one that was not
//! checked for longest, which then begins as unknown.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::Counter;
use tidegate_limiter::units::{Monotonic, Span, Timestamp};

use super::limits::Limits;
use super::region_limits::Shares;

const SLOTS: usize = 8_192;
const WAYS: usize = 4;
/// A key is looked ahead for as many round trips to other regions: some calls, and what cannot be
/// asked for in time before a window ends.
pub(super) const HORIZON_ROUND_TRIPS: u64 = 8;
/// Hits for so much time more than a window lasts are not missing at its end.
const RESERVE_ROUND_TRIPS: u64 = 4;
/// The reserve is at most this part of what is left of the window: more would be taken from others
/// for nothing, where a window has few round trips.
const RESERVE_DIVISOR: u64 = 4;
/// The rate is that of the present interval and the one before.
const PACE_INTERVAL: Span = Span::from_millis(100);
/// A key that was not checked for so long has no rate; its next checks are as if they took as long,
/// until an interval is over.
const REST: Span = Span::from_secs(1);
/// How often it is seen how far other regions are, and how many nodes this one has.
const SIGHT_INTERVAL: Span = Span::from_secs(1);
/// The pause before a share is asked again that could not be reached, or had nothing to grant in a
/// window that goes on.
const ASK_PAUSE: Span = Span::from_millis(500);

#[derive(Debug)]
pub(super) struct Forecasts {
    slots: Box<[Mutex<Vec<Forecast>>]>,
}

/// The nodes of a region, and how far it is from the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    pub(super) nodes: u32,
    pub(super) round_trip: Span,
}

/// The shares of a key, as this node sees them when it checks it.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) shares: Arc<Shares>,
    /// Whether the own share will do.
    pub(super) lasts: bool,
    /// Hits that will be missing here from the time at which a call to another region arrives.
    pub(super) missing: u32,
    /// The shares in the order in which they are asked.
    pub(super) order: SmallVec<[usize; 4]>,
    /// To the farthest other region that has a share.
    pub(super) round_trip: Span,
}

#[derive(Debug)]
struct Forecast {
    shares: Arc<Shares>,
    pace: Pace,
    sight: Sight,
    sighted: Monotonic,
    /// Of each share.
    known: SmallVec<[Known; 4]>,
}

/// What is known of a share.
#[derive(Clone, Debug, Default)]
struct Known {
    /// What is left of each limit, until when; nothing of a share that was never asked.
    left: SmallVec<[(u32, Timestamp); 1]>,
    /// Of each limit what is used, in windows of its length.
    used: SmallVec<[Used; 1]>,
    /// It is not asked ahead before.
    ask_after: Option<Monotonic>,
}

/// What is used of a limit in a window, and was when the one before ended.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    window: u64,
    now: u32,
    before: u32,
}

/// How often a key is checked.
#[derive(Clone, Copy, Debug)]
struct Pace {
    since: Monotonic,
    hits: u64,
    /// Of the interval before.
    before: (u64, Span),
}

impl Forecasts {
    /// `hits` of these limits are checked, which all of `regions` share. `divide` makes the shares
    /// of a key that is not known; `None` if it makes none.
    pub(super) fn seen(
        &self,
        whole: &Limits,
        regions: &Arc<[String]>,
        hits: u64,
        (now, monotonic): (Timestamp, Monotonic),
        divide: impl FnOnce() -> Option<Shares>,
        look: impl Fn(&Shares) -> Sight,
    ) -> Option<Seen> {
        let mut slot = self.slot(whole)?.lock();
        let at = slot.iter().position(|it| it.shares.are_of(whole, regions));
        let at = if let Some(at) = at {
            at
        } else {
            let shares = Arc::new(divide()?);
            slot.retain(|it| it.shares.whole.key() != whole.key());
            let checked = |at: &usize| slot.get(*at).map(|it| it.pace.since);
            let oldest = (0..slot.len()).min_by_key(checked);
            if let Some(oldest) = oldest.filter(|_| slot.len() >= WAYS) {
                slot.swap_remove(oldest);
            }
            let sight = look(&shares);
            slot.push(Forecast::new(shares, sight, monotonic));
            slot.len() - 1
        };
        let forecast = slot.get_mut(at)?;
        if monotonic.since(forecast.sighted) >= SIGHT_INTERVAL {
            forecast.sight = look(&forecast.shares);
            forecast.sighted = monotonic;
        }
        forecast.pace.turn(monotonic);
        // By the checks before this one: they were spread over the time that has passed.
        let lasts = forecast.missing(now, monotonic) == 0;
        let one_way = Span::from_nanos(forecast.sight.round_trip.as_nanos() / 2);
        let missing = forecast.missing(now.plus(one_way), monotonic);
        forecast.pace.hits = forecast.pace.hits.saturating_add(hits);
        let order = forecast.order(now);
        let (shares, round_trip) = (forecast.shares.clone(), forecast.sight.round_trip);
        Some(Seen { shares, lasts, missing, order, round_trip })
    }

    /// The owner of share `at` gave these verdicts, or they are an estimate with `held` hits here.
    /// Returns what is left of all other shares, of each limit.
    pub(super) fn learn(
        &self,
        shares: &Arc<Shares>,
        at: usize,
        verdicts: &[Verdict],
        held: u32,
        now: Timestamp,
    ) -> SmallVec<[u32; 1]> {
        self.with(shares, |forecast| {
            // Each of the other nodes of the region holds as much.
            let held = if at == shares.own { held } else { 0 };
            let with_others = held.saturating_mul(forecast.sight.nodes.saturating_sub(1));
            let left = |verdict: &Verdict| {
                (verdict.remaining.saturating_add(with_others), now.plus(verdict.reset))
            };
            if let Some(known) = forecast.known.get_mut(at) {
                known.left = verdicts.iter().map(left).collect();
                known.used.resize(verdicts.len(), Used::default());
                for (limit, used) in known.used.iter_mut().enumerate() {
                    let left = known.left.get(limit).map_or(0, |(left, _)| *left);
                    let Some(quota) = shares.quota(at, limit) else { continue };
                    used.is(quota.burst().saturating_sub(left), quota, now);
                }
            }
            (0..verdicts.len()).map(|limit| forecast.others(at, limit, now)).collect()
        })
        .unwrap_or_else(|| {
            let all = |limit| {
                let others = (0..shares.parts.len()).filter(|other| *other != at);
                others.map(|other| shares.quota(other, limit).map_or(0, Quota::burst)).sum()
            };
            (0..verdicts.len()).map(all).collect()
        })
    }

    /// Whether share `at` may be asked for hits ahead of need. It is asked then, and again after a
    /// pause, or what [`Forecasts::asked`] says.
    pub(super) fn may_ask(&self, shares: &Arc<Shares>, at: usize, monotonic: Monotonic) -> bool {
        let may_ask = self.with(shares, |forecast| {
            let Some(known) = forecast.known.get_mut(at) else { return false };
            let may_ask = known.ask_after.is_none_or(|after| after <= monotonic);
            if may_ask {
                known.ask_after = Some(monotonic.plus(ASK_PAUSE));
            }
            may_ask
        });
        may_ask.unwrap_or(false)
    }

    /// Share `at` may be asked again after so long; at once if it has granted something.
    pub(super) fn asked(
        &self,
        shares: &Arc<Shares>,
        at: usize,
        pause: Option<Span>,
        monotonic: Monotonic,
    ) {
        self.with(shares, |forecast| {
            if let Some(known) = forecast.known.get_mut(at) {
                known.ask_after = pause.map(|pause| monotonic.plus(pause.min(ASK_PAUSE)));
            }
        });
    }

    fn with<T>(&self, shares: &Arc<Shares>, act: impl FnOnce(&mut Forecast) -> T) -> Option<T> {
        let mut slot = self.slot(&shares.whole)?.lock();
        slot.iter_mut().find(|it| Arc::ptr_eq(&it.shares, shares)).map(act)
    }

    fn slot(&self, whole: &Limits) -> Option<&Mutex<Vec<Forecast>>> {
        let at = whole.key()?.token % self.slots.len() as u64;
        self.slots.get(usize::try_from(at).unwrap_or(0))
    }
}

impl Default for Forecasts {
    fn default() -> Self {
        Self { slots: std::iter::repeat_with(Mutex::default).take(SLOTS).collect() }
    }
}

impl Forecast {
    fn new(shares: Arc<Shares>, sight: Sight, monotonic: Monotonic) -> Self {
        let known = shares.parts.iter().map(|_| Known::default()).collect();
        let pace = Pace { since: monotonic, hits: 0, before: (0, Span::ZERO) };
        Self { shares, pace, sight, sighted: monotonic, known }
    }

    /// Of the hits that are needed from `now` on, in a whole share if the window has ended by then.
    fn missing(&self, now: Timestamp, monotonic: Monotonic) -> u32 {
        let round_trips = |number| self.sight.round_trip.as_nanos().saturating_mul(number);
        let horizon = round_trips(HORIZON_ROUND_TRIPS);
        let nodes = u64::from(self.sight.nodes.max(1));
        let own = self.shares.own;
        let of_limit = |(limit, counter): (usize, &Counter)| {
            let quota = &counter.quota;
            let until = self.known.get(own).and_then(|known| known.left.get(limit));
            let until = until.map(|(_, until)| until.since(now)).filter(|left| *left > Span::ZERO);
            let window = quota.window();
            let until = until.unwrap_or(window).as_nanos();
            let reserve = round_trips(RESERVE_ROUND_TRIPS).min(until / RESERVE_DIVISOR);
            let span = until.saturating_add(reserve).min(horizon);
            let a_window = match quota.algorithm() {
                Algorithm::FixedWindow | Algorithm::FirstHitWindow => 0,
                Algorithm::SlidingWindowCounter => self.used_before(own, limit, now),
                _ => quota.limit(),
            };
            let returns = product(a_window.into(), span, window.as_nanos());
            let left = u64::from(self.left(own, limit, now)).saturating_add(returns);
            self.pace.within(Span::from_nanos(span), monotonic).saturating_sub(left / nodes)
        };
        let counters = self.shares.parts.get(own).map(|part| &part.counters);
        let missing = counters.into_iter().flatten().enumerate().map(of_limit).max();
        u32::try_from(missing.unwrap_or(0)).unwrap_or(u32::MAX)
    }

    /// The own share first, then those of which most is left; of equal ones the home.
    fn order(&self, now: Timestamp) -> SmallVec<[usize; 4]> {
        let mut order: SmallVec<[usize; 4]> = (0..self.shares.parts.len()).collect();
        let least = |at: usize| {
            let limits = 0..self.shares.whole.counters.len();
            limits.map(|limit| self.left(at, limit, now)).min().unwrap_or(0)
        };
        order.sort_by_key(|at| (*at != self.shares.own, std::cmp::Reverse(least(*at))));
        order
    }

    /// What is left of a limit of share `at`.
    fn left(&self, at: usize, limit: usize, now: Timestamp) -> u32 {
        let known = self.known.get(at).and_then(|known| known.left.get(limit));
        match known {
            Some((left, until)) if *until > now => *left,
            _ => self.shares.quota(at, limit).map_or(0, Quota::burst),
        }
    }

    /// What was used of a limit of share `at` when the window before this one ended.
    fn used_before(&self, at: usize, limit: usize, now: Timestamp) -> u32 {
        let used = self.known.get(at).and_then(|known| known.used.get(limit));
        let quota = self.shares.quota(at, limit);
        quota.zip(used).map_or(0, |(quota, used)| used.at(quota, now).before)
    }

    /// What is left of a limit in all shares but one.
    fn others(&self, but: usize, limit: usize, now: Timestamp) -> u32 {
        let others = (0..self.known.len()).filter(|at| *at != but);
        others.map(|at| self.left(at, limit, now)).fold(0, u32::saturating_add)
    }
}

impl Used {
    fn is(&mut self, used: u32, quota: &Quota, now: Timestamp) {
        *self = Self { now: used, ..self.at(quota, now) };
    }

    /// The same in the window of `now`.
    fn at(self, quota: &Quota, now: Timestamp) -> Self {
        let window = now.as_nanos() / quota.window().as_nanos().max(1);
        match window.saturating_sub(self.window) {
            0 => self,
            1 => Self { window, now: self.now, before: self.now },
            _ => Self { window, ..Self::default() },
        }
    }
}

impl Pace {
    fn turn(&mut self, monotonic: Monotonic) {
        let passed = monotonic.since(self.since);
        if passed >= PACE_INTERVAL {
            self.before = if passed < REST { (self.hits, passed) } else { (0, Span::ZERO) };
            self.hits = 0;
            self.since = monotonic;
        }
    }

    /// The hits that are checked within `span` at this rate.
    fn within(&self, span: Span, monotonic: Monotonic) -> u64 {
        let (hits, time) = self.before;
        let time = time.as_nanos().saturating_add(monotonic.since(self.since).as_nanos());
        let hits = self.hits.saturating_add(hits);
        let least = if self.before.1 == Span::ZERO { REST } else { PACE_INTERVAL };
        product(hits, span.as_nanos(), time.max(least.as_nanos()))
    }
}

/// `a * b / c`, at most `u64::MAX`.
fn product(a: u64, b: u64, c: u64) -> u64 {
    let whole = u128::from(a) * u128::from(b) / u128::from(c.max(1));
    u64::try_from(whole).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::engine::Retry;
    use tidegate_limiter::policy::{Durability, Scope};
    use tidegate_limiter::store::KeyHash;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
    const SIGHT: Sight = Sight { nodes: 3, round_trip: Span::from_millis(160) };

    fn regions() -> Arc<[String]> {
        ["eu", "us"].map(str::to_owned).to_vec().into()
    }

    /// A limit of 1,000 in ten seconds, of which each region has 500.
    fn whole(token: u64) -> Limits {
        whole_of(Algorithm::FixedWindow, token)
    }

    fn whole_of(algorithm: Algorithm, token: u64) -> Limits {
        let quota = Quota::simple(algorithm, 1_000, Span::from_secs(10));
        let key = KeyHash { token, tag: 1 };
        let counters = [Counter { key, quota: quota.expect("valid") }].into_iter().collect();
        let (scope, durability) = (Scope::Global, Durability::Async);
        Limits { scope, durability, leased: None, is_share: false, counters }
    }

    fn ms(ms: u64) -> Monotonic {
        Monotonic::START.plus(Span::from_millis(ms))
    }

    fn seen(forecasts: &Forecasts, token: u64, hits: u64, at_ms: u64) -> Seen {
        let (whole, regions) = (whole(token), regions());
        let at = (NOW.plus(Span::from_millis(at_ms)), ms(at_ms));
        let divide = || Shares::of(&whole, &regions, "eu");
        forecasts.seen(&whole, &regions, hits, at, divide, |_| SIGHT).expect("two shares")
    }

    fn verdict(remaining: u32, reset_ms: u64) -> Verdict {
        Verdict {
            allowed: true,
            limit: 500,
            remaining,
            reset: Span::from_millis(reset_ms),
            retry: Retry::Now,
            delay: Span::ZERO,
            excess: 0,
        }
    }

    #[test]
    fn hits_are_missing_when_the_share_is_used_up_within_some_round_trips() {
        let forecasts = Forecasts::default();
        // 100 a second.
        for step in 0..30 {
            assert_eq!(
                seen(&forecasts, 7, 10, step * 100).missing,
                0,
                "a share that is unused lasts"
            );
        }
        let shares = seen(&forecasts, 7, 0, 3_000).shares;
        let missing = |left: u32, reset_ms: u64| {
            let now = NOW.plus(Span::from_millis(3_000));
            forecasts.learn(&shares, shares.own, &[verdict(left, reset_ms)], 0, now);
            seen(&forecasts, 7, 0, 3_000).missing
        };
        // Within 1.28 s a node checks 128 or a few more.
        assert_eq!(missing(420, 8_000), 0);
        assert!((10..=50).contains(&missing(330, 8_000)), "{}", missing(330, 8_000));
        assert!(missing(0, 8_000) > 110);
        assert_eq!(missing(0, 0), 0, "the next window has a whole share");
        assert!((35..=50).contains(&missing(30, 500)), "the window ends before, and a reserve");
    }

    /// The own share is not enough until the window ends, 70 ms from now; a call to another region
    /// arrives in 80 ms.
    #[test]
    fn a_call_that_arrives_in_the_next_window_asks_for_what_is_missing_there() {
        let missing = |per_step: u64| {
            let forecasts = Forecasts::default();
            let at = |step: u64| seen(&forecasts, 7, per_step, step * 100).shares;
            let shares = (1..20).fold(at(0), |_, step| at(step));
            let now = NOW.plus(Span::from_millis(1_990));
            forecasts.learn(&shares, shares.own, &[verdict(3, 70)], 0, now);
            let seen = seen(&forecasts, 7, 0, 1_990);
            (seen.lasts, seen.missing)
        };
        assert_eq!(missing(10), (false, 0), "the next share lasts");
        let (lasts, needed) = missing(100);
        // 1,000 a second for 1.28 s, of 166.
        assert!(!lasts && (1_050..=1_200).contains(&needed), "{needed}");
    }

    /// Of a sliding window as much returns as was used of it in the window before.
    #[test]
    fn what_returns_to_a_sliding_window_is_what_was_used_before() {
        let forecasts = Forecasts::default();
        let (whole, regions) = (whole_of(Algorithm::SlidingWindowCounter, 7), regions());
        let look = |hits, at_ms: u64| {
            let at = (NOW.plus(Span::from_millis(at_ms)), ms(at_ms));
            let divide = || Shares::of(&whole, &regions, "eu");
            forecasts.seen(&whole, &regions, hits, at, divide, |_| SIGHT).expect("two shares")
        };
        // 100 a second; a window begins at 10 s.
        let shares = look(0, 7_000).shares;
        (71..99).for_each(|step| drop(look(10, step * 100)));
        let know = |left, at_ms: u64| {
            let now = NOW.plus(Span::from_millis(at_ms));
            forecasts.learn(&shares, shares.own, &[verdict(left, 9_000)], 0, now);
        };
        know(200, 9_899);
        let first = look(0, 9_899).missing;
        (99..103).for_each(|step| drop(look(10, step * 100)));
        know(200, 10_299);
        // 300 in ten seconds are 38 in 1.28 s, for three nodes.
        let second = look(0, 10_299).missing;
        assert!((10..=16).contains(&(first - second)), "{first} and {second}");
    }

    #[test]
    fn what_other_nodes_hold_is_taken_for_as_much_as_this_one_holds() {
        let forecasts = Forecasts::default();
        let shares = seen(&forecasts, 7, 1, 0).shares;
        forecasts.learn(&shares, shares.own, &[verdict(60, 8_000)], 20, NOW);
        let left = forecasts.with(&shares, |forecast| forecast.left(shares.own, 0, NOW));
        assert_eq!(left, Some(100));
    }

    #[test]
    fn what_is_left_elsewhere_is_all_until_it_is_known_and_when_the_window_has_ended() {
        let forecasts = Forecasts::default();
        let shares = seen(&forecasts, 7, 1, 0).shares;
        let other = 1 - shares.own;
        let others = |now| forecasts.learn(&shares, shares.own, &[verdict(9, 1_000)], 0, now);
        assert_eq!(others(NOW)[..], [500]);
        let elsewhere = forecasts.learn(&shares, other, &[verdict(40, 1_000)], 20, NOW);
        assert_eq!((&elsewhere[..], &others(NOW)[..]), (&[9][..], &[40][..]));
        assert_eq!(others(NOW.plus(Span::from_secs(1)))[..], [500]);
    }

    #[test]
    fn the_own_share_is_asked_first_and_then_the_one_with_the_most_left() {
        let (forecasts, whole) = (Forecasts::default(), whole(7));
        let regions: Arc<[String]> = ["ap", "eu", "us"].map(str::to_owned).to_vec().into();
        let order = || {
            let divide = || Shares::of(&whole, &regions, "eu");
            forecasts.seen(&whole, &regions, 1, (NOW, ms(0)), divide, |_| SIGHT)
        };
        let Some(Seen { shares, order: first, .. }) = order() else { panic!("three shares") };
        assert_eq!(first[0], shares.own);
        let (second, third) = (first[1], first[2]);
        forecasts.learn(&shares, second, &[verdict(10, 1_000)], 0, NOW);
        assert_eq!(order().map(|seen| seen.order.to_vec()), Some(vec![shares.own, third, second]));
    }

    #[test]
    fn a_share_that_had_nothing_to_grant_is_asked_again_after_a_pause_or_in_the_next_window() {
        let forecasts = Forecasts::default();
        let shares = seen(&forecasts, 7, 1, 0).shares;
        let may_ask = |at_ms| forecasts.may_ask(&shares, 1, ms(at_ms));
        assert!(may_ask(0) && !may_ask(100) && may_ask(500));
        forecasts.asked(&shares, 1, None, ms(600));
        assert!(may_ask(600), "it has granted something");
        forecasts.asked(&shares, 1, Some(Span::from_millis(30)), ms(700));
        assert!(!may_ask(720) && may_ask(730));
    }

    #[test]
    fn at_the_bound_the_key_that_rests_longest_is_forgotten() {
        let forecasts = Forecasts::default();
        let slots = SLOTS as u64;
        let first = seen(&forecasts, 0, 1, 0).shares;
        for at in 1..=WAYS as u64 {
            seen(&forecasts, at * slots, 1, at * 200);
        }
        assert!(forecasts.with(&first, |_| ()).is_none());
        assert!(Arc::ptr_eq(
            &seen(&forecasts, slots, 1, 2_000).shares,
            &seen(&forecasts, slots, 1, 2_000).shares
        ));
        let kept = forecasts.slots[0].lock().len();
        assert_eq!(kept, WAYS);
    }
}

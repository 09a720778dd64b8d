//! Which sources ask for many times their limit, and have done so for some time.
//!
//! # Idea
//!
//! A source that asks for `factor` times a limit has `factor − 1` times the limit refused, for what
//! is admitted is the limit at most. So only refusals are looked at. Each limit has a *threshold*,
//! in refused hits a second:
//!
//! ```text
//! threshold = max((factor − 1) · limit / window, refused_per_second_min)
//! ```
//!
//! As the buckets do ([ADR 2](../../docs/adr/0002-buckets-store-one-instant.md)), a source stores
//! how long its refused hits last when they drain at the threshold: each adds `1 / threshold`, and
//! at most a quarter of `after` is kept, so that one burst does not count as demand that goes on.
//! The demand is above the threshold from the first refused hit until they have drained; a source
//! is blocked, for `block_for`, once that has been so for `after`.
//!
//! Then of any stretch of length *s* within these `after` at least `(s − after / 4) · threshold`
//! hits were refused; and a source of which `threshold` a second are refused without pauses of more
//! than a quarter of `after` is blocked.
//!
//! # Example
//!
//! 100 a minute, `factor = 10`, `refused_per_second_min = 10`, `after = 10s`: nine times the limit
//! are 15 refused hits a second. A source that sends 17 a second is refused from the sixth second
//! of its first minute on, and blocked ten seconds later. One that sends 1,000 at once and is then
//! silent is above the threshold for 2.5 s, and is not blocked.
//!
//! # Bound
//!
//! [`SOURCES_MAX`] counters of sources are watched, in sets of [`WAYS`] that the hash of the
//! counter selects. A source keeps its place while its demand is above the threshold, or it is
//! blocked. One whose set is full of such others is not watched; it is counted, and may be watched
//! later. So no source is ever blocked for the demand of another, and sources that come and go
//! displace none.

use std::iter;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_limiter::quota::Quota;
use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::{NANOS_PER_SEC, Span, Timestamp};

use super::source_net::SourceNet;

/// Most counters of sources that are watched; some 6 MB.
pub const SOURCES_MAX: usize = SETS * WAYS;
const SETS: usize = 8_192;
const WAYS: usize = 8;

/// When a source is blocked; see [`crate::config::BlockedSources`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Threshold {
    pub(super) factor: u32,
    pub(super) after: Span,
    pub(super) refused_per_second_min: u32,
    pub(super) block_for: Span,
}

#[derive(Debug)]
pub(super) struct SourceWatch {
    threshold: Threshold,
    sets: Box<[Mutex<[Option<Watched>; WAYS]>]>,
}

/// A source, as it is counted by one limit.
#[derive(Debug)]
struct Watched {
    key: KeyHash,
    source: SourceNet,
    /// The rule of the limit.
    rule: Arc<str>,
    /// Since when its demand is above the threshold.
    since: Timestamp,
    /// When its refused hits have drained.
    drained: Timestamp,
    /// When it is not blocked any more.
    until: Timestamp,
}

/// A source that is blocked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Blocked {
    pub source: SourceNet,
    pub until: Timestamp,
    /// Id of the rule whose limit it was over.
    pub rule: Arc<str>,
}

/// What a refusal has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// The source was not blocked, and is.
    Blocked,
    /// It is blocked for longer.
    Extended,
    /// It is not watched: its set is full.
    NoRoom,
}

impl Threshold {
    /// For how long `hits` refused hits of `quota` last.
    pub(super) fn weight(&self, quota: &Quota, hits: u64) -> Span {
        let hits = u128::from(hits);
        let at_min = hits * u128::from(NANOS_PER_SEC) / u128::from(self.refused_per_second_min);
        let excess = u128::from(self.factor - 1) * u128::from(quota.limit());
        let at_factor = (hits * u128::from(quota.window().as_nanos())).checked_div(excess);
        let nanos = at_min.min(at_factor.unwrap_or(u128::MAX));
        Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The most that the refused hits of a source may last.
    fn burst(&self) -> Span {
        Span::from_nanos(self.after.as_nanos() / 4)
    }
}

impl SourceWatch {
    pub(super) fn new(threshold: Threshold) -> Self {
        let sets = iter::repeat_with(Mutex::default).take(SETS).collect();
        Self { threshold, sets }
    }

    pub(super) fn threshold(&self) -> &Threshold {
        &self.threshold
    }

    /// Hits that last for `weight` were refused to `source` by the counter `key`, of a limit of
    /// `rule`.
    ///
    /// `key` is a keyed hash of the counter, so that clients cannot aim at one set.
    pub(super) fn refused(
        &self,
        key: KeyHash,
        source: SourceNet,
        rule: &Arc<str>,
        weight: Span,
        now: Timestamp,
    ) -> Change {
        let Threshold { after, block_for, .. } = self.threshold;
        let set = (key.token ^ key.tag) % SETS as u64;
        let mut set = self.sets[usize::try_from(set).unwrap_or(0)].lock();
        let is_it = |it: &Watched| it.key == key && it.source == source;
        let place = set.iter().position(|it| it.as_ref().is_some_and(is_it));
        let is_free = |it: &Option<Watched>| it.as_ref().is_none_or(|it| it.is_idle(now));
        let Some(place) = place.or_else(|| set.iter().position(is_free)) else {
            return Change::NoRoom;
        };
        let place = &mut set[place];
        let watched = match place {
            Some(watched) if is_it(watched) => watched,
            free => free.insert(Watched {
                key,
                source,
                rule: rule.clone(),
                since: now,
                drained: now,
                until: Timestamp::EPOCH,
            }),
        };
        if watched.drained < now {
            (watched.since, watched.drained) = (now, now);
        }
        watched.drained = watched.drained.plus(weight).min(now.plus(self.threshold.burst()));
        let left = watched.until.since(now);
        // It is extended in time for those who follow, and not with each refusal.
        if now.since(watched.since) < after || left.as_nanos() > block_for.as_nanos() / 2 {
            return Change::None;
        }
        watched.until = now.plus(block_for);
        if left.is_zero() { Change::Blocked } else { Change::Extended }
    }

    /// The sources that are blocked, by address; each once.
    pub(super) fn blocked(&self, now: Timestamp) -> Vec<Blocked> {
        let mut blocked = Vec::new();
        for set in &self.sets {
            let set = set.lock();
            blocked.extend(set.iter().flatten().filter(|it| it.until > now).map(|it| Blocked {
                source: it.source,
                until: it.until,
                rule: it.rule.clone(),
            }));
        }
        // Of several counters of a source the one that holds for longest.
        blocked.sort_unstable_by(|a, b| (a.source, b.until).cmp(&(b.source, a.until)));
        blocked.dedup_by_key(|it| it.source);
        blocked
    }
}

impl Watched {
    /// Whether its place may be given to another source.
    fn is_idle(&self, now: Timestamp) -> bool {
        self.drained < now && self.until <= now
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_limiter::quota::Algorithm;

    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_700_000_040);
    const THRESHOLD: Threshold = Threshold {
        factor: 10,
        after: Span::from_secs(10),
        refused_per_second_min: 10,
        block_for: Span::from_secs(60),
    };
    const MILLIS: u64 = 1_000_000;

    fn quota(limit: u32, window: Span) -> Quota {
        Quota::simple(Algorithm::FixedWindow, limit, window).unwrap()
    }

    fn source(number: u32) -> SourceNet {
        SourceNet::V4(std::net::Ipv4Addr::from_bits(number))
    }

    fn key(number: u64) -> KeyHash {
        KeyHash { token: number, tag: 0 }
    }

    fn at(millis: u64) -> Timestamp {
        START.plus(Span::from_millis(millis))
    }

    /// Sends hits refused by `quota` every `every` ms from `from` to `to`; when it was blocked.
    fn send(
        watch: &SourceWatch,
        quota: &Quota,
        hits: u64,
        every: u64,
        span: std::ops::Range<u64>,
    ) -> Option<u64> {
        let weight = watch.threshold().weight(quota, hits);
        let rule: Arc<str> = "edge.remote_address".into();
        span.step_by(usize::try_from(every).unwrap()).find(|millis| {
            watch.refused(key(1), source(1), &rule, weight, at(*millis)) == Change::Blocked
        })
    }

    #[test]
    fn a_source_far_over_its_limit_is_blocked_after_the_time() {
        // 15 refused hits a second are nine times 100 a minute.
        let quota = quota(100, Span::from_secs(60));
        let watch = SourceWatch::new(THRESHOLD);
        assert_eq!(send(&watch, &quota, 1, 60, 0..60_000), Some(10_020));
        assert_eq!(watch.blocked(at(10_020)).len(), 1);
        assert_eq!(watch.blocked(at(70_019)).len(), 1);
        assert_eq!(watch.blocked(at(70_020)), []);
    }

    #[test]
    fn a_source_below_the_factor_is_never_blocked() {
        let quota = quota(100, Span::from_secs(60));
        assert_eq!(send(&SourceWatch::new(THRESHOLD), &quota, 1, 70, 0..600_000), None);
    }

    #[test]
    fn a_burst_is_not_demand_that_goes_on() {
        let quota = quota(100, Span::from_secs(60));
        let watch = SourceWatch::new(THRESHOLD);
        assert_eq!(send(&watch, &quota, 1_000_000, 1, 0..1), None);
        // A second one comes after the first has drained.
        assert_eq!(send(&watch, &quota, 1_000_000, 2_501, 2_501..60_000), None);
        // In time, they are demand.
        assert_eq!(send(&watch, &quota, 1_000_000, 2_499, 100_000..160_000), Some(112_495));
    }

    #[test]
    fn a_small_limit_is_no_reason_to_block() {
        for limit in [0, 1] {
            let quota = quota(limit, Span::from_secs(3_600));
            let watch = SourceWatch::new(THRESHOLD);
            assert_eq!(send(&watch, &quota, 1, 110, 0..600_000), None);
            assert!(send(&watch, &quota, 1, 100, 600_000..1_200_000).is_some());
        }
    }

    #[test]
    fn a_block_is_extended_at_half_of_its_time_while_the_demand_goes_on() {
        let quota = quota(100, Span::from_secs(60));
        let watch = SourceWatch::new(THRESHOLD);
        assert_eq!(send(&watch, &quota, 1, 60, 0..60_000), Some(10_020));
        let weight = THRESHOLD.weight(&quota, 1);
        let rule: Arc<str> = "r".into();
        let changes = (10_080..100_000).step_by(60).filter_map(|millis| {
            match watch.refused(key(1), source(1), &rule, weight, at(millis)) {
                Change::None => None,
                change => Some((millis, change)),
            }
        });
        let changes: Vec<(u64, Change)> = changes.collect();
        let extended = |millis| (millis, Change::Extended);
        assert_eq!(changes, [extended(40_020), extended(70_020)]);
        assert_eq!(watch.blocked(at(130_019)).len(), 1);
    }

    #[test]
    fn limits_of_a_source_are_watched_apart_and_listed_once() {
        let watch = SourceWatch::new(THRESHOLD);
        let weight = Span::from_nanos(100 * MILLIS);
        for (number, rule, from) in [(1, "a", 0), (2, "b", 5_000)] {
            for millis in (from..from + 10_100).step_by(100) {
                watch.refused(key(number), source(7), &rule.into(), weight, at(millis));
            }
        }
        let listed = watch.blocked(at(15_200));
        let expected = Blocked { source: source(7), until: at(75_000), rule: "b".into() };
        assert_eq!(listed, [expected]);
        // Half of the demand on each of two limits is not the demand on one.
        let watch = SourceWatch::new(THRESHOLD);
        for millis in (0..60_000).step_by(200) {
            for number in [1, 2] {
                watch.refused(key(number), source(7), &"a".into(), weight, at(millis));
            }
        }
        assert_eq!(watch.blocked(at(60_000)), []);
    }

    #[test]
    fn sources_of_a_full_set_keep_their_places() {
        let watch = SourceWatch::new(THRESHOLD);
        let weight = Span::from_nanos(100 * MILLIS);
        let same_set = |number: u64| key(number * SETS as u64);
        let send = |number: u32, millis| {
            let key = same_set(u64::from(number));
            watch.refused(key, source(number), &"r".into(), weight, at(millis))
        };
        for millis in (0..20_000).step_by(100) {
            for number in 0..8 {
                assert_ne!(send(number, millis), Change::NoRoom);
            }
            for number in 8..20 {
                assert_eq!(send(number, millis), Change::NoRoom);
            }
        }
        assert_eq!(watch.blocked(at(20_000)).len(), 8);
        // Their places are free once they are neither above the threshold nor blocked.
        assert_eq!(send(9, 69_900), Change::NoRoom);
        assert_eq!(send(9, 70_001), Change::None);
    }

    #[test]
    fn ten_thousand_sources_are_blocked_at_once() {
        let watch = SourceWatch::new(THRESHOLD);
        let weight = Span::from_secs(1);
        let hash = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        for millis in (0..=10_000).step_by(1_000) {
            for number in 0..10_000 {
                let key = KeyHash { token: hash(number.into()), tag: hash(7) };
                watch.refused(key, source(number), &"r".into(), weight, at(millis));
            }
        }
        assert_eq!(watch.blocked(at(10_000)).len(), 10_000);
    }

    proptest! {
        /// What blocked a source was demand above the threshold in every stretch of the time, but
        /// for a quarter of it.
        #[test]
        fn what_is_blocked_was_above_the_threshold(
            pauses in prop::collection::vec((0_u64..2_600, 1_u64..100), 1..400),
            limit in 1_u32..2_000,
        ) {
            let quota = quota(limit, Span::from_secs(60));
            let watch = SourceWatch::new(THRESHOLD);
            let rule: Arc<str> = "r".into();
            let per_second =
                (9.0 * f64::from(limit) / 60.0).max(THRESHOLD.refused_per_second_min.into());
            let mut sent: Vec<(u64, u64)> = Vec::new();
            let mut now = 0;
            for (pause, hits) in pauses {
                now += pause;
                sent.push((now, hits));
                let weight = THRESHOLD.weight(&quota, hits);
                if watch.refused(key(1), source(1), &rule, weight, at(now)) != Change::Blocked {
                    continue;
                }
                let begin = now.saturating_sub(10_000);
                prop_assert!(now >= 10_000);
                for from in (begin..now).step_by(500) {
                    for to in (from + 500..=now).step_by(500) {
                        let in_it = sent.iter().filter(|(at, _)| (from..=to).contains(at));
                        let hits: u64 = in_it.map(|(_, hits)| hits).sum();
                        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                        let least = ((to - from) as f64 / 1_000.0 - 2.5) * per_second;
                        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                        let hits = hits as f64;
                        prop_assert!(hits + 0.01 >= least, "{hits} < {least} in {from}..={to}");
                    }
                }
                break;
            }
        }

        /// A steady demand at the threshold or above is found after the time, whatever the limit.
        #[test]
        fn what_stays_above_the_threshold_is_blocked(
            limit in 0_u32..100_000,
            window in 1_u64..100_000,
            every in 1_u64..2_400,
        ) {
            let quota = quota(limit, Span::from_secs(window));
            let watch = SourceWatch::new(THRESHOLD);
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let per_second = (9.0 * f64::from(limit) / window as f64).max(10.0);
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            #[expect(clippy::cast_possible_truncation, reason = "small numbers")]
            #[expect(clippy::cast_sign_loss, reason = "small numbers")]
            let hits = (per_second * every as f64 / 1_000.0).ceil() as u64 + 1;
            let blocked = send(&watch, &quota, hits, every, 0..10_000 + 2 * every);
            prop_assert!(blocked.is_some_and(|at| (10_000..10_000 + every).contains(&at)));
        }
    }
}

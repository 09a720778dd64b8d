//! From a request to the limit that it carries, and from the verdict to the response.
//!
//! # Which limit
//!
//! | request | here |
//! |---|---|
//! | `TOKEN_BUCKET` | [`first_hit_window`](tidegate_limiter::engine::first_hit_window) |
//! | `LEAKY_BUCKET` | [`token_bucket`] of `burst`, or of `limit` if that is 0 |
//! | `DURATION_IS_GREGORIAN` | the same for each interval of the calendar by itself |
//! | `duration` 0 | nothing is kept: each request has the whole limit |
//!
//! A window counts under name and key alone: a limit or a duration that changes applies to the
//! hits that were counted. A bucket with another `limit`, `burst` or `duration` is another bucket,
//! which begins full, and is as it was left when the first numbers come back: the instant that is
//! stored of it does not tell how many tokens there were at another rate.
//!
//! A bucket of less than a second is the same rate over a longer time:
//!
//! ```text
//! k = ⌈1000 / duration⌉        limit · k per duration · k ms, with the same burst
//! ```
//!
//! *Example*: 10 per 300 ms with a burst of 10 is 40 per 1,200 ms with a burst of 10.
//!
//! # Reset times
//!
//! ```text
//! window     its end; duration from now if none is open
//! interval   its last millisecond
//! blocked    the end of the block, if it has one
//! bucket     at + (burst − remaining) · duration / limit       at: created_at, or now
//! ```
//!
//! With [`Settings::quirks`] a bucket's is computed as there: `limit` in place of `burst`, and
//! `duration / limit` cut to whole milliseconds.
//!
//! # Bounds
//!
//! | field | range | beyond |
//! |---|---|---|
//! | `hits` | ±4,294,967,295 | as the nearest |
//! | `limit` of a window | 0 to 4,294,901,760, so that its credit fits, too | as the nearest |
//! | of a bucket, `burst` | 0 to 4,294,967,295; it drains within 100 years | as the nearest |
//! | `limit · k` of a bucket | 0 to 4,294,967,295 | as the nearest: it fills more slowly |
//! | `duration` | 0 to 400 days | as 400 days; an error below 0 |
//! | `created_at` of a bucket | 1 s before to 3 min after now | as the nearest |
//! | `algorithm`, kind of interval | those that there are | an error |
//!
//! An error about a number is a response of `OVER_LIMIT`, so that a client that does not read
//! errors is not admitted. The two errors about names are as there.
//!
//! [`token_bucket`]: tidegate_limiter::engine::token_bucket

use jiff::tz::TimeZone;
use tidegate_limiter::engine::first_hit_window::CREDIT_MAX;
use tidegate_limiter::engine::{Behavior, Verdict};
use tidegate_limiter::quota::{Algorithm, DRAIN_MAX, Quota, QuotaParts, WINDOW_MAX, WINDOW_MIN};
use tidegate_limiter::units::{Hits, Span, Timestamp};
use tidegate_proto::gubernator::{self, RateLimitReq, RateLimitResp, Status};

use super::calendar::Interval;
use crate::decide::{CarriedCheck, CarriedVerdict, VerdictSource};

/// How requests are read.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Of the calendar.
    pub zone: TimeZone,
    /// Reset times of buckets are those of Gubernator.
    pub quirks: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { zone: TimeZone::UTC, quirks: false }
    }
}

/// What a request asks for.
#[derive(Debug)]
pub enum Asked<'a> {
    Check(CarriedCheck<'a>, Shown),
    /// It needs no counter.
    Answer(RateLimitResp),
}

/// What the response to a check needs of its request.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    form: Form,
    limit: u32,
    hits: Hits,
    resets: bool,
}

impl Shown {
    /// Whether the request is over its limit. A look is not, also where a limit was lowered below
    /// what is used; what the fallback denies is, and what an operator has blocked.
    pub fn is_over(&self, decided: &CarriedVerdict) -> bool {
        let is_denied = matches!(decided.source, VerdictSource::Fallback | VerdictSource::Blocked);
        let is_look = self.hits == Hits::PEEK && !is_denied;
        !decided.verdict.allowed && !is_look
    }
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Window { duration: Span },
    Interval { last: i64 },
    Bucket { at: Option<Timestamp>, size: u32, duration: Span, quirks: bool },
}

const NANOS_PER_MILLI: u64 = 1_000_000;
/// Largest limit of a window: with what may be given back beyond it, all hits can be counted.
const WINDOW_LIMIT_MAX: u32 = u32::MAX - CREDIT_MAX as u32;
/// How much earlier than now a `created_at` may be: the time that a request may take to get here.
const BEHIND_MAX: Span = Span::from_secs(1);
/// How much later it may be.
const AHEAD_MAX: Span = Span::from_secs(180);

mod flag {
    use tidegate_proto::gubernator::Behavior;

    pub(super) const GLOBAL: i32 = Behavior::Global as i32;
    pub(super) const GREGORIAN: i32 = Behavior::DurationIsGregorian as i32;
    pub(super) const RESET: i32 = Behavior::ResetRemaining as i32;
    pub(super) const DRAIN: i32 = Behavior::DrainOverLimit as i32;
}

/// Whether `request` is to be decided from granted hits.
pub const fn is_global(request: &RateLimitReq) -> bool {
    request.behavior & flag::GLOBAL != 0
}

/// What `request` asks for at `now`.
pub fn asked<'a>(request: &'a RateLimitReq, settings: &Settings, now: Timestamp) -> Asked<'a> {
    match read(request, settings, now) {
        Ok(asked) => asked,
        Err(error) => Asked::Answer(error.into()),
    }
}

/// Why a request is not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Error {
    #[error("field 'unique_key' cannot be empty")]
    NoKey,
    #[error("field 'namespace' cannot be empty")]
    NoName,
    #[error("field 'algorithm' must be TOKEN_BUCKET or LEAKY_BUCKET, not {0}")]
    Algorithm(i32),
    #[error("field 'duration' must not be below 0")]
    Duration,
    #[error("field 'duration' must be 0 to 5 with DURATION_IS_GREGORIAN, not {0}")]
    Interval(i64),
}

impl From<Error> for RateLimitResp {
    fn from(error: Error) -> Self {
        let mut response = Self { error: error.to_string(), ..Self::default() };
        if !matches!(error, Error::NoKey | Error::NoName) {
            response.set_status(Status::OverLimit);
        }
        response
    }
}

fn read<'a>(
    request: &'a RateLimitReq,
    settings: &Settings,
    now: Timestamp,
) -> Result<Asked<'a>, Error> {
    let RateLimitReq { name, unique_key, behavior, .. } = request;
    if unique_key.is_empty() {
        return Err(Error::NoKey);
    }
    if name.is_empty() {
        return Err(Error::NoName);
    }
    let is_bucket = match gubernator::Algorithm::try_from(request.algorithm) {
        Ok(gubernator::Algorithm::TokenBucket) => false,
        Ok(gubernator::Algorithm::LeakyBucket) => true,
        Err(_) => return Err(Error::Algorithm(request.algorithm)),
    };
    let has = |flag| behavior & flag != 0;
    let interval = if has(flag::GREGORIAN) {
        let kind = request.duration;
        Some(Interval::around(kind, now, &settings.zone).ok_or(Error::Interval(kind))?)
    } else {
        None
    };
    let duration = match &interval {
        Some(interval) => interval.length(),
        None => Span::from_millis(u64::try_from(request.duration).map_err(|_| Error::Duration)?),
    };
    let duration = duration.min(WINDOW_MAX);
    let limit_max = if is_bucket { u32::MAX } else { WINDOW_LIMIT_MAX };
    let (limit, hits) = (narrow(request.limit).min(limit_max), bounded(request.hits));
    let size = if is_bucket && request.burst > 0 { narrow(request.burst) } else { limit };
    if duration.is_zero() {
        // A bucket is never more than full.
        let hits = if is_bucket { hits.max(Hits::PEEK) } else { hits };
        return Ok(Asked::Answer(uncounted(limit, size, hits, now)));
    }
    // Of what nodes hold of a leased limit none is given back that was not spent.
    let credits = hits.refund() > 0 && !is_bucket && !is_global(request);
    let behavior = Behavior { drains: has(flag::DRAIN), credits };
    let resets = has(flag::RESET);
    // 0 is what clients send that fill every field: now.
    let created_at = request.created_at.filter(|at| is_bucket && *at != 0);
    let at = created_at.map(|millis| {
        let nanos = u64::try_from(millis).unwrap_or(0).saturating_mul(NANOS_PER_MILLI);
        Timestamp::from_nanos(nanos).clamp(now.minus(BEHIND_MAX), now.plus(AHEAD_MAX))
    });
    let quota = if is_bucket { bucket(limit, size, duration) } else { window(limit, duration) };
    let quota = quota.ok_or(Error::Duration)?;
    let of_time = match &interval {
        // Of two kinds some begin at one instant.
        Some(interval) => [interval.begins.as_nanos(), request.duration.unsigned_abs()],
        None if is_bucket => [0, duration.as_nanos()],
        None => [0, 0],
    };
    let rate = if is_bucket { u64::from(limit) << 32 | u64::from(size) } else { 0 };
    let part = [of_time[0], of_time[1], rate];
    let form = match interval {
        _ if is_bucket => Form::Bucket {
            at,
            size: if settings.quirks { limit } else { quota.burst() },
            duration,
            quirks: settings.quirks,
        },
        Some(interval) => Form::Interval { last: millis(interval.ends).saturating_sub(1) },
        None => Form::Window { duration },
    };
    let check = CarriedCheck {
        name,
        unique_key,
        part,
        quota,
        hits,
        behavior,
        at,
        resets,
        is_leased: is_global(request),
    };
    Ok(Asked::Check(check, Shown { form, limit, hits, resets: resets && !is_bucket }))
}

fn window(limit: u32, window: Span) -> Option<Quota> {
    Quota::simple(Algorithm::FirstHitWindow, limit, window).ok()
}

/// A bucket of `size` that gets `limit` per `duration`.
fn bucket(limit: u32, size: u32, duration: Span) -> Option<Quota> {
    let algorithm = Algorithm::TokenBucket;
    let times = WINDOW_MIN.as_nanos().div_ceil(duration.as_nanos().max(1));
    let window = Span::from_nanos(duration.as_nanos().saturating_mul(times));
    let limit = u32::try_from(u64::from(limit).saturating_mul(times)).unwrap_or(u32::MAX);
    // What drains within the longest time.
    let most = u128::from(limit) * u128::from(DRAIN_MAX.as_nanos()) / u128::from(window.as_nanos());
    let burst = if limit == 0 { 0 } else { size.min(u32::try_from(most).unwrap_or(u32::MAX)) };
    Quota::new(QuotaParts { algorithm, limit, window, burst, sub_windows: 1, queue: None }).ok()
}

/// The response to a request whose window ends at once.
fn uncounted(limit: u32, size: u32, hits: Hits, now: Timestamp) -> RateLimitResp {
    let is_over = hits.charge() > u64::from(size);
    let left = if is_over { i64::from(size) } else { i64::from(size) - hits.get() };
    let mut response = RateLimitResp {
        limit: i64::from(limit),
        remaining: left.min(i64::from(u32::MAX)),
        reset_time: millis(now),
        ..RateLimitResp::default()
    };
    response.set_status(if is_over { Status::OverLimit } else { Status::UnderLimit });
    response
}

/// The response to a check.
pub fn response(shown: &Shown, decided: &CarriedVerdict) -> RateLimitResp {
    let Shown { form, limit, hits, resets } = *shown;
    let CarriedVerdict { verdict, now, owner, source } = decided;
    // What `on_unavailable` answers has reset nothing.
    let is_decided = *source != VerdictSource::Fallback;
    let was_reset = resets && is_decided && verdict.reset.is_zero() && verdict.allowed;
    let reset_time = match form {
        _ if was_reset => 0,
        _ if *source == VerdictSource::Blocked && !verdict.reset.is_zero() => {
            millis(now.plus(verdict.reset))
        }
        Form::Interval { last } => last,
        Form::Window { duration } if verdict.reset.is_zero() => millis(now.plus(duration)),
        Form::Window { .. } => millis(now.plus(verdict.reset)),
        Form::Bucket { at, size, duration, quirks } => {
            // A remembered refusal is about other hits, and `on_unavailable` has found none.
            let left = match source {
                VerdictSource::NegativeCache | VerdictSource::Fallback => verdict.remaining,
                _ => left_before_drain(verdict, hits),
            };
            let left = i64::from(left);
            let missing = i128::from(i64::from(size) - left);
            let missing = missing * i128::from(duration.as_nanos() / NANOS_PER_MILLI);
            let limit = i128::from(limit.max(1));
            let missing = if quirks {
                (i128::from(i64::from(size) - left))
                    * (i128::from(duration.as_nanos() / NANOS_PER_MILLI) / limit)
            } else {
                missing.max(0) / limit
            };
            // Hits as of later than now fill the bucket until then, beyond what is missing of it.
            let full = i128::from(size) * i128::from(duration.as_nanos()) / limit;
            let ahead = i128::from(verdict.reset.as_nanos()) - full;
            let ahead = if quirks { 0 } else { ahead.max(0) / i128::from(NANOS_PER_MILLI) };
            let from = i128::from(millis(at.unwrap_or(*now)));
            i64::try_from(from + missing + ahead).unwrap_or(i64::MAX)
        }
    };
    let mut response = RateLimitResp {
        limit: i64::from(limit),
        remaining: i64::from(verdict.remaining),
        reset_time,
        ..RateLimitResp::default()
    };
    response.set_status(if shown.is_over(decided) {
        Status::OverLimit
    } else {
        Status::UnderLimit
    });
    if let Some(owner) = owner {
        response.metadata.insert("owner".to_owned(), owner.to_string());
    }
    response
}

/// What a refused request found, before it took what was left.
fn left_before_drain(verdict: &Verdict, hits: Hits) -> u32 {
    if verdict.allowed {
        return verdict.remaining;
    }
    let found = hits.charge().saturating_sub(u64::from(verdict.excess));
    u32::try_from(found).unwrap_or(u32::MAX).max(verdict.remaining)
}

fn narrow(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

fn bounded(hits: i64) -> Hits {
    let most = i64::from(u32::MAX);
    Hits::new(hits.clamp(-most, most))
}

fn millis(at: Timestamp) -> i64 {
    i64::try_from(at.as_nanos() / NANOS_PER_MILLI).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::engine::Retry;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
    const HOUR: i64 = 3_600_000;

    fn of_ten(algorithm: gubernator::Algorithm, hits: i64, duration: i64) -> RateLimitReq {
        let (name, unique_key) = ("name".to_owned(), "key".to_owned());
        let (limit, algorithm) = (10, algorithm as i32);
        let other = RateLimitReq::default();
        RateLimitReq { name, unique_key, hits, limit, duration, algorithm, ..other }
    }

    #[test]
    fn the_bucket_of_a_refusal_that_was_not_decided_is_as_empty_as_it_says() {
        let seven = of_ten(gubernator::Algorithm::LeakyBucket, 7, HOUR);
        let Asked::Check(_, shown) = asked(&seven, &Settings::default(), NOW) else {
            panic!("it needs a counter");
        };
        let (wait, reset) = (Span::from_secs(360), Span::from_secs(3_600));
        // That one hit was too many is all that is remembered.
        let verdict = Verdict {
            allowed: false,
            limit: 10,
            remaining: 0,
            reset,
            retry: Retry::After(wait),
            delay: Span::ZERO,
            excess: 1,
        };
        let unavailable = Verdict { reset: Span::from_secs(1), excess: 0, ..verdict };
        for (source, verdict) in
            [(VerdictSource::NegativeCache, verdict), (VerdictSource::Fallback, unavailable)]
        {
            let decided = CarriedVerdict { verdict, now: NOW, owner: None, source };
            assert_eq!(response(&shown, &decided).reset_time, millis(NOW) + HOUR, "{source:?}");
        }
    }

    #[test]
    fn hits_of_a_client_that_fills_every_field_come_now() {
        let shown = |created_at: Option<i64>| {
            let leaky = of_ten(gubernator::Algorithm::LeakyBucket, 1, HOUR);
            let request = RateLimitReq { created_at, ..leaky };
            let Asked::Check(_, shown) = asked(&request, &Settings::default(), NOW) else {
                panic!("it needs a counter");
            };
            format!("{shown:?}")
        };
        assert_eq!(shown(Some(0)), shown(None));
        assert_ne!(shown(Some(1)), shown(None), "as the earliest time");
    }

    /// Its client sends it again only if it can tell that nothing was reset.
    #[test]
    fn a_reset_that_no_owner_has_done_does_not_look_like_one() {
        let mut request = of_ten(gubernator::Algorithm::TokenBucket, 0, HOUR);
        request.behavior = gubernator::Behavior::ResetRemaining as i32;
        let Asked::Check(_, shown) = asked(&request, &Settings::default(), NOW) else {
            panic!("it needs a counter");
        };
        let verdict = Verdict {
            allowed: true,
            limit: 10,
            remaining: 10,
            reset: Span::ZERO,
            retry: Retry::Now,
            delay: Span::ZERO,
            excess: 0,
        };
        for (source, expected) in
            [(VerdictSource::Owner, 0), (VerdictSource::Fallback, millis(NOW) + HOUR)]
        {
            let decided = CarriedVerdict { verdict, now: NOW, owner: None, source };
            assert_eq!(response(&shown, &decided).reset_time, expected);
        }
    }

    #[test]
    fn a_bucket_is_never_more_than_full_without_a_duration_too() {
        use gubernator::Algorithm::{LeakyBucket, TokenBucket};
        for (algorithm, remaining) in [(TokenBucket, 11), (LeakyBucket, 10)] {
            let request = of_ten(algorithm, -1, 0);
            let Asked::Answer(answer) = asked(&request, &Settings::default(), NOW) else {
                panic!("it needs no counter");
            };
            assert_eq!(answer.remaining, remaining);
        }
    }
}

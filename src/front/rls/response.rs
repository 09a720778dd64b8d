//! From [`CheckResponse`] to `RateLimitResponse`.
//!
//! With `envoy.response_headers`, `response_headers_to_add` has three headers that Envoy adds to
//! the response of the client, and for rules that envoyproxy/ratelimit does not have a fourth. They
//! describe the last descriptor that refuses the request, else the first of those with the least
//! remaining. Example: 20 a minute with 17 remaining and 10 an hour with 3 remaining, 800 s before
//! the hour ends:
//!
//! ```text
//! RateLimit-Limit: 10
//! RateLimit-Remaining: 3
//! RateLimit-Reset: 800
//! ```
//!
//! A fixed window of one unit has its whole limit available again when it next admits a request.
//! Other rules may admit one earlier: a refusal by one of them has `Retry-After` too.
//!
//! Source: envoyproxy/ratelimit, `src/service/ratelimit.go`, `shouldRateLimitWorker`.

use tidegate_limiter::quota::Algorithm;
use tidegate_limiter::units::Span;
use tidegate_proto::rls::{
    Code, DescriptorStatus, Duration, HeaderValue, RateLimit, RateLimitRequest, RateLimitResponse,
    Unit,
};
use tidegate_rules::rule::Rule;

use super::dynamic_metadata::{dynamic_metadata, soft_limits};
use crate::config::Envoy;
use crate::decide::{CheckResponse, Status};

/// The header by which envoyproxy/ratelimit#1215 signals a soft limit, as it is written there.
const SOFT_BREACH: &str = "x-ratelimit-soft-breach";

/// The whole response to `request`, with the optional parts that `envoy` enables.
pub(super) fn envoy_response(
    request: &RateLimitRequest,
    answer: &CheckResponse,
    envoy: &Envoy,
) -> RateLimitResponse {
    let mut response = response(answer);
    if envoy.response_headers {
        response.response_headers_to_add = headers(answer, &response.statuses, envoy);
    }
    if envoy.dynamic_metadata {
        let rest = response.dynamic_metadata.take().unwrap_or_default();
        let mut metadata = dynamic_metadata(request, answer);
        metadata.fields.extend(rest.fields);
        response.dynamic_metadata = Some(metadata);
    }
    if answer.is_soft_limited() {
        let breach = || HeaderValue { key: SOFT_BREACH.into(), value: "1".into() };
        response.response_headers_to_add.push(breach());
        response.request_headers_to_add.push(breach());
    }
    response
}

/// The verdict and the statuses, one per descriptor.
///
/// As in envoyproxy/ratelimit, a descriptor that no rule matches is `OK` and has no other field,
/// and an unlimited one has the largest number remaining.
pub fn response(answer: &CheckResponse) -> RateLimitResponse {
    RateLimitResponse {
        overall_code: code(answer.allowed),
        statuses: answer.statuses.iter().map(descriptor_status).collect(),
        dynamic_metadata: soft_limits(answer),
        ..RateLimitResponse::default()
    }
}

fn code(allowed: bool) -> i32 {
    if allowed { Code::Ok.into() } else { Code::OverLimit.into() }
}

fn descriptor_status(status: &Status) -> DescriptorStatus {
    let code = code(status.allowed);
    let Some(rule) = status.rule.as_deref() else {
        return DescriptorStatus { code, ..DescriptorStatus::default() };
    };
    let (Some(verdict), Some(index)) = (status.leading_verdict(), status.leading) else {
        return DescriptorStatus { code, limit_remaining: u32::MAX, ..DescriptorStatus::default() };
    };
    let unit = rule.limits.get(index).map_or(Unit::Unknown, |quota| unit(quota.window()));
    DescriptorStatus {
        code,
        current_limit: Some(RateLimit {
            requests_per_unit: verdict.limit,
            unit: unit.into(),
            name: rule.name.as_deref().unwrap_or_default().to_owned(),
        }),
        limit_remaining: verdict.remaining,
        duration_until_reset: Some(whole_seconds(verdict.reset)),
    }
}

/// Rounded up: envoyproxy/ratelimit sends whole seconds, and Envoy cuts a fraction off, which would
/// make the time too early.
fn whole_seconds(span: Span) -> Duration {
    Duration { seconds: i64::try_from(span.as_secs_ceil()).unwrap_or(i64::MAX), nanos: 0 }
}

// === response headers ===

fn headers(
    answer: &CheckResponse,
    statuses: &[DescriptorStatus],
    envoy: &Envoy,
) -> Vec<HeaderValue> {
    let Some((status, wire)) = most_restrictive(answer, statuses, envoy) else { return Vec::new() };
    let Some(limit) = &wire.current_limit else { return Vec::new() };
    let header = |key: &str, value: u64| HeaderValue { key: key.into(), value: value.to_string() };
    let reset = wire.duration_until_reset.map_or(0, |duration| duration.seconds.unsigned_abs());
    let mut headers = vec![
        header(&envoy.limit_header, limit.requests_per_unit.into()),
        header(&envoy.remaining_header, wire.limit_remaining.into()),
        header(&envoy.reset_header, reset),
    ];
    let retry_after = status.leading_verdict().and_then(|verdict| verdict.retry.after());
    if let Some(retry_after) = retry_after
        && !answer.allowed
        && !status.rule.as_deref().is_some_and(is_plain)
    {
        headers.push(header("Retry-After", retry_after.as_secs_ceil().max(1)));
    }
    headers
}

fn most_restrictive<'a>(
    answer: &'a CheckResponse,
    statuses: &'a [DescriptorStatus],
    envoy: &Envoy,
) -> Option<(&'a Status, &'a DescriptorStatus)> {
    let mut found = None;
    let mut least = u32::MAX;
    for (status, wire) in answer.statuses.iter().zip(statuses) {
        if wire.current_limit.is_some() && wire.limit_remaining < least {
            least = wire.limit_remaining;
            found = Some((status, wire));
        }
        if !status.allowed && !status.is_quota(envoy.quota_mode) {
            least = 0;
            found = Some((status, wire));
        }
    }
    found
}

/// Whether envoyproxy/ratelimit has such rules: one fixed window of a unit.
fn is_plain(rule: &Rule) -> bool {
    let [quota] = rule.limits.as_slice() else { return false };
    quota.algorithm() == Algorithm::FixedWindow && unit(quota.window()) != Unit::Unknown
}

// === units ===

/// In seconds. As in envoyproxy/ratelimit, a month has 30 days and a year 365.
const UNITS: [(Unit, u64); 7] = [
    (Unit::Second, 1),
    (Unit::Minute, 60),
    (Unit::Hour, 3_600),
    (Unit::Day, 86_400),
    (Unit::Week, 7 * 86_400),
    (Unit::Month, 30 * 86_400),
    (Unit::Year, 365 * 86_400),
];

/// The unit that is exactly as long as `window`, else `UNKNOWN`.
pub fn unit(window: Span) -> Unit {
    let unit = UNITS.iter().find(|(_, secs)| Span::from_secs(*secs) == window);
    unit.map_or(Unit::Unknown, |(unit, _)| *unit)
}

/// `None` for `UNKNOWN`.
pub fn window(unit: Unit) -> Option<Span> {
    UNITS.iter().find(|(it, _)| *it == unit).map(|(_, secs)| Span::from_secs(*secs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_window_of_the_same_length_has_a_unit() {
        for (expected, _) in UNITS {
            assert_eq!(window(expected).map(unit), Some(expected));
        }
        assert_eq!(window(Unit::Unknown), None);
        assert_eq!(unit(Span::from_secs(90)), Unit::Unknown);
        assert_eq!(unit(Span::from_secs(31 * 86_400)), Unit::Unknown);
    }

    #[test]
    fn durations_are_never_too_short() {
        assert_eq!(whole_seconds(Span::from_nanos(1)).seconds, 1);
        assert_eq!(whole_seconds(Span::from_secs(12)).seconds, 12);
        assert_eq!(whole_seconds(Span::ZERO).seconds, 0);
    }
}

//! `response_headers_to_add`: three headers that Envoy puts on the response, and for rules that
//! envoyproxy/ratelimit does not know a fourth.
//!
//! The descriptor that speaks is the last one that refuses the request, else the first of those
//! that have the least left. Example: 20 a minute with 17 left and 10 an hour with 3 left, 800 s
//! before the hour ends:
//!
//! ```text
//! RateLimit-Limit: 10
//! RateLimit-Remaining: 3
//! RateLimit-Reset: 800
//! ```
//!
//! A plain rule has its whole limit back when it may pass again. Other rules may pass before that:
//! a refusal by one of them says `Retry-After` too.
//!
//! Source: envoyproxy/ratelimit, `src/service/ratelimit.go`, `shouldRateLimitWorker`.

use tidegate_limiter::quota::Algorithm;
use tidegate_rules::rule::Rule;

use super::message::{DescriptorStatus, HeaderValue, Unit};
use crate::config::Envoy;
use crate::decide::{CheckResponse, Status};

/// The headers of `answer`, whose statuses are `statuses` on the wire.
pub(super) fn headers(
    answer: &CheckResponse,
    statuses: &[DescriptorStatus],
    envoy: &Envoy,
) -> Vec<HeaderValue> {
    let Some((status, wire)) = speaker(answer, statuses, envoy) else { return Vec::new() };
    let Some(limit) = &wire.current_limit else { return Vec::new() };
    let header = |key: &str, value: u64| HeaderValue { key: key.into(), value: value.to_string() };
    let reset = wire.duration_until_reset.map_or(0, |duration| duration.seconds.unsigned_abs());
    let mut headers = vec![
        header(&envoy.limit_header, limit.requests_per_unit.into()),
        header(&envoy.remaining_header, wire.limit_remaining.into()),
        header(&envoy.reset_header, reset),
    ];
    let wait = status.leading_verdict().and_then(|verdict| verdict.retry.after());
    if let Some(wait) = wait
        && !answer.allowed
        && !status.rule.as_deref().is_some_and(is_plain)
    {
        headers.push(header("Retry-After", wait.as_secs_ceil().max(1)));
    }
    headers
}

fn speaker<'a>(
    answer: &'a CheckResponse,
    statuses: &'a [DescriptorStatus],
    envoy: &Envoy,
) -> Option<(&'a Status, &'a DescriptorStatus)> {
    let mut speaker = None;
    let mut least = u32::MAX;
    for (status, wire) in answer.statuses.iter().zip(statuses) {
        if wire.current_limit.is_some() && wire.limit_remaining < least {
            least = wire.limit_remaining;
            speaker = Some((status, wire));
        }
        if !status.allowed && !status.is_quota(envoy.quota_mode) {
            least = 0;
            speaker = Some((status, wire));
        }
    }
    speaker
}

/// Whether envoyproxy/ratelimit knows such rules: one fixed window of a unit.
fn is_plain(rule: &Rule) -> bool {
    let [quota] = rule.limits.as_slice() else { return false };
    quota.algorithm() == Algorithm::FixedWindow && Unit::of(quota.window()) != Unit::Unknown
}

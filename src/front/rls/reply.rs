//! An answer of ours as Envoy's response; shared by gRPC and its JSON form.

use super::dynamic_metadata::dynamic_metadata;
use super::headers::headers;
use super::message::{
    Code, DescriptorStatus, Duration, RateLimit, RateLimitRequest, RateLimitResponse, Unit,
};
use crate::config::Envoy;
use crate::decide::{CheckResponse, Status};

/// The whole response to `request`, with what `envoy` switches on.
pub fn response_to(
    request: &RateLimitRequest,
    answer: &CheckResponse,
    envoy: &Envoy,
) -> RateLimitResponse {
    let mut response = response(answer);
    if envoy.response_headers {
        response.response_headers_to_add = headers(answer, &response.statuses, envoy);
    }
    if envoy.dynamic_metadata {
        response.dynamic_metadata = Some(dynamic_metadata(request, answer));
    }
    response
}

/// The verdict and the statuses alone.
///
/// Statuses are always filled, one a descriptor. As in envoyproxy/ratelimit, a descriptor without a
/// rule is `OK` and nothing else, and one that is unlimited has the largest number remaining.
pub fn response(answer: &CheckResponse) -> RateLimitResponse {
    RateLimitResponse {
        overall_code: Code::of(answer.allowed).into(),
        statuses: answer.statuses.iter().map(descriptor_status).collect(),
        ..RateLimitResponse::default()
    }
}

fn descriptor_status(status: &Status) -> DescriptorStatus {
    let code = Code::of(status.allowed).into();
    let Some(rule) = status.rule.as_deref() else {
        return DescriptorStatus { code, ..DescriptorStatus::default() };
    };
    let (Some(verdict), Some(index)) = (status.leading_verdict(), status.leading) else {
        return DescriptorStatus { code, limit_remaining: u32::MAX, ..DescriptorStatus::default() };
    };
    let unit = rule.limits.get(index).map_or(Unit::Unknown, |quota| Unit::of(quota.window()));
    DescriptorStatus {
        code,
        current_limit: Some(RateLimit {
            requests_per_unit: verdict.limit,
            unit: unit.into(),
            name: rule.name.as_deref().unwrap_or_default().to_owned(),
        }),
        limit_remaining: verdict.remaining,
        duration_until_reset: Some(Duration::whole_seconds(verdict.reset)),
    }
}

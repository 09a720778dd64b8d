//! `RateLimitResponse` in proto3-JSON.
//!
//! *Example*:
//!
//! ```json
//! {"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT",
//!  "currentLimit":{"requestsPerUnit":10,"unit":"MINUTE"},"durationUntilReset":"12s"}]}
//! ```
//!
//! Fields at their default are left out, so `limitRemaining` is absent when nothing remains.

use serde::Serialize;

use crate::front::rls::message::{
    Code, DescriptorStatus, Duration, RateLimit, RateLimitResponse, Unit,
};

/// The response as one line of JSON.
pub fn response(response: &RateLimitResponse) -> String {
    let view = ResponseView {
        overall_code: code(response.overall_code),
        statuses: response.statuses.iter().map(StatusView::from).collect(),
    };
    // A struct of strings and numbers always has a JSON form.
    serde_json::to_string(&view).unwrap_or_default()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResponseView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    overall_code: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    statuses: Vec<StatusView<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<LimitView<'a>>,
    #[serde(skip_serializing_if = "is_zero")]
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LimitView<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    requests_per_unit: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'static str>,
}

impl<'a> From<&'a DescriptorStatus> for StatusView<'a> {
    fn from(status: &'a DescriptorStatus) -> Self {
        Self {
            code: code(status.code),
            current_limit: status.current_limit.as_ref().map(LimitView::from),
            limit_remaining: status.limit_remaining,
            duration_until_reset: status.duration_until_reset.as_ref().map(duration),
        }
    }
}

impl<'a> From<&'a RateLimit> for LimitView<'a> {
    fn from(limit: &'a RateLimit) -> Self {
        let unit = Unit::try_from(limit.unit).unwrap_or(Unit::Unknown);
        Self {
            name: &limit.name,
            requests_per_unit: limit.requests_per_unit,
            unit: (unit != Unit::Unknown).then(|| unit.name()),
        }
    }
}

fn code(number: i32) -> Option<&'static str> {
    Code::try_from(number).ok().filter(|code| *code != Code::Unknown).map(Code::name)
}

/// `12s`, with 3, 6 or 9 digits of a fraction when there is one.
fn duration(duration: &Duration) -> String {
    let Duration { seconds, nanos } = duration;
    match nanos.unsigned_abs() {
        0 => format!("{seconds}s"),
        n if n % 1_000_000 == 0 => format!("{seconds}.{:03}s", n / 1_000_000),
        n if n % 1_000 == 0 => format!("{seconds}.{:06}s", n / 1_000),
        n => format!("{seconds}.{n:09}s"),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_protojson_does() {
        for (seconds, nanos, text) in [
            (12, 0, "12s"),
            (0, 0, "0s"),
            (1, 500_000_000, "1.500s"),
            (1, 1_000, "1.000001s"),
            (1, 1, "1.000000001s"),
        ] {
            assert_eq!(duration(&Duration { seconds, nanos }), text);
        }
    }

    #[test]
    fn defaults_are_left_out() {
        assert_eq!(response(&RateLimitResponse::default()), "{}");
        let status = DescriptorStatus {
            code: Code::OverLimit.into(),
            current_limit: Some(RateLimit::default()),
            limit_remaining: 0,
            duration_until_reset: Some(Duration::default()),
        };
        let over = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![status],
            ..RateLimitResponse::default()
        };
        assert_eq!(
            response(&over),
            r#"{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":{},"durationUntilReset":"0s"}]}"#
        );
    }
}

//! What a limiter says about a request, whoever decided it.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tidegate_limiter::units::Span;

/// Hits per window of the most restrictive limit.
pub(crate) const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// Remaining hits of the most restrictive limit.
pub(crate) const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// Seconds until the most restrictive limit is fully available again.
pub(crate) const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// `1` on a request that is admitted above a soft limit.
pub(crate) const SOFT_BREACH: HeaderName = HeaderName::from_static("x-ratelimit-soft-breach");
/// The policies that apply.
pub(crate) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// What remains of each policy.
pub(crate) const CURRENT: HeaderName = HeaderName::from_static("ratelimit");

/// The fields that a layer adds to responses, as CORS has to expose them to scripts:
///
/// ```
/// use tower_http::cors::CorsLayer;
///
/// let cors = CorsLayer::new().expose_headers(tidegate_tower::FIELDS);
/// ```
///
/// The layer of CORS belongs outside of the limits, so that scripts can read refusals.
pub const FIELDS: [HeaderName; 7] =
    [CURRENT, POLICY, LIMIT, REMAINING, RESET, RETRY_AFTER, SOFT_BREACH];

/// The answer to a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub allowed: bool,
    /// False if no limiter decided: `allowed` is [`OnUnavailable`](crate::OnUnavailable) then.
    pub is_decided: bool,
    /// Hits per window of the most restrictive limit; `None` if no limit applies.
    pub limit: Option<u64>,
    pub remaining: Option<u64>,
    /// Seconds until the whole limit is available again.
    pub reset: Option<u64>,
    /// Of a refusal: when the same request may pass; `None` if waiting does not help.
    pub retry_after: Option<Duration>,
    /// How long an allowed request has to wait, from a rule with a queue.
    pub delay: Duration,
    /// The positions of the descriptors whose limits counted the request, which get their hits back
    /// if it does not wait for its turn. `None` if that is not known: of several none gets any.
    pub counted: Option<Vec<usize>>,
    /// The names of the policies that refused.
    pub violated: Vec<String>,
    /// Fields for the response to whoever is limited.
    pub fields: HeaderMap,
}

impl Verdict {
    /// The verdict of a check to which no limit applies.
    pub fn unlimited() -> Self {
        Self {
            allowed: true,
            is_decided: true,
            limit: None,
            remaining: None,
            reset: None,
            retry_after: None,
            delay: Duration::ZERO,
            counted: None,
            violated: Vec::new(),
            fields: HeaderMap::new(),
        }
    }

    /// The verdict of a check that no limiter decided. A refusal says to try again in a second.
    pub fn undecided(allowed: bool) -> Self {
        let mut fields = HeaderMap::new();
        if !allowed {
            fields.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        Self {
            allowed,
            is_decided: false,
            retry_after: (!allowed).then_some(Duration::from_secs(1)),
            fields,
            ..Self::unlimited()
        }
    }

    /// Seconds to wait, rounded up so that a client is never early; at least one.
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after.map(|wait| Span::from(wait).as_secs_ceil().max(1))
    }
}

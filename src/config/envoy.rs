//! `[envoy]`: what envoyproxy/ratelimit takes from its environment, by our names.

use serde::Deserialize;

/// `[envoy]`. It concerns Envoy's rate limit service alone: gRPC and its JSON form.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own, as there")]
pub struct Envoy {
    /// Every answer is `OK`, whatever the limits say; what would have been refused is counted.
    pub shadow_mode: bool,
    /// Every rule counts as one with `quota_mode`: a request is over the limit only when all of its
    /// descriptors are.
    pub quota_mode: bool,
    /// Whether a limit that a request brings along (`RateLimitDescriptor.limit`) takes the place of
    /// the rule's.
    ///
    /// Default true, as envoyproxy/ratelimit does. With false it is counted and ignored.
    pub overrides: bool,
    /// Whether a request that one descriptor refuses charges the other descriptors nothing.
    ///
    /// Default false: each descriptor is charged, whatever the others say. True costs a request
    /// with several descriptors one more look at each.
    pub all_or_nothing: bool,
    /// Whether a key that was refused in this window is refused from memory until the window ends,
    /// uncounted.
    pub local_cache: bool,
    /// From which part of a limit on its hits count as near the limit, 0 to 1.
    pub near_limit_ratio: f32,
    /// Whether answers carry the three headers below, for Envoy to add to the response.
    pub response_headers: bool,
    /// Name of the header with the limit.
    pub limit_header: String,
    /// Name of the header with what is left.
    pub remaining_header: String,
    /// Name of the header with the seconds until the limit is whole again.
    pub reset_header: String,
    /// Whether answers carry the request and the `metadata` of the rules that let it pass.
    pub dynamic_metadata: bool,
}

impl Default for Envoy {
    fn default() -> Self {
        Self {
            shadow_mode: false,
            quota_mode: false,
            overrides: true,
            all_or_nothing: false,
            local_cache: false,
            near_limit_ratio: 0.8,
            response_headers: false,
            limit_header: "RateLimit-Limit".to_owned(),
            remaining_header: "RateLimit-Remaining".to_owned(),
            reset_header: "RateLimit-Reset".to_owned(),
            dynamic_metadata: false,
        }
    }
}

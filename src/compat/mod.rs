//! Compatibility with other rate limiters.

pub mod envoy_ratelimit;
pub mod gubernator;

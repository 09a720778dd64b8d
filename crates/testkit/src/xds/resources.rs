//! Resources and responses of a management server.

use prost::Message;
use tidegate_proto::xds::rls_conf::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use tidegate_proto::xds::{Any, DiscoveryResponse, TYPE_URL};

/// Rules of a domain: `limit` a year for `k`, so that no test sees the next window.
pub fn rules(domain: &str, limit: u32) -> RateLimitConfig {
    let policy = RateLimitPolicy {
        unit: RateLimitUnit::Year.into(),
        requests_per_unit: limit,
        ..RateLimitPolicy::default()
    };
    RateLimitConfig {
        name: format!("{domain}-config"),
        domain: domain.into(),
        descriptors: vec![RateLimitDescriptor {
            key: "k".into(),
            rate_limit: Some(policy),
            ..RateLimitDescriptor::default()
        }],
    }
}

/// The same with an error that envoyproxy/ratelimit reports.
pub fn mistaken_rules(domain: &str) -> RateLimitConfig {
    let mut config = rules(domain, 1);
    let policy = config.descriptors[0].rate_limit.as_mut().unwrap();
    policy.unit = RateLimitUnit::Unknown.into();
    config
}

/// A state of the world. Its nonce is its version after an `n`.
pub fn state(version: &str, configs: &[RateLimitConfig]) -> DiscoveryResponse {
    let any =
        |config: &RateLimitConfig| Any { type_url: TYPE_URL.into(), value: config.encode_to_vec() };
    DiscoveryResponse {
        version_info: version.into(),
        resources: configs.iter().map(any).collect(),
        type_url: TYPE_URL.into(),
        nonce: format!("n{version}"),
    }
}

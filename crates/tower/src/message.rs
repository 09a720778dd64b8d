//! A check as a message of Envoy's rate limit service, for nodes.

use tidegate_proto::rls::{Entry, RateLimitDescriptor, RateLimitRequest};

use crate::check::{Check, Descriptor};

pub(crate) fn request(check: &Check<'_>) -> RateLimitRequest {
    // One hit is what a descriptor without a number costs.
    let hits_addend = (check.hits != 1).then_some(check.hits.unsigned_abs());
    let entry = |(key, value): (&str, &str)| Entry { key: key.to_owned(), value: value.to_owned() };
    let descriptor = |descriptor: &Descriptor| RateLimitDescriptor {
        entries: descriptor.entries().map(entry).collect(),
        limit: None,
        hits_addend,
        is_negative_hits: check.hits < 0,
    };
    RateLimitRequest {
        domain: check.domain.to_owned(),
        descriptors: check.descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

//! From `RateLimitRequest` to [`CheckRequest`]. Nothing is copied: the result borrows the message.

use smallvec::SmallVec;
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::units::Hits;
use tidegate_proto::rls::{RateLimitDescriptor, RateLimitRequest, Unit};

use super::response::window;
use crate::decide::CheckRequest;
use crate::front::bounds::{Bounds, Refusal};

/// The descriptors of `request`, for [`check_request`].
///
/// `hits_addend` of a descriptor may be 0, which reads the counter, and negative, which returns
/// hits. A `limit` in the request replaces that of the rule if `[envoy] overrides` allows it. One
/// without a unit, which crashes envoyproxy/ratelimit, is ignored; listeners count what is ignored
/// (`overrides_ignored`).
///
/// # Errors
///
/// If the request exceeds `bounds`, or has no domain or no descriptors.
pub fn descriptors<'a>(
    request: &'a RateLimitRequest,
    bounds: &Bounds,
) -> Result<SmallVec<[Descriptor<'a>; 2]>, Refusal> {
    // Checked before anything is built, so that a huge list is not copied.
    if request.descriptors.len() > bounds.descriptors_max {
        let (count, max) = (request.descriptors.len(), bounds.descriptors_max);
        return Err(Refusal::DescriptorsTooMany { count, max });
    }
    let descriptors: SmallVec<_> = request.descriptors.iter().map(descriptor).collect();
    bounds.admit(&request.domain, &descriptors)?;
    Ok(descriptors)
}

/// What is decided: `request`, with the `descriptors` that were read from it. `for_envoy` is
/// whether `[envoy]` applies.
///
/// `hits_addend` of the request is 1 if it is 0, because proto3 cannot tell 0 from absent.
pub fn check_request<'a>(
    request: &'a RateLimitRequest,
    descriptors: &'a [Descriptor<'a>],
    for_envoy: bool,
) -> CheckRequest<'a> {
    let hits = Hits::new(i64::from(request.hits_addend.max(1)));
    CheckRequest { domain: &request.domain, descriptors, hits, for_envoy }
}

/// The number of descriptors whose own limit is ignored: all that have one unless `is_allowed`, and
/// always those without a unit.
pub(crate) fn overrides_ignored(request: &RateLimitRequest, is_allowed: bool) -> u64 {
    let is_ignored = |descriptor: &&RateLimitDescriptor| {
        descriptor.limit.is_some() && !(is_allowed && limit(descriptor).is_some())
    };
    request.descriptors.iter().filter(is_ignored).count() as u64
}

fn descriptor(wire: &RateLimitDescriptor) -> Descriptor<'_> {
    let entries = wire.entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value });
    Descriptor { entries: entries.collect(), hits: hits(wire), limit: limit(wire) }
}

fn limit(wire: &RateLimitDescriptor) -> Option<Quota> {
    let limit = wire.limit.as_ref()?;
    let window = window(Unit::try_from(limit.unit).ok()?)?;
    Quota::simple(Algorithm::FixedWindow, limit.requests_per_unit, window).ok()
}

/// `is_negative_hits` without a number returns one hit.
fn hits(wire: &RateLimitDescriptor) -> Option<Hits> {
    let amount = |hits: u64| i64::try_from(hits).unwrap_or(i64::MAX);
    match (wire.hits_addend, wire.is_negative_hits) {
        (None, false) => None,
        (Some(hits), false) => Some(Hits::new(amount(hits))),
        (hits, true) => Some(Hits::new(-amount(hits.unwrap_or(1)))),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_proto::rls;

    use super::*;

    fn request(hits_addend: u32, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
        RateLimitRequest { domain: "d".into(), descriptors, hits_addend }
    }

    fn wire(hits_addend: Option<u64>, is_negative_hits: bool) -> RateLimitDescriptor {
        RateLimitDescriptor {
            entries: vec![rls::Entry { key: "k".into(), value: "v".into() }],
            limit: None,
            hits_addend,
            is_negative_hits,
        }
    }

    #[test]
    fn hits_default_to_one_and_those_of_a_descriptor_take_precedence() {
        for (addend, expected) in [(0, 1), (1, 1), (7, 7), (u32::MAX, 4_294_967_295)] {
            let request = request(addend, vec![wire(None, false)]);
            let descriptors = descriptors(&request, &Bounds::default()).expect("within the bounds");
            assert_eq!(check_request(&request, &descriptors, true).hits.get(), expected);
        }
        for (addend, negative, expected) in [
            (None, false, None),
            (Some(0), false, Some(0)),
            (Some(5), false, Some(5)),
            (Some(5), true, Some(-5)),
            (None, true, Some(-1)),
            (Some(u64::MAX), false, Some(i64::MAX)),
            (Some(u64::MAX), true, Some(-i64::MAX)),
        ] {
            let request = request(3, vec![wire(addend, negative)]);
            let descriptors = descriptors(&request, &Bounds::default()).expect("within the bounds");
            assert_eq!(descriptors[0].hits.map(Hits::get), expected);
        }
    }

    #[test]
    fn a_limit_without_a_unit_is_ignored_and_counted() {
        let with = |unit: i32| RateLimitDescriptor {
            limit: Some(rls::RateLimitOverride { requests_per_unit: 5, unit }),
            ..wire(None, false)
        };
        for (unit, secs) in [(0, None), (2, Some(60)), (7, Some(604_800)), (8, None), (-1, None)] {
            let request = request(1, vec![with(unit), wire(None, false)]);
            let descriptors = descriptors(&request, &Bounds::default()).expect("within the bounds");
            let limits: Vec<_> = descriptors.iter().map(|it| it.limit).collect();
            assert_eq!(limits[0].map(|quota| quota.window().as_secs_ceil()), secs);
            assert_eq!((limits[0].map_or(5, |quota| quota.limit()), limits[1]), (5, None));
            assert_eq!(overrides_ignored(&request, true), u64::from(secs.is_none()));
            assert_eq!(overrides_ignored(&request, false), 1);
        }
    }

    #[test]
    fn a_request_beyond_the_bounds_is_refused() {
        let refusal = |request: &RateLimitRequest| {
            descriptors(request, &Bounds::default()).expect_err("a refusal")
        };
        assert_eq!(refusal(&request(1, vec![])), Refusal::DescriptorsEmpty);
        assert_eq!(
            refusal(&request(1, vec![wire(None, false); 33])),
            Refusal::DescriptorsTooMany { count: 33, max: 32 }
        );
        assert_eq!(refusal(&RateLimitRequest::default()), Refusal::DomainEmpty);
    }
}

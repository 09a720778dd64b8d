//! Envoy's request as a question of ours; shared by gRPC and its JSON form.

use smallvec::SmallVec;
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::units::Hits;

use super::message::{RateLimitDescriptor, RateLimitRequest, Unit};
use crate::decide::CheckRequest;
use crate::front::bounds::{Bounds, Refusal};

/// A request within the bounds, borrowed from its message. [`Question::ask`] is what is decided.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    domain: &'a str,
    descriptors: SmallVec<[Descriptor<'a>; 2]>,
    hits: Hits,
}

impl<'a> Question<'a> {
    /// Reads the message and holds it against the bounds.
    ///
    /// `hits_addend` of the request is 1 when it is 0, because proto3 cannot tell 0 from absent;
    /// that of a descriptor can be 0, which only looks, and negative, which gives back.
    ///
    /// A `limit` that the caller brings along takes the place of the rule's if `[envoy] overrides`
    /// lets it; one without a unit (which crashes envoyproxy/ratelimit) is as if it was not there.
    /// The doors count what is ignored ([`overrides_ignored`]), so that it does not go unnoticed.
    pub fn new(request: &'a RateLimitRequest, bounds: &Bounds) -> Result<Self, Refusal> {
        // Counted before anything is built, so that a huge list costs no second copy.
        if request.descriptors.len() > bounds.descriptors_max {
            let (count, max) = (request.descriptors.len(), bounds.descriptors_max);
            return Err(Refusal::DescriptorsTooMany { count, max });
        }
        let question = Self {
            domain: &request.domain,
            descriptors: request.descriptors.iter().map(descriptor).collect(),
            hits: Hits::new(i64::from(request.hits_addend.max(1))),
        };
        bounds.admit(question.domain, &question.descriptors)?;
        Ok(question)
    }

    /// What is decided; `for_envoy` is whether `[envoy]` applies.
    pub fn ask(&self, for_envoy: bool) -> CheckRequest<'_> {
        CheckRequest {
            domain: self.domain,
            descriptors: &self.descriptors,
            hits: self.hits,
            for_envoy,
        }
    }
}

/// How many descriptors bring a limit of their own along that does not count: none does unless
/// `is_allowed`, and never one without a unit.
pub(crate) fn overrides_ignored(request: &RateLimitRequest, is_allowed: bool) -> u64 {
    let is_ignored = |descriptor: &&RateLimitDescriptor| {
        descriptor.limit.is_some() && !(is_allowed && limit(descriptor).is_some())
    };
    request.descriptors.iter().filter(is_ignored).count() as u64
}

fn descriptor(wire: &RateLimitDescriptor) -> Descriptor<'_> {
    Descriptor {
        entries: wire
            .entries
            .iter()
            .map(|entry| Entry { key: &entry.key, value: &entry.value })
            .collect(),
        hits: hits(wire),
        limit: limit(wire),
    }
}

/// The limit that the descriptor brings along, if it is one: so many hits in a window of its unit.
fn limit(wire: &RateLimitDescriptor) -> Option<Quota> {
    let brought = wire.limit.as_ref()?;
    let window = Unit::try_from(brought.unit).ok()?.window()?;
    Quota::simple(Algorithm::FixedWindow, brought.requests_per_unit, window).ok()
}

/// Hits of the descriptor alone. Without a number of its own, `is_negative_hits` gives back one.
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
    use super::*;
    use crate::front::rls::message;

    fn request(hits_addend: u32, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
        RateLimitRequest { domain: "d".into(), descriptors, hits_addend }
    }

    fn wire(hits_addend: Option<u64>, is_negative_hits: bool) -> RateLimitDescriptor {
        RateLimitDescriptor {
            entries: vec![message::Entry { key: "k".into(), value: "v".into() }],
            limit: None,
            hits_addend,
            is_negative_hits,
        }
    }

    #[test]
    fn hits_default_to_one_and_a_descriptor_has_the_last_word() {
        for (addend, expected) in [(0, 1), (1, 1), (7, 7), (u32::MAX, 4_294_967_295)] {
            let request = request(addend, vec![wire(None, false)]);
            let question = Question::new(&request, &Bounds::default()).expect("within the bounds");
            assert_eq!(question.ask(true).hits.get(), expected);
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
            let question = Question::new(&request, &Bounds::default()).expect("within the bounds");
            assert_eq!(question.ask(true).descriptors[0].hits.map(Hits::get), expected);
        }
    }

    #[test]
    fn a_limit_without_a_unit_is_ignored_and_counted() {
        let with = |unit: i32| RateLimitDescriptor {
            limit: Some(message::RateLimitOverride { requests_per_unit: 5, unit }),
            ..wire(None, false)
        };
        for (unit, secs) in [(0, None), (2, Some(60)), (7, Some(604_800)), (8, None), (-1, None)] {
            let request = request(1, vec![with(unit), wire(None, false)]);
            let question = Question::new(&request, &Bounds::default()).expect("within the bounds");
            let limits: Vec<_> = question.ask(true).descriptors.iter().map(|it| it.limit).collect();
            assert_eq!(limits[0].map(|quota| quota.window().as_secs_ceil()), secs);
            assert_eq!((limits[0].map_or(5, |quota| quota.limit()), limits[1]), (5, None));
            assert_eq!(overrides_ignored(&request, true), u64::from(secs.is_none()));
            assert_eq!(overrides_ignored(&request, false), 1);
        }
    }

    #[test]
    fn a_request_beyond_the_bounds_is_no_question() {
        let refusal = |request: &RateLimitRequest| {
            Question::new(request, &Bounds::default()).expect_err("a refusal")
        };
        assert_eq!(refusal(&request(1, vec![])), Refusal::DescriptorsEmpty);
        assert_eq!(
            refusal(&request(1, vec![wire(None, false); 33])),
            Refusal::DescriptorsTooMany { count: 33, max: 32 }
        );
        assert_eq!(refusal(&RateLimitRequest::default()), Refusal::DomainEmpty);
    }
}

//! Envoy's request as a question of ours; shared by gRPC and its JSON form.

use smallvec::SmallVec;

use super::message::{RateLimitDescriptor, RateLimitRequest};
use crate::decide::Ask;
use crate::front::bounds::{Bounds, Refusal};
use crate::rules::descriptor::{Descriptor, Entry};
use crate::units::Hits;

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
    /// A `limit` that the caller brings along does not change the answer: rules are the operator's.
    /// The doors count such requests ([`overrides`]) so that it does not go unnoticed.
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

    /// What is decided.
    pub fn ask(&self) -> Ask<'_> {
        Ask { domain: self.domain, descriptors: &self.descriptors, hits: self.hits }
    }
}

/// How many descriptors of the request bring a limit of their own along.
pub(crate) fn overrides(request: &RateLimitRequest) -> u64 {
    request.descriptors.iter().map(|descriptor| u64::from(descriptor.limit.is_some())).sum()
}

fn descriptor(wire: &RateLimitDescriptor) -> Descriptor<'_> {
    Descriptor {
        entries: wire
            .entries
            .iter()
            .map(|entry| Entry { key: &entry.key, value: &entry.value })
            .collect(),
        hits: hits(wire),
    }
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
            assert_eq!(question.ask().hits.get(), expected);
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
            assert_eq!(question.ask().descriptors[0].hits.map(Hits::get), expected);
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

//! Any bytes as a request of Envoy's rate limit service, some of them after one another: read,
//! decided by a node that stands alone, and answered. Nothing panics; what is answered has one
//! status a descriptor, and can be written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tidegate::decide::Decide;
use tidegate::front::bounds::Bounds;
use tidegate::front::rls::message::{RateLimitRequest, RateLimitResponse};
use tidegate::front::rls::{Question, response};
use tidegate_fuzz::alone;

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = RateLimitRequest::decode(bytes) else { return };
    let bounds = Bounds::default();
    let question = match Question::new(&request, &bounds) {
        Ok(question) => question,
        Err(refusal) => {
            assert!(!refusal.to_string().is_empty());
            return;
        }
    };
    let (asked, question) = (request.descriptors.len(), &question);
    alone::with(|node| async move {
        // The second time its counters are there, and some are used up.
        for _ in 0..2 {
            let answer = node.decider.decide(question.ask(true)).await;
            let response = response(&answer);
            assert_eq!(response.statuses.len(), asked);
            let written = response.encode_to_vec();
            assert_eq!(RateLimitResponse::decode(&*written).as_ref(), Ok(&response));
        }
    });
});

//! Arbitrary bytes as a request of Envoy's rate limit service, decided by a standalone node.
//! Invariants: no panic; a response has one status per descriptor and can be encoded and decoded.

#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tidegate::decide::Decide;
use tidegate::front::bounds::Bounds;
use tidegate::front::rls::message::{RateLimitRequest, RateLimitResponse};
use tidegate::front::rls::{check_request, descriptors, response};
use tidegate_fuzz::standalone;

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = RateLimitRequest::decode(bytes) else { return };
    let bounds = Bounds::default();
    let descriptors = match descriptors(&request, &bounds) {
        Ok(descriptors) => descriptors,
        Err(refusal) => {
            assert!(!refusal.to_string().is_empty());
            return;
        }
    };
    let check = check_request(&request, &descriptors, true);
    standalone::with_node(|node| async move {
        // The second time the counters exist, and some are exhausted.
        for _ in 0..2 {
            let outcome = node.decider.decide(check).await;
            let response = response(&outcome);
            assert_eq!(response.statuses.len(), check.descriptors.len());
            let encoded = response.encode_to_vec();
            assert_eq!(RateLimitResponse::decode(&*encoded).as_ref(), Ok(&response));
        }
    });
});

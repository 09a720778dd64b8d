//! Arbitrary bytes as the body of `POST /v1/check`. Invariants: no panic; an accepted request is
//! within the bounds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::front::bounds::Bounds;
use tidegate::front::http::json;
use tidegate::front::rls::{check_request, descriptors};
use tidegate_limiter::store::KeyHasher;

fuzz_target!(|body: &[u8]| {
    let bounds = Bounds::default();
    let message = match json::request(body) {
        Ok(message) => message,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let Ok(descriptors) = descriptors(&message, &bounds) else { return };
    let check = check_request(&message, &descriptors, false);
    assert!(!check.domain.is_empty() && !check.descriptors.is_empty());
    assert!(check.descriptors.len() <= bounds.descriptors_max && check.hits.get() > 0);
    let hasher = KeyHasher::new([7; 16]);
    for descriptor in check.descriptors {
        assert!(descriptor.entries.len() <= bounds.entries_max);
        hasher.descriptor(check.domain, &descriptor.entries);
    }
});

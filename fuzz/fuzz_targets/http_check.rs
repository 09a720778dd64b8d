//! Any bytes as the body of `POST /v1/check`. Nothing makes a node panic, and what is admitted is
//! within the bounds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::front::bounds::Bounds;
use tidegate::front::http::json;
use tidegate::front::rls::Question;
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
    let Ok(question) = Question::new(&message, &bounds) else { return };
    let ask = question.ask(false);
    assert!(!ask.domain.is_empty() && !ask.descriptors.is_empty());
    assert!(ask.descriptors.len() <= bounds.descriptors_max && ask.hits.get() > 0);
    let hasher = KeyHasher::new([7; 16]);
    for descriptor in ask.descriptors {
        assert!(descriptor.entries.len() <= bounds.entries_max);
        hasher.descriptor(ask.domain, &descriptor.entries);
    }
});

//! Arbitrary bytes as the body of `POST /v1/GetRateLimits`. Invariants: no panic; what is no message
//! is an error with a text; what is read is a message that is answered, with JSON.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::front::gubernator::{REQUESTS_MAX, Settings, json, limit};
use tidegate_fuzz::{NOW, gubernator, standalone};

fuzz_target!(|body: &[u8]| {
    let requests = match json::requests(body) {
        Ok(requests) => requests,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert!(requests.kept.len() == requests.count.min(REQUESTS_MAX));
    for request in &requests.kept {
        let _ = limit::asked(request, &Settings::default(), NOW);
    }
    standalone::with_node(|node| async move {
        let listener = gubernator::listener(&node);
        let answer = listener.rate_limits(&requests.kept, requests.count).await;
        if let Ok(answer) = answer {
            assert_eq!(answer.responses.len(), requests.count);
            gubernator::check(&answer.responses);
            let text = json::responses(&answer.responses);
            let _: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        }
    });
});

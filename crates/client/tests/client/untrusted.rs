//! Whatever a server sends, requests leave in the end, and nothing panics.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use tidegate_client::fields::{Fields, LIMITS_MAX, TIME_MAX};
use tidegate_client::schedule::{BACKOFF_MAX, Schedule};

const NAMES: [&str; 9] = [
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-remaining",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "retry-after",
    "date",
    "age",
];

/// What a field may hold: arbitrary bytes, and things close to what it should.
fn value() -> impl Strategy<Value = HeaderValue> {
    let number = prop_oneof![
        (0_u64..20).prop_map(|number| number.to_string()),
        any::<i64>().prop_map(|number| number.to_string()),
        (0_u64..2_000_000_000_000).prop_map(|number| format!("{number}.5")),
    ];
    let item = ("[abc]", "[qrtw]", 0_u64..1_000, 0_u64..200_000)
        .prop_map(|(name, key, r, t)| format!("\"{name}\";{key}={r};r={r};q=7;t={t};w={t}"));
    let date = (0_u64..4_000_000_000)
        .prop_map(|at| httpdate::fmt_http_date(std::time::UNIX_EPOCH + Duration::from_secs(at)));
    let text = prop_oneof![number, item, date, "\\PC*"];
    prop_oneof![
        text.prop_filter_map("no field", |text| HeaderValue::from_str(&text).ok()),
        prop::collection::vec(any::<u8>(), 0..40)
            .prop_filter_map("no field", |bytes| HeaderValue::from_bytes(&bytes).ok()),
    ]
}

fn headers() -> impl Strategy<Value = HeaderMap> {
    let field = (prop::sample::select(&NAMES[..]), value());
    prop::collection::vec(field, 0..8).prop_map(|fields| {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_static(name), value);
        }
        headers
    })
}

proptest! {
    #[test]
    fn no_response_stops_requests_for_longer_than_a_day_and_the_jitter(
        responses in prop::collection::vec((headers(), 0_u64..200_000, 0.0..1.0), 1..20)
    ) {
        const SECOND: Duration = Duration::from_secs(1);
        // Each policy makes a request wait for the end of its window, and for a random part of an
        // interval of the next one.
        const POLLS_MAX: usize = 2 * LIMITS_MAX + 1;
        let (mut schedule, mut now) = (Schedule::default(), Duration::ZERO);
        for (headers, later, random) in responses {
            let fields = Fields::read(&headers, Duration::from_secs(1_800_000_000));
            prop_assert!(fields.limits.len() <= LIMITS_MAX);
            let mut permit = None;
            for _ in 0..POLLS_MAX {
                match schedule.poll("https://a.example", "", now) {
                    Ok(found) => {
                        permit = Some(found);
                        break;
                    }
                    Err(wait) => {
                        prop_assert!(wait <= TIME_MAX + BACKOFF_MAX + SECOND, "waits {wait:?}");
                        now += wait;
                    }
                }
            }
            let status = if later % 2 == 0 { 429 } else { 200 };
            schedule.observe(permit.unwrap(), status, &fields, now, random);
            now += Duration::from_millis(later);
        }
    }
}

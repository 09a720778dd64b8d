//! What holds for any input: drawn bytes, drawn paths, drawn forgeries.

use proptest::prelude::*;
use prost::Message;
use tidegate::config::auth::Trust;
use tidegate::front::bounds::Bounds;
use tidegate::front::client_addr::client_address;
use tidegate::front::http::{json, path};
use tidegate::front::rls;
use tidegate::front::rls::message::{
    Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
};

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[a-z]{0,8}"]
}

prop_compose! {
    fn descriptor()(
        entries in prop::collection::vec((text(), text()), 0..4),
        limit in prop::option::of((any::<u32>(), 0..8_i32)),
        hits_addend in prop::option::of(any::<u64>()),
        is_negative_hits in any::<bool>(),
    ) -> RateLimitDescriptor {
        RateLimitDescriptor {
            entries: entries.into_iter().map(|(key, value)| Entry { key, value }).collect(),
            limit: limit.map(|(requests_per_unit, unit)| RateLimitOverride {
                requests_per_unit,
                unit,
            }),
            hits_addend,
            is_negative_hits,
        }
    }
}

/// The request as protojson writes it: 64-bit numbers are strings.
fn as_json(request: &RateLimitRequest) -> serde_json::Value {
    let entry = |entry: &Entry| serde_json::json!({ "key": entry.key, "value": entry.value });
    let descriptor = |descriptor: &RateLimitDescriptor| {
        serde_json::json!({
            "entries": descriptor.entries.iter().map(entry).collect::<Vec<_>>(),
            "limit": descriptor.limit.as_ref().map(|limit| serde_json::json!({
                "requestsPerUnit": limit.requests_per_unit,
                "unit": limit.unit().as_str_name(),
            })),
            "hitsAddend": descriptor.hits_addend.map(|hits| hits.to_string()),
            "isNegativeHits": descriptor.is_negative_hits,
        })
    };
    serde_json::json!({
        "domain": request.domain,
        "descriptors": request.descriptors.iter().map(descriptor).collect::<Vec<_>>(),
        "hitsAddend": request.hits_addend,
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn json_and_protobuf_carry_the_same_request(
        domain in text(),
        descriptors in prop::collection::vec(descriptor(), 0..4),
        hits_addend in any::<u32>(),
    ) {
        let request = RateLimitRequest { domain, descriptors, hits_addend };
        let body = as_json(&request).to_string();
        prop_assert_eq!(&json::request(body.as_bytes()).expect("valid JSON"), &request);
        prop_assert_eq!(&RateLimitRequest::decode(&*request.encode_to_vec()).expect("valid"), &request);
    }

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = json::request(&bytes);
        if let Ok(request) = RateLimitRequest::decode(&*bytes) {
            let _ = rls::descriptors(&request, &Bounds::default());
        }
    }

    #[test]
    fn a_damaged_request_is_an_error_and_no_panic(
        descriptors in prop::collection::vec(descriptor(), 1..3),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let request = RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 1 };
        for mut bytes in [as_json(&request).to_string().into_bytes(), request.encode_to_vec()] {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = json::request(&bytes);
            let _ = json::request(&bytes[..at]);
            let _ = RateLimitRequest::decode(&*bytes);
            let _ = RateLimitRequest::decode(&bytes[..at]);
        }
    }

    #[test]
    fn a_normal_path_is_normal_bounded_and_free_of_detours(
        target in prop_oneof![any::<String>(), "[/.%a2-5eE?#:]{0,24}"],
        bytes_max in 1..40_usize,
    ) {
        let normal = path::normal(&target, usize::MAX);
        prop_assert_eq!(path::normal(&normal, usize::MAX), normal.as_str());
        prop_assert!(normal.starts_with('/'));
        prop_assert!(!normal.contains("//"));
        prop_assert!(normal.split('/').all(|segment| segment != "." && segment != ".."));
        let cut = path::normal(&target, bytes_max);
        prop_assert!(cut.len() <= bytes_max && normal.starts_with(&cut));
    }

    #[test]
    fn nothing_a_client_forges_changes_whose_request_it_is(
        forged in prop::collection::vec(
            prop_oneof!["[0-9.:,\\[\\]a-f \"]{0,30}", Just("10.0.0.5".to_owned())],
            0..4,
        ),
        client in any::<[u8; 4]>().prop_filter("a peer", |it| it[0] != 10),
        inner_hops in 0..3_usize,
    ) {
        // The first proxy appends the client, each further one the proxy before it.
        let mut chain = vec![std::net::Ipv4Addr::from(client).to_string()];
        chain.extend((0..inner_hops).map(|hop| format!("10.0.0.{hop}")));
        let mut headers = forged;
        headers.push(chain.join(", "));
        let peer = "10.9.9.9".parse().expect("an address");
        let hops = u8::try_from(inner_hops + 1).expect("few");
        let networks = ["10.0.0.0/8".parse().expect("a network")];
        for trust in [Trust::Hops(hops), Trust::Proxies(&networks)] {
            let lists = headers.iter().map(String::as_bytes);
            let found = client_address(peer, lists, Some(b"6.6.6.6"), &trust);
            prop_assert_eq!(found, std::net::IpAddr::from(client));
        }
    }
}

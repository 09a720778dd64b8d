//! The encoding of every message, byte by byte as the published .proto files have it: a field
//! number that is wrong in `proto/` shows here.

use prost::Message;
use tidegate_proto::google::protobuf::value::Kind;
use tidegate_proto::google::protobuf::{ListValue, Struct, Value};
use tidegate_proto::rls;
use tidegate_proto::rls::{
    Code, DescriptorStatus, Duration, Entry, HeaderValue, RateLimit, RateLimitOverride,
    RateLimitRequest, RateLimitResponse, Unit,
};
use tidegate_proto::xds::rls_conf::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
};
use tidegate_proto::xds::{Any, DiscoveryRequest, DiscoveryResponse, Node, Status};

#[test]
fn rate_limit_request_and_response() {
    let request = RateLimitRequest {
        domain: "d".into(),
        descriptors: vec![rls::RateLimitDescriptor {
            entries: vec![Entry { key: "k".into(), value: "v".into() }],
            limit: Some(RateLimitOverride { requests_per_unit: 5, unit: Unit::Minute.into() }),
            hits_addend: Some(3),
            is_negative_hits: true,
        }],
        hits_addend: 2,
    };
    let golden: &[u8] = &[
        0x0A, 1, b'd', // domain = 1
        0x12, 20, // descriptors = 2
        0x0A, 6, 0x0A, 1, b'k', 0x12, 1, b'v', // entries = 1 { key = 1, value = 2 }
        0x12, 4, 0x08, 5, 0x10, 2, // limit = 2 { requests_per_unit = 1, unit = 2 }
        0x1A, 2, 0x08, 3, // hits_addend = 3, a UInt64Value
        0x20, 1, // is_negative_hits = 4
        0x18, 2, // hits_addend = 3
    ];
    assert_eq!(request.encode_to_vec(), golden);
    assert_eq!(RateLimitRequest::decode(golden), Ok(request));

    let response = RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        statuses: vec![DescriptorStatus {
            code: Code::OverLimit.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: 9,
                unit: Unit::Week.into(),
                name: "n".into(),
            }),
            limit_remaining: 4,
            duration_until_reset: Some(Duration { seconds: 12, nanos: 0 }),
        }],
        response_headers_to_add: vec![HeaderValue { key: "k".into(), value: "v".into() }],
        request_headers_to_add: vec![HeaderValue { key: "l".into(), value: "w".into() }],
        dynamic_metadata: Some(Struct::default()),
    };
    let golden: &[u8] = &[
        0x08, 2, // overall_code = 1
        0x12, 17, // statuses = 2
        0x08, 2, // code = 1
        0x12, 7, 0x08, 9, 0x10, 7, 0x1A, 1, b'n', // current_limit = 2
        0x18, 4, // limit_remaining = 3
        0x22, 2, 0x08, 12, // duration_until_reset = 4
        0x1A, 6, 0x0A, 1, b'k', 0x12, 1, b'v', // response_headers_to_add = 3
        0x22, 6, 0x0A, 1, b'l', 0x12, 1, b'w', // request_headers_to_add = 4
        0x32, 0, // dynamic_metadata = 6
    ];
    assert_eq!(response.encode_to_vec(), golden);
}

/// envoyproxy/envoy#47307 adds `unit_multiplier`, a `UInt32Value`, to messages that this version
/// reads.
#[test]
fn fields_of_later_versions_are_skipped() {
    let request: &[u8] = &[
        0x0A, 1, b'd', // domain = 1
        0x12, 18, // descriptors = 2
        0x0A, 6, 0x0A, 1, b'k', 0x12, 1, b'v', // entries = 1
        0x12, 8, 0x08, 5, 0x10, 2, // limit = 2 { requests_per_unit = 1, unit = 2 }
        0x1A, 2, 0x08, 9, // { unit_multiplier = 3 }
    ];
    let limit = RateLimitOverride { requests_per_unit: 5, unit: Unit::Minute.into() };
    let read = RateLimitRequest::decode(request).expect("a request");
    assert_eq!(read.descriptors[0].limit, Some(limit));

    let policy: &[u8] = &[
        0x08, 2, 0x10, 5, // unit = 1, requests_per_unit = 2
        0x7A, 2, 0x08, 9, // a field = 15
    ];
    let read = RateLimitPolicy::decode(policy).expect("a policy");
    assert_eq!((read.unit, read.requests_per_unit), (2, 5));
}

#[test]
fn discovery_request() {
    let request = DiscoveryRequest {
        version_info: "7".into(),
        node: Some(Node {
            id: "n".into(),
            metadata: Some([("k".to_owned(), Value::from("v"))].into_iter().collect()),
            user_agent_name: "t".into(),
            user_agent_version: "1".into(),
        }),
        resource_names: vec!["r".into()],
        type_url: "u".into(),
        response_nonce: "a".into(),
        error_detail: Some(Status { code: 3, message: "no".into() }),
    };
    let golden: &[u8] = &[
        0x0A, 1, b'7', // version_info = 1
        0x12, 21, // node = 2
        0x0A, 1, b'n', // id = 1
        0x1A, 10, // metadata = 3
        0x0A, 8, 0x0A, 1, b'k', 0x12, 3, 0x1A, 1, b'v', // fields = 1 { string_value = 3 }
        0x32, 1, b't', // user_agent_name = 6
        0x3A, 1, b'1', // user_agent_version = 7
        0x1A, 1, b'r', // resource_names = 3
        0x22, 1, b'u', // type_url = 4
        0x2A, 1, b'a', // response_nonce = 5
        0x32, 6, 0x08, 3, 0x12, 2, b'n', b'o', // error_detail = 6 { code = 1, message = 2 }
    ];
    assert_eq!(request.encode_to_vec(), golden);
    assert_eq!(DiscoveryRequest::decode(golden), Ok(request));
}

#[test]
fn discovery_response() {
    let golden: &[u8] = &[
        0x0A, 1, b'7', // version_info = 1
        0x12, 6, 0x0A, 1, b'u', 0x12, 1, 0xFF, // resources = 2 { type_url = 1, value = 2 }
        0x18, 1, // canary = 3, unknown to this crate
        0x22, 1, b'u', // type_url = 4
        0x2A, 1, b'a', // nonce = 5
        0x32, 3, 0x0A, 1, b'c', // control_plane = 6, unknown to this crate
    ];
    let response = DiscoveryResponse {
        version_info: "7".into(),
        resources: vec![Any { type_url: "u".into(), value: vec![0xFF] }],
        type_url: "u".into(),
        nonce: "a".into(),
    };
    assert_eq!(DiscoveryResponse::decode(golden), Ok(response));
}

#[test]
fn rules_of_a_domain() {
    let config = RateLimitConfig {
        name: "n".into(),
        domain: "d".into(),
        descriptors: vec![RateLimitDescriptor {
            key: "k".into(),
            value: "v".into(),
            rate_limit: Some(RateLimitPolicy {
                unit: RateLimitUnit::Week.into(),
                requests_per_unit: 5,
                unlimited: true,
                name: "p".into(),
                replaces: vec![RateLimitReplace { name: "q".into() }],
            }),
            descriptors: vec![RateLimitDescriptor::default()],
            shadow_mode: true,
            detailed_metric: true,
            quota_mode: true,
            metadata: Some(Struct::default()),
        }],
    };
    let golden: &[u8] = &[
        0x0A, 1, b'n', // name = 1
        0x12, 1, b'd', // domain = 2
        0x1A, 32, // descriptors = 3
        0x0A, 1, b'k', // key = 1
        0x12, 1, b'v', // value = 2
        0x1A, 14, // rate_limit = 3
        0x08, 7, // unit = 1
        0x10, 5, // requests_per_unit = 2
        0x18, 1, // unlimited = 3
        0x22, 1, b'p', // name = 4
        0x2A, 3, 0x0A, 1, b'q', // replaces = 5 { name = 1 }
        0x22, 0, // descriptors = 4
        0x28, 1, // shadow_mode = 5
        0x30, 1, // detailed_metric = 6
        0x38, 1, // quota_mode = 7
        0x42, 0, // metadata = 8
    ];
    assert_eq!(config.encode_to_vec(), golden);
    assert_eq!(RateLimitConfig::decode(golden), Ok(config));
}

#[test]
fn structs() {
    let kinds = [
        (Kind::NullValue(0), &[0x08, 0][..]),
        (Kind::NumberValue(1.0), &[0x11, 0, 0, 0, 0, 0, 0, 0xF0, 0x3F]),
        (Kind::StringValue("t".into()), &[0x1A, 1, b't']),
        (Kind::BoolValue(true), &[0x20, 1]),
        (Kind::StructValue(Struct::default()), &[0x2A, 0]),
        (Kind::ListValue(ListValue { values: vec![Value::default()] }), &[0x32, 2, 0x0A, 0]),
    ];
    for (kind, golden) in kinds {
        assert_eq!(Value::from(kind.clone()).encode_to_vec(), golden, "{kind:?}");
    }
    let fields = [("k".to_owned(), Value::from(Kind::BoolValue(true)))].into();
    let golden = [0x0A, 7, 0x0A, 1, b'k', 0x12, 2, 0x20, 1];
    assert_eq!(Struct { fields }.encode_to_vec(), golden);
}

//! Arbitrary bytes as a `GetRateLimitsReq`, answered by a standalone node. Invariants: no panic; as
//! many requests are counted as are read; an answer has one response a request, none with more left
//! than may be.

#![no_main]

use bytes::{BufMut, BytesMut};
use http::Request;
use http_body_util::{BodyExt, Full};
use libfuzzer_sys::fuzz_target;
use prost::Message;
use tidegate::front::gubernator::requests_in;
use tidegate_fuzz::{gubernator, standalone};
use tidegate_proto::gubernator::{GetRateLimitsReq, GetRateLimitsResp};

fuzz_target!(|message: &[u8]| {
    standalone::with_node(|node| async move {
        let listener = gubernator::listener(&node);
        let read = GetRateLimitsReq::decode(message);
        if let Ok(read) = &read {
            assert_eq!(read.requests.len(), requests_in(message));
        }
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(u32::try_from(message.len()).expect("short"));
        frame.put_slice(message);
        let path = "/pb.gubernator.V1/GetRateLimits";
        let request = Request::post(path).body(Full::new(frame.freeze())).expect("a request");
        let response = listener.call(request).await;
        let in_head = response.headers().get("grpc-status").cloned();
        let body = response.into_body().collect().await.expect("a body in memory");
        let status = in_head.or_else(|| body.trailers()?.get("grpc-status").cloned());
        if status.expect("a status").as_bytes() == b"0" {
            let answer = GetRateLimitsResp::decode(&body.to_bytes()[5..]).expect("a message");
            let read = read.expect("a message that was answered");
            assert_eq!(answer.responses.len(), read.requests.len());
            gubernator::check(&answer.responses);
        }
    });
});

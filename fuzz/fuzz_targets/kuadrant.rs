//! Arbitrary bytes as a message of Kuadrant's rate limit service, answered by a standalone node.
//! Invariants: no panic; an answer of status 0 is a message of its method; what was reserved is
//! released by the first commit and by no second one.

#![no_main]

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::Request;
use http_body_util::{BodyExt, Full};
use libfuzzer_sys::fuzz_target;
use prost::Message;
use tidegate::decide::Decider;
use tidegate::front::bounds::Bounds;
use tidegate::front::rls::RlsService;
use tidegate::front::serve::ListenerStats;
use tidegate_fuzz::standalone;
use tidegate_proto::kuadrant_rls::{
    CommitRequest, CommitResponse, ReserveRequest, ReserveResponse, SERVICE_NAME,
};
use tidegate_proto::rls::{RateLimitRequest, RateLimitResponse};

/// Long enough for a commit to find it.
const LONG_SECS: i64 = 10;

fuzz_target!(|bytes: &[u8]| {
    let Some((method, message)) = bytes.split_first() else { return };
    standalone::with_node(|node| async move {
        let service = RlsService {
            decide: Arc::new(node.decider.clone()),
            bounds: Bounds::default(),
            stats: Arc::<ListenerStats>::default(),
        };
        match method % 4 {
            0 => drop(call::<RateLimitResponse>(&service, "CheckRateLimit", message).await),
            1 => drop(call::<RateLimitResponse>(&service, "Report", message).await),
            2 => drop(call::<CommitResponse>(&service, "Commit", message).await),
            _ => reserve(&service, message).await,
        }
    });
});

async fn reserve(service: &RlsService<Decider>, message: &[u8]) {
    let Some(reserved) = call::<ReserveResponse>(service, "Reserve", message).await else { return };
    if reserved.reservation_id.is_empty() {
        return;
    }
    let request = ReserveRequest::decode(message).expect("a message that was answered");
    let amount = request.amount;
    let commit = CommitRequest {
        domain: request.domain,
        descriptors: request.descriptors,
        reservation_id: reserved.reservation_id,
        actual_amount: amount,
    };
    let check = RateLimitRequest {
        domain: commit.domain.clone(),
        descriptors: commit.descriptors.clone(),
        ..RateLimitRequest::default()
    };
    let checked =
        call::<RateLimitResponse>(service, "CheckRateLimit", &check.encode_to_vec()).await;
    let statuses = checked.expect("a request that was answered before").statuses;
    // Where no limit applies nothing is kept free, and nothing of an amount of zero.
    let is_limited = statuses.iter().any(|status| status.current_limit.is_some());
    let costs = amount > 0 && check.descriptors.iter().all(|it| it.hits_addend.is_none());
    let is_long = request.ttl.is_none_or(|ttl| ttl.seconds >= LONG_SECS);
    for is_first in [true, false] {
        let commit = commit.encode_to_vec();
        let committed = call::<CommitResponse>(service, "Commit", &commit).await;
        let committed = committed.expect("a commit is answered");
        assert!(!committed.reservation_released || is_first);
        let is_kept = is_long && is_limited && costs;
        assert!(committed.reservation_released || !is_first || !is_kept);
    }
}

/// The answer, if its status is 0.
async fn call<M: Message + Default>(
    service: &RlsService<Decider>,
    method: &str,
    message: &[u8],
) -> Option<M> {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).expect("short"));
    frame.put_slice(message);
    let request = Request::post(format!("/{SERVICE_NAME}/{method}")).body(()).expect("a request");
    let (head, ()) = request.into_parts();
    let response = service.call_kuadrant(&head, Full::new(frame.freeze())).await;
    let in_head = response.headers().get("grpc-status").cloned();
    let body = response.into_body().collect().await.expect("a body in memory");
    let status = in_head.or_else(|| body.trailers()?.get("grpc-status").cloned());
    if status.expect("a status").as_bytes() != b"0" {
        return None;
    }
    let bytes: Bytes = body.to_bytes();
    Some(M::decode(&bytes[5..]).expect("a message of its method"))
}

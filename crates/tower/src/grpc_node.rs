//! Asks a node by gRPC: Envoy's rate limit service, version 3.
//!
//! Its answer has a status for each descriptor and few header fields, so these are made of it:
//!
//! | field | of the status |
//! |---|---|
//! | `RateLimit-Policy` | name of the limit, or the keys of its descriptor; hits per unit |
//! | `RateLimit`, `X-RateLimit-*` | remaining hits, seconds until the limit is reset |
//! | `X-RateLimit-Soft-Breach` | the header of that name that the node adds to responses |
//! | `Retry-After` | seconds until the limit is reset: never early, and exact for a fixed window |
//!
//! Two things are not in such an answer: the delay of a queue (`leaky_bucket` with `queue`), so
//! queues refuse but do not hold; and, of a rule with several limits, all but the most restrictive
//! one. [`HttpNode`](crate::HttpNode) has both.

use std::fmt::Display;
use std::time::Duration;

use http::header::{HeaderValue, RETRY_AFTER};
use http::uri::PathAndQuery;
use tidegate_proto::rls::{
    Code, DescriptorStatus, RateLimit, RateLimitResponse, SHOULD_RATE_LIMIT, Unit,
};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::check::{Answer, Check, CheckError, Descriptor, Limiter};
use crate::grpc_fields::{Fields, Item};
use crate::message;
use crate::verdict::{LIMIT, REMAINING, RESET, SOFT_BREACH, Verdict};

/// A node of tidegate, or another rate limit service of Envoy, by gRPC. Cheap to clone; clones
/// share the connection.
#[derive(Clone, Debug)]
pub struct GrpcNode {
    grpc: tonic::client::Grpc<Channel>,
}

/// The text is not the address of a node.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is not the address of a node; write http://HOST:PORT or unix:/PATH")]
pub struct InvalidEndpoint(String);

impl GrpcNode {
    /// The node at `endpoint`, such as `http://127.0.0.1:8081`, or `unix:/run/limits.sock` for a
    /// proxy that listens there. Connects with the first check. Needs a runtime of tokio.
    ///
    /// # Errors
    ///
    /// If that is no address.
    pub fn new(endpoint: &str) -> Result<Self, InvalidEndpoint> {
        let channel = Endpoint::from_shared(endpoint.to_owned())
            .map_err(|_| InvalidEndpoint(endpoint.to_owned()))?;
        Ok(Self::over(channel.connect_lazy()))
    }

    /// A node over a channel of its user, such as one with TLS.
    pub fn over(channel: Channel) -> Self {
        Self { grpc: tonic::client::Grpc::new(channel) }
    }
}

impl Limiter for GrpcNode {
    fn check(&self, check: &Check<'_>) -> Answer {
        let request = Request::new(message::request(check));
        let names = check.descriptors.iter().map(keys).collect::<Vec<_>>();
        let mut grpc = self.grpc.clone();
        Answer::Later(Box::pin(async move {
            let undecided = |error: &dyn Display| CheckError::Undecided(error.to_string());
            grpc.ready().await.map_err(|error| undecided(&error))?;
            let path = PathAndQuery::from_static(SHOULD_RATE_LIMIT);
            let response = grpc.unary(request, path, ProstCodec::default()).await;
            verdict(&names, &response.map_err(|status| failure(&status))?.into_inner())
        }))
    }
}

fn failure(status: &Status) -> CheckError {
    let text = status.message().to_owned();
    match status.code() {
        tonic::Code::InvalidArgument => CheckError::Invalid(text),
        code => CheckError::Undecided(format!("{code:?}: {text}")),
    }
}

/// The name of a limit that has none: the keys of its descriptor. Its values may be secrets.
fn keys(descriptor: &Descriptor) -> String {
    descriptor.entries().map(|(key, _)| key).collect::<Vec<_>>().join(".")
}

/// The verdict in an answer to a check whose descriptors have these names.
fn verdict(names: &[String], response: &RateLimitResponse) -> Result<Verdict, CheckError> {
    let allowed = match response.overall_code() {
        Code::Ok => true,
        Code::OverLimit => false,
        Code::Unknown => return Err(CheckError::Undecided("no verdict in the answer".to_owned())),
    };
    let mut verdict = Verdict { allowed, ..Verdict::unlimited() };
    let mut leading: Option<(&RateLimit, &DescriptorStatus)> = None;
    let mut fields = Fields::new();
    for (keys, status) in names.iter().zip(&response.statuses) {
        let Some(limit) = &status.current_limit else { continue };
        let name = if limit.name.is_empty() { keys } else { &limit.name };
        fields.add(&Item {
            name,
            quota: limit.requests_per_unit.into(),
            window: seconds(limit.unit()),
            remaining: status.limit_remaining.into(),
            reset: reset(status),
        });
        let is_over = status.code() == Code::OverLimit;
        if is_over && !allowed {
            verdict.violated.push(name.clone());
        }
        let weight = |status: &DescriptorStatus| {
            let is_within = status.code() != Code::OverLimit;
            let wait = if is_within { 0 } else { reset(status) };
            (is_within, u64::MAX - wait, status.limit_remaining)
        };
        if leading.is_none_or(|(_, leading)| weight(status) < weight(leading)) {
            leading = Some((limit, status));
        }
    }
    if let Some((limit, status)) = leading {
        let reset = reset(status);
        verdict.limit = Some(limit.requests_per_unit.into());
        verdict.remaining = Some(status.limit_remaining.into());
        verdict.reset = Some(reset);
        verdict.fields.insert(LIMIT, limit.requests_per_unit.into());
        verdict.fields.insert(REMAINING, status.limit_remaining.into());
        verdict.fields.insert(RESET, reset.into());
        if !allowed {
            verdict.retry_after = Some(Duration::from_secs(reset.max(1)));
            verdict.fields.insert(RETRY_AFTER, reset.max(1).into());
        }
    }
    let added = &response.response_headers_to_add;
    if allowed && added.iter().any(|header| SOFT_BREACH == *header.key) {
        verdict.fields.insert(SOFT_BREACH, HeaderValue::from_static("1"));
    }
    verdict.fields.extend(fields.finish());
    Ok(verdict)
}

/// Seconds, rounded up.
fn reset(status: &DescriptorStatus) -> u64 {
    let Some(duration) = status.duration_until_reset else { return 0 };
    let seconds = u64::try_from(duration.seconds).unwrap_or(0);
    seconds.saturating_add(u64::from(duration.nanos > 0))
}

/// As on a node, a month has 30 days and a year 365.
fn seconds(unit: Unit) -> Option<u64> {
    match unit {
        Unit::Unknown => None,
        Unit::Second => Some(1),
        Unit::Minute => Some(60),
        Unit::Hour => Some(3_600),
        Unit::Day => Some(86_400),
        Unit::Week => Some(7 * 86_400),
        Unit::Month => Some(30 * 86_400),
        Unit::Year => Some(365 * 86_400),
    }
}

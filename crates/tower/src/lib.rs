//! Rate limits for services of [tower]: axum, tonic, and everything that takes and returns messages
//! of HTTP.
//!
//! A [`RateLimitLayer`] names the counters of a request ([`Descriptor`]), asks a [`Limiter`], and
//! passes the request on or refuses it. It does *not* count: limits and their rules are the
//! limiter's.
//!
//! ```text
//! request ── describe ── Limiter ─┬─ allowed ── the service; its response with `RateLimit` fields
//!                                 ├─ refused ── 429 with problem details, or `grpc-status: 8`
//!                                 └─ no answer in time ── allowed (or 503), and counted
//! ```
//!
//! | limiter | decides | for |
//! |---|---|---|
//! | [`InProcess`] | in this process, by rule files | one process, or a limit for each |
#![cfg_attr(
    feature = "http",
    doc = "| [`HttpNode`] | a node of tidegate, by `POST /v1/check` | limits shared by processes |"
)]
#![cfg_attr(
    feature = "grpc",
    doc = "| [`GrpcNode`] | a node, or any rate limit service of Envoy, by gRPC | likewise; TLS, Unix sockets |"
)]
//!
//! # Example
//!
//! Five requests a minute for each address:
//!
//! ```
//! use axum::Router;
//! use axum::routing::get;
//! use tidegate_tower::{InProcess, RateLimitLayer};
//!
//! let limiter = InProcess::from_yaml(
//!     "domain: http
//! descriptors:
//!   - key: remote_address
//!     rate_limit: {name: requests, unit: minute, requests_per_unit: 5}
//! ",
//! )?;
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(RateLimitLayer::new(limiter, "http"));
//! // The address of a client is that of its connection:
//! let service = app.into_make_service_with_connect_info::<std::net::SocketAddr>();
//! # let _ = service;
//! # Ok::<(), tidegate_tower::rules::Error>(())
//! ```
//!
//! The sixth request of an address in a minute gets
//!
//! ```text
//! HTTP/1.1 429 Too Many Requests
//! content-type: application/problem+json
//! retry-after: 31
//! ratelimit-policy: "requests";q=5;w=60
//! ratelimit: "requests";r=0;t=31
//! x-ratelimit-limit: 5
//! x-ratelimit-remaining: 0
//! x-ratelimit-reset: 31
//!
//! {"detail":"over the limit; try again in 31 s","status":429,
//!  "title":"Request cannot be satisfied as assigned quota has been exceeded",
//!  "type":"https://iana.org/assignments/http-problem-types#quota-exceeded",
//!  "violated-policies":["requests"]}
//! ```
//!
//! # The cost
//!
//! An allowed request costs `describe + check + fields`: one address written as text, a keyed hash
//! and a lock of the limiter, five header fields. `examples/cost.rs` measures it.

mod check;
mod client_address;
#[cfg(feature = "grpc")]
mod grpc_fields;
#[cfg(feature = "grpc")]
mod grpc_node;
#[cfg(feature = "http")]
mod http_node;
mod in_process;
mod layer;
#[cfg(any(feature = "http", feature = "grpc"))]
mod message;
mod refusal;
mod service;
mod settings;
mod structured;
mod verdict;

pub use check::{Answer, Check, CheckError, Descriptor, Limiter};
pub use client_address::{client_address, group};
#[cfg(feature = "grpc")]
pub use grpc_node::{GrpcNode, InvalidEndpoint};
#[cfg(feature = "http")]
pub use http_node::{HttpNode, InvalidUrl};
pub use in_process::InProcess;
pub use layer::{DEADLINE, HOLD_MAX, RateLimitLayer, by_address};
pub use service::{RateLimit, ResponseFuture};
pub use settings::{Counts, Describe, Exempt, OnUnavailable};
pub use verdict::{FIELDS, Verdict};

/// The bounds of [`InProcess`].
pub use tidegate_limiter::store::{OnFull, Options};
/// The time of a check.
pub use tidegate_limiter::units::Timestamp;
/// The rules of [`InProcess`]: how to read them, and what may be wrong with them.
pub use tidegate_rules as rules;

/// Compiles and runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

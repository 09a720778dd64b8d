//! Envoy's rate limit service, version 3: the gRPC listener.
//!
//! `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`, `grpc.health.v1`, and Kuadrant's
//! rate limit service, which adds reservations (`kuadrant.rs`). A call takes
//! these steps; the JSON form of the service ([`http`](super::http)) shares all but the first and
//! the last:
//!
//! ```text
//! bytes ─ unary ─▶ RateLimitRequest ─ request ─▶ CheckRequest ─▶ Decide
//! bytes ◀─ unary ─ RateLimitResponse ◀─ response, dynamic_metadata ─ CheckResponse
//! ```
//!
//! A malformed request gets a status and is not counted. The errors that envoyproxy/ratelimit has
//! too keep its code and text (`UNKNOWN`, "rate limit domain must not be empty", "rate limit
//! descriptor list must not be empty", "no rate limit configuration loaded"); a limit of this
//! server is `INVALID_ARGUMENT`.

mod client;
mod dynamic_metadata;
mod health;
mod kuadrant;
mod request;
mod response;
mod service;
pub(super) mod timeout;
pub(super) mod unary;

pub use client::RlsClient;
pub use health::Health;
pub(crate) use request::overrides_ignored;
pub use request::{check_request, descriptors};
pub use response::{response, unit, window};
pub use service::{Error, RlsService, check, routes};
pub use tidegate_proto::rls as message;
pub use tidegate_proto::rls::SERVICE_NAME;
pub use unary::Body;

//! Envoy's rate limit service, version 3: the gRPC door.
//!
//! `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit` and `grpc.health.v1`. The messages
//! are written out by hand in [`message`], because they are a dozen fields and protoc is a build
//! dependency nobody misses; field numbers are those of Envoy's published `rls.proto` and
//! `ratelimit.proto`.
//!
//! A request that is wrong in form gets a status and is not counted. The two that
//! envoyproxy/ratelimit knows keep its code and text (`UNKNOWN`, "rate limit domain must not be
//! empty", "rate limit descriptor list must not be empty"), as does one that comes before there are
//! rules ("no rate limit configuration loaded"); a bound of ours is `INVALID_ARGUMENT`.

mod answer;
mod client;
mod dynamic_metadata;
mod headers;
mod health;
pub mod message;
mod question;
mod reply;
mod service;
pub mod structure;
mod unary;

pub use answer::{Unanswered, answer};
pub use client::RlsClient;
pub use health::Health;
pub use question::Question;
pub(crate) use question::overrides_ignored;
pub use reply::{response, response_to};
pub use service::{GrpcListener, RlsServer, SERVICE_NAME, routes};
pub use unary::Body;

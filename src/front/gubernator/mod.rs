//! Gubernator's V1 API: the gRPC service `pb.gubernator.V1`, and its JSON gateway.
//!
//! | gRPC | HTTP | |
//! |---|---|---|
//! | `GetRateLimits` | `POST /v1/GetRateLimits` | decides limits that requests carry |
//! | `HealthCheck` | `GET /v1/HealthCheck` | whether traffic may be sent here; members |
//! | `LiveCheck` | `GET /v1/LiveCheck` | answers |
//! | | `GET /metrics` | `OpenMetrics` |
//!
//! ```text
//! bytes ─ unary ─▶ GetRateLimitsReq ─ limit ─▶ CarriedCheck ─▶ DecideCarried
//! JSON  ─ json ──▶        │
//! bytes ◀─ unary, json ── GetRateLimitsResp ◀─ limit ─ CarriedVerdict
//! ```
//!
//! A client of Gubernator moves by changing an address: what it can see is the same, byte for byte,
//! where that server is not mistaken. [`limit`] says which limit a request names, and
//! `docs/gubernator.md` what differs.
//!
//! Source: the behaviour of `gubernator-io/gubernator` at commit `3182244`, observed;
//! `tests/golden/gubernator.json` has answers that were recorded.

pub mod calendar;
mod grpc;
mod http;
pub mod json;
pub mod limit;
mod service;

pub use grpc::grpc_routes;
pub use http::router;
pub use limit::Settings;
pub use service::{Calls, GubernatorListener, requests_in};

/// Most requests of one message. At the bound the message is refused, as there.
pub const REQUESTS_MAX: usize = 1_000;
/// Most bytes of a message. At the bound it is refused, as there.
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

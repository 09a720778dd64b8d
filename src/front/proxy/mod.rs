//! The proxy: a request is checked, passed on to the application, and its response passed back.
//!
//! ```text
//! client ─▶ form ─▶ mapping ─▶ decide ─┬─ refused ─▶ 429 (rejection.rs)
//!                                      └─ passes ──▶ headers.rs ─▶ upstream.rs ─▶ application
//! ```
//!
//! Bodies pass as they arrive, in both directions and with trailers; what one side does not take
//! the other cannot send, so the memory of a request is constant. A request with a form that two
//! programs may read in two ways ([`framing`](super::framing)) is refused, and the messages that
//! leave are written anew, so that the application finds the same requests in a connection as this
//! listener.
//!
//! | status | when |
//! |---|---|
//! | `proxy.denied_status` (429) | a limit refused it |
//! | 400 | its form |
//! | 408 | its body stopped arriving |
//! | 502 | no connection to a server, or no valid response |
//! | 503 | too many requests at the servers, or at one; no decision in time |
//! | 504 | a server took too long |
//!
//! These are `application/problem+json`; a gRPC request gets HTTP 200 with the status of gRPC.

pub mod headers;

mod access_log;
mod adaptive_limit;
mod at_server;
mod connector;
mod failure;
mod gradient;
mod health;
mod in_flight;
mod listener;
mod queue;
mod rejection;
mod request_body;
mod response_body;
mod tunnel;
mod upstream;

pub use access_log::AccessLog;
pub use connector::ServerTls;
pub use failure::UpstreamStats;
pub use listener::{Observers, ProxyListener, bounds, service};

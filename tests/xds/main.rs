//! Rules from a management server: the client against one in this process, and a whole node against
//! one. `tests/envoy` has one in another language.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod follow;
mod node;
mod resources;
mod server;
mod serving;
mod tls;

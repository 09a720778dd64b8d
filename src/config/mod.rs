//! What `cluster.toml`, the environment and the command line may say. Plain data.
//!
//! [`load()`] reads the three in that order, each overriding the one before, and checks the result
//! once; whoever holds a loaded [`Config`] need not check it again. One file a section; every field
//! says its unit, its range, and why its default is what it is.

mod admin;
pub mod auth;
mod cluster;
mod debug;
mod duration;
mod envoy;
pub mod error;
pub mod examples;
mod file;
mod grpc;
mod http;
mod limits;
pub mod load;
mod node;
pub mod reference;
pub mod resp;
mod rules;
mod schema;
mod secret;
pub mod sections;
mod setting;
mod similar;
pub mod stats;
mod storage;
mod text;
mod unknown;
mod user_error;
pub mod validate;
mod xds;

pub use admin::Admin;
pub use auth::Auth;
pub use cluster::Cluster;
pub use debug::Debug;
pub use envoy::Envoy;
pub use error::Error;
pub use grpc::Grpc;
pub use http::Http;
pub use limits::Limits;
pub use load::load;
pub use node::Node;
pub use resp::Resp;
pub use rules::Rules;
pub use secret::Secret;
pub use sections::*;
pub use stats::{Stats, StatsdProtocol};
pub use storage::Storage;
pub use tidegate_cluster::pki::Tls;
pub use unknown::keys;
pub use user_error::UserError;
pub use xds::Xds;

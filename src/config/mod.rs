//! The configuration: `cluster.toml`, the environment and the command line.
//!
//! [`load()`] reads the three in that order, each overriding the one before, and validates the
//! result once. Code that receives a [`Config`] does not validate it again. Every field documents
//! its unit, its range and the reason for its default.
//!
//! ```text
//! sections (the types) ── schema ── unknown ─┬─ file ─────┐
//! text ── error ── layer ────────────────────┴─ setting ──┴─ load ── validate
//! ```

pub mod auth;
mod cluster;
mod envoy;
pub mod error;
mod file;
pub(crate) mod layer;
mod limits;
mod listeners;
pub mod load;
mod rules;
mod schema;
mod sections;
mod setting;
pub(crate) mod text;
mod unknown;
pub mod validate;
mod value;

pub use auth::Auth;
pub use cluster::{Cluster, Node};
pub use envoy::{Envoy, Stats, StatsdProtocol};
pub use error::{Error, UserError};
pub use limits::{Limits, Storage};
pub use listeners::{Admin, Debug, Grpc, Http, Resp};
pub use load::load;
pub use rules::{EXAMPLES, Rules, Xds};
pub use schema::keys;
pub use sections::Config;
pub use tidegate_cluster::pki::Tls;
pub use value::Secret;

//! The configuration: `cluster.toml`, the environment and the command line.
//!
//! [`load()`] reads the three in that order, each overriding the one before, and validates the
//! result once. Code that receives a [`Config`] does not validate it again. Every field documents
//! its unit, its range and the reason for its default.
//!
//! ```text
//! sections (the types) ── schema ─┐
//! text ── error ──────────────────┴─ layer ── load ── validate
//! ```

pub mod auth;
pub mod blocked_sources;
pub mod error;
pub(crate) mod layer;
pub mod load;
pub mod proxy;
mod rules;
mod schema;
mod sections;
pub(crate) mod text;
mod time_zone;
mod tls_files;
mod traces;
pub mod validate;
mod value;

pub use auth::Auth;
pub use blocked_sources::BlockedSources;
pub use error::{Error, UserError};
pub use load::load;
pub use proxy::Proxy;
pub use rules::{EXAMPLES, Envoy, Rules, Stats, StatsdProtocol, Xds};
pub use schema::{keys, schema};
pub use sections::{
    Admin, Cluster, Config, Debug, Failover, Global, Grpc, Gubernator, Http, Join, Limits, Node,
    Resp, Storage, VotersFrom,
};
pub use tidegate_cluster::pki::Tls;
pub use tls_files::TlsFiles;
pub use traces::{OtlpProtocol, Traces};
pub use value::Secret;

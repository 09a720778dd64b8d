//! The cluster's certificates: made by `tidegate ca`, read by a node at its start.
//!
//! A cluster has an authority of its own. Whoever it signed may join, so its key stays off the
//! nodes. Every node certificate carries two DNS names: the node's id, and [`MESH_NAME`], which is
//! the same for all. Peers dial an address, not a node they know, so they ask for the common name
//! with rustls' stock verifier; the hello that follows then holds the id the peer claims against
//! its certificate with [`names`].
//!
//! Three files come from `ca init`: `ca.pem` (give it to every node), `ca.key` (keep it away from
//! them) and `cluster.secret` (give it to every node; key hashes are made under it). Two come from
//! `ca issue --node NAME`: `NAME.pem` and `NAME.key`.
//!
//! Keys are Ed25519: small, fast to sign with, and deterministic, so that a simulated handshake has
//! the same bytes on every run.

mod authority;
mod date;
mod error;
mod files;
mod identity;
mod tls;
mod verify;

pub use authority::{Authority, Issued, Validity};
pub use error::Error;
pub use files::{
    AUTHORITY_CERT, AUTHORITY_KEY, CLUSTER_SECRET, IssuedFiles, Overwrite, init, issue,
};
pub use identity::{Identity, load};
pub use tls::Tls;
pub use verify::names;

/// The name that every node certificate carries and that peers dial by.
pub const MESH_NAME: &str = "mesh.tidegate";

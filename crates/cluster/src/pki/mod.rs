//! The cluster's certificates: created by `tidegate ca`, loaded by a node at start-up.
//!
//! A cluster has its own certificate authority. Every certificate that it signed may join, so its
//! key is kept off the nodes. A node certificate carries two DNS names: the node id, and
//! [`MESH_NAME`], which is the same in all of them. Peers dial an address without knowing the node
//! id behind it, so rustls' stock verifier checks the common name; the hello that follows compares
//! the claimed node id with the certificate by [`names`].
//!
//! | file | created by | belongs on |
//! |---|---|---|
//! | `ca.pem` | `ca init` | every node |
//! | `ca.key` | `ca init` | no node |
//! | `cluster.secret` | `ca init` | every node; the key of all key hashes |
//! | `NAME.pem`, `NAME.key` | `ca issue --node NAME` | node NAME |
//!
//! Keys are Ed25519: small, fast to sign with, and deterministic, so that a simulated handshake has
//! the same bytes in every run.

mod authority;
mod error;
mod files;
mod identity;
mod name;
mod verify;

pub use authority::{Authority, Issued, Validity};
pub use error::Error;
pub use files::{
    AUTHORITY_CERT, AUTHORITY_KEY, CLUSTER_SECRET, IssuedFiles, Overwrite, init, issue,
};
pub use identity::{Identity, Tls, load};
pub use name::{MESH_NAME, names};

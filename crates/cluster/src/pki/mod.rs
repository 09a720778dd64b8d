//! The cluster's certificates: created by `tidegate ca`, loaded by a node at start-up and whenever
//! their files change.
//!
//! A cluster has its own certificate authority. Every certificate that it signed may join, so its
//! key is kept off the nodes. A node certificate carries four DNS names: the node id, its region
//! ([`region_name`]), its role ([`Role::in_certificate`]), and [`MESH_NAME`], which is the same in
//! all of them. Peers dial an address without knowing the node id behind it, so rustls' stock
//! verifier checks the common name; the hello that follows compares the claimed node id and region
//! with the certificate by [`names`].
//!
//! | file | created by | belongs on |
//! |---|---|---|
//! | `ca.pem` | `ca init` | every node |
//! | `ca.key` | `ca init` | no node |
//! | `cluster.secret` | `ca init` | every node; the key of all key hashes |
//! | `NAME.pem`, `NAME.key` | `ca issue --node NAME`, or `join` | node NAME |
//! | `signer.pem`, `signer.key` | `ca signer` | nodes that sign for others ([`Signer`]) |
//!
//! Keys are Ed25519: small, fast to sign with, and deterministic, so that a simulated handshake has
//! the same bytes in every run.

mod authority;
mod bearer;
mod files;
mod identity;
mod revocation;
mod revocations;
mod signer;
mod startup;
mod token;
mod verify;

use std::fmt::Display;
use std::path::Path;

pub use authority::{Authority, Issued};
pub use bearer::{BACKDATED, Bearer, MESH_NAME, Role, Scope, Validity, region_name};
pub use files::{
    AUTHORITY_CERT, AUTHORITY_KEY, CLUSTER_SECRET, IssuedFiles, Overwrite, SIGNER_CERT, SIGNER_KEY,
    alone_in, init, issue, issue_by_signer, issue_signer, load_signer, open_regular,
    read_authorities, read_secret_argument, read_secret_text, secret_line, write_public,
    write_secret,
};
pub use identity::{Identity, SECRETS_MAX, Tls, load};
pub use revocation::Revocation;
pub use revocations::{REVOCATIONS_MAX, Revocations, RevokeError};
pub use signer::{NewKey, REQUEST_BYTES_MAX, SignError, Signer, request_from_pem};
pub use token::{JoinToken, NotAToken, PIN_BYTES, TOKEN_SECRET_BYTES, pin};
pub use verify::{
    admitted_at, begins_at, ends_at, names, names_node, to_pem, utc_date, utc_second, verify_node,
    verify_peer,
};

/// Why a certificate was not created or not accepted, in one line: the file, what is wrong with it,
/// what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl Error {
    fn of(file: &Path, text: impl Display) -> Self {
        Self(format!("{}: {text}", file.display()))
    }

    /// The private key `key` is not that of the certificate `cert`.
    fn key_mismatch(key: &Path, cert: &Path, command: &str) -> Self {
        let cert = cert.display();
        Self::of(key, format_args!("not the key of {cert}; copy both from one `{command}`"))
    }
}

impl From<rcgen::Error> for Error {
    fn from(error: rcgen::Error) -> Self {
        let fix = "check that ca.key is the file that `tidegate ca init` created";
        Self(format!("failed to create a certificate: {error}; {fix}"))
    }
}

//! Errors of certificates and their files. Every text is one line: the file, what is wrong with it,
//! what to do.

use std::io;
use std::path::PathBuf;

use super::name::MESH_NAME;

/// Why a certificate was not created or not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// One of the four files of `[tls]` is not configured.
    #[error("tls.{key}: not set, and the mesh needs it; set it in cluster.toml")]
    NotSet { key: &'static str },
    /// A file does not exist.
    #[error("{}: no such file; make it with `{command}`", path.display())]
    Missing {
        path: PathBuf,
        /// Creates the file.
        command: String,
    },
    /// A file cannot be read.
    #[error("{}: {source}; let the user that runs the node read it", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file cannot be written.
    #[error("{}: {source}; choose a writable folder with --dir", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// A file would be overwritten.
    #[error("{}: already there; {fix}", path.display())]
    Exists {
        path: PathBuf,
        /// What to do if it should be replaced.
        fix: &'static str,
    },
    /// A secret file is accessible to users outside its owner and group.
    #[error("{path}: others can read it; run `chmod 600 {path}`", path = path.display())]
    Exposed { path: PathBuf },
    /// A file does not contain what it should.
    #[error("{}: contains no {what}; create it again with `{command}`", path.display())]
    Malformed {
        path: PathBuf,
        /// What was expected in it.
        what: &'static str,
        command: String,
    },
    /// The certificate has expired.
    #[error(
        "{}: the certificate of node {node} expired on {date}; renew it with `{command}`",
        path.display()
    )]
    Expired {
        path: PathBuf,
        node: String,
        /// The UTC date of its last second.
        date: String,
        command: String,
    },
    /// The certificate is not valid yet.
    #[error(
        "{}: the certificate of node {node} is not valid before {date}; set this machine's clock, \
         or renew it with `{command}`",
        path.display()
    )]
    NotYetValid {
        path: PathBuf,
        node: String,
        /// The UTC date of its first second.
        date: String,
        command: String,
    },
    /// The certificate was not signed by the cluster's authority, or is not valid for this use.
    #[error(
        "{}: not a node certificate of the authority in {} ({reason}); issue it with that \
         authority's `{command}`",
        path.display(), authority.display()
    )]
    Foreign { path: PathBuf, authority: PathBuf, reason: String, command: String },
    /// The certificate lacks a required name.
    #[error(
        "{}: does not carry the name {name} (it needs the node id and {MESH_NAME}); issue one with \
         `{command}`, or set TIDEGATE_NODE__ID to the certificate's name",
        path.display()
    )]
    WrongName {
        path: PathBuf,
        /// The missing name.
        name: String,
        command: String,
    },
    /// The private key is not the certificate's.
    #[error(
        "{}: not the key of {}; copy both from one `{command}`",
        key.display(), cert.display()
    )]
    KeyMismatch { key: PathBuf, cert: PathBuf, command: String },
    /// The given name is not a node id.
    #[error(
        "{0:?} is not a node id; use 1 to 63 of a-z, 0-9 and -, at least one letter, no - at either end"
    )]
    NodeName(String),
    /// A certificate could not be created.
    #[error(
        "failed to create a certificate: {0}; check that ca.key is the file that `tidegate ca init` created"
    )]
    Generate(#[from] rcgen::Error),
}

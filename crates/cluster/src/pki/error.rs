//! What can be wrong with certificates and their files. Every text is one line: the file, what is
//! wrong with it, what to do.

use std::io;
use std::path::PathBuf;

use super::MESH_NAME;

/// Why certificates were not made or not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `[tls]` lacks one of its four files.
    #[error("tls.{key}: not set, and the mesh needs it; set it in cluster.toml")]
    NotSet {
        /// The key under `[tls]`.
        key: &'static str,
    },
    /// A file is not there.
    #[error("{}: no such file; make it with `{command}`", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// What makes it.
        command: String,
    },
    /// A file cannot be read.
    #[error("{}: {source}; let the user that runs the node read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("{}: {source}; choose a folder that can be written with --dir", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file would be overwritten.
    #[error("{}: already there; {fix}", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
        /// What to do if that was meant.
        fix: &'static str,
    },
    /// A secret file is open to every user of the machine.
    #[error("{path}: others can read it; run `chmod 600 {path}`", path = path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// A file does not hold what it should.
    #[error("{}: holds no {what}; make it anew with `{command}`", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
        /// What makes it.
        command: String,
    },
    /// The certificate's time is over.
    #[error(
        "{}: the certificate of node {node} expired on {date}; renew it with `{command}`",
        path.display()
    )]
    Expired {
        /// The certificate's file.
        path: PathBuf,
        /// Whose it is.
        node: String,
        /// Its last day.
        date: String,
        /// What renews it.
        command: String,
    },
    /// The certificate's time has not come.
    #[error(
        "{}: the certificate of node {node} is not valid before {date}; set this machine's clock, \
         or renew it with `{command}`",
        path.display()
    )]
    NotYetValid {
        /// The certificate's file.
        path: PathBuf,
        /// Whose it is.
        node: String,
        /// Its first day.
        date: String,
        /// What renews it.
        command: String,
    },
    /// The certificate was not signed by the cluster's authority, or not for this use.
    #[error(
        "{}: not a node certificate of the authority in {} ({reason}); issue it with that \
         authority's `{command}`",
        path.display(), authority.display()
    )]
    Foreign {
        /// The certificate's file.
        path: PathBuf,
        /// The authority's file.
        authority: PathBuf,
        /// What the verifier said.
        reason: String,
        /// What issues one.
        command: String,
    },
    /// The certificate lacks a name.
    #[error(
        "{}: does not carry the name {name} (it needs the node id and {MESH_NAME}); issue one with \
         `{command}`, or set TIDEGATE_NODE__ID to the certificate's name",
        path.display()
    )]
    WrongName {
        /// The certificate's file.
        path: PathBuf,
        /// The name it lacks.
        name: String,
        /// What issues one.
        command: String,
    },
    /// Certificate and key do not belong together.
    #[error(
        "{}: not the key of {}; copy both from one `{command}`",
        key.display(), cert.display()
    )]
    KeyMismatch {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        cert: PathBuf,
        /// What makes a pair.
        command: String,
    },
    /// The name given is no node id.
    #[error(
        "{0:?} is no node id; use 1 to 63 of a-z, 0-9 and -, at least one letter, no - at either end"
    )]
    NodeName(String),
    /// A certificate could not be made.
    #[error("make a certificate: {0}; check that ca.key is the one that `tidegate ca init` made")]
    Generate(#[from] rcgen::Error),
}

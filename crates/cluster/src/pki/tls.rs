//! `[tls]`: the node's certificate for the mesh.

use std::path::PathBuf;

use serde::Deserialize;

/// `[tls]`. All four are needed as soon as `cluster.listen` is set, none before. `tidegate ca init`
/// and `tidegate ca issue` make them. Paths are relative to the configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// The cluster's certificate authority (PEM). Whoever it signed is let in: give the cluster an
    /// authority of its own, not the company's.
    pub ca: Option<PathBuf>,
    /// This node's certificate chain (PEM), its own certificate first. Names: the node id and
    /// `mesh.tidegate`.
    pub cert: Option<PathBuf>,
    /// This node's private key (PEM). A file that others can read is refused.
    pub key: Option<PathBuf>,
    /// The secret that key hashes are made under: 32 hexadecimal digits, the same on all nodes. A
    /// file that others can read is refused, because whoever knows it can aim keys at one owner.
    pub secret: Option<PathBuf>,
}

//! How a node gets its certificate without a private key being copied: by a token, and from its
//! peers before it expires.
//!
//! ```text
//! operator ── ca token ───────────▶ signing node   a token: pin of the authority, secret, signer
//! or Kubernetes ──────────────────▶ new node       the token of a service account, for this pod
//!
//! new node ── TLS, the pin ───────▶ signing node   is it the signer, of this cluster?
//!          ── token, request ─────▶                is the token good? then it signs
//!          ◀── certificate, ca.pem, cluster.secret
//!
//! node     ── mesh: request ──────▶ signing node   in the last third of its certificate's time
//!          ◀── certificate
//! ```
//!
//! The private key is made on the node and stays there. What signs is a
//! [`Signer`](tidegate_cluster::pki::Signer), never the authority. A token is for one name, region
//! and role, and not good after its time; that of an operator works once.
//!
//! | module | content |
//! |---|---|
//! | `tokens` | which tokens of operators are good, and for whom; pure |
//! | `service_account` | which pods of a Kubernetes cluster may join; pure |
//! | `signed_token` | who has signed a token (JWT, JWK sets); pure |
//! | `issuer` | checks a token or a peer, and signs |
//! | `server` | the listener of `[join]` |
//! | [`client`] | `tidegate join` |
//! | [`renewal`] | the task that renews this node's certificate |
//! | [`signer_watch`] | the task that reads how long this node's signer lasts |
//! | [`revocation_file`] | revocations on the disk |

pub mod client;
mod issuer;
pub mod renewal;
pub mod revocation_file;
mod server;
mod service_account;
mod signed_token;
pub mod signer_watch;
mod tokens;

pub use issuer::Issuer;
pub use server::{listener_tls, router};

use std::fmt;

use serde::{Deserialize, Serialize};

/// The path at which a signing node answers.
pub const JOIN_PATH: &str = "/join";

/// What a new node sends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JoinRequest {
    #[serde(flatten)]
    pub credential: Credential,
    /// A signing request (PKCS #10, PEM).
    pub request: String,
}

/// By what a new node says that it may join.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Credential {
    /// As `tidegate ca token` printed it. It says which node it is for.
    Token { token: String },
    /// The token of a pod's service account, and the node that the pod wants to be.
    ServiceAccount { service_account_token: String, node: String },
}

/// Without the token.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token { .. } => "Token",
            Self::ServiceAccount { .. } => "ServiceAccount",
        })
    }
}

/// What a new node gets.
#[derive(Clone, Serialize, Deserialize)]
pub struct Enrolled {
    pub node: String,
    pub region: String,
    pub role: String,
    /// The node's certificate and those up to the authority (PEM).
    pub certificate: String,
    /// The authorities of the cluster (PEM): `tls.ca`.
    pub authorities: String,
    /// The secrets under which keys are hashed, one a line: `tls.secret`.
    pub secret: String,
}

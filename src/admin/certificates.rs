//! Who may join, and whose certificate is refused: `POST /join/tokens`, `POST /revoke`, `GET
//! /revoked`, each order with a line in the log (target `audit`).

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tidegate_cluster::pki::Role;
use tidegate_limiter::units::Span;

use super::key::Reached;
use super::operate::Refusal;

/// The node behind the orders about certificates.
pub trait Certificates: Send + Sync + 'static {
    /// Makes a token with which one node may join.
    ///
    /// # Errors
    ///
    /// This node does not sign, or may not sign for that node.
    fn make_token(&self, order: TokenOrder) -> BoxFuture<'_, Result<TokenReport, Refusal>>;

    /// Revokes the certificates that a node has, at all nodes.
    ///
    /// # Errors
    ///
    /// It is no name of a node, or this node itself, or no node of this name is known and
    /// `may_be_unknown` is false, or this node takes no orders.
    fn revoke(
        &self,
        node: String,
        may_be_unknown: bool,
    ) -> BoxFuture<'_, Result<RevokedReport, Refusal>>;

    /// The revocations that this node knows, by name.
    fn revoked(&self) -> Vec<RevokedNode>;
}

/// For whom a token is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenOrder {
    pub node: String,
    /// That of this node if it names none.
    pub region: Option<String>,
    pub role: Role,
    /// How long it is good.
    pub ttl: Span,
}

/// A token.
#[derive(Clone, Serialize, Deserialize)]
pub struct TokenReport {
    pub token: String,
    pub node: String,
    pub region: String,
    pub role: String,
    /// How long it is good, in seconds.
    pub expires_in_s: u64,
}

/// What became of a revocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedReport {
    pub revoked: String,
    /// Without the revoked node.
    #[serde(flatten)]
    pub reached: Reached,
    /// The asked node has not been able to write it to its disk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_on_disk: bool,
}

/// A node whose certificates are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedNode {
    pub node: String,
    /// Its certificates that begin until then are refused: seconds since 1970, UTC.
    pub at: u64,
}

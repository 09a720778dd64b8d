//! Why a node stopped, or did not start.

use tidegate_cluster::pki;

use crate::admin::tokens;
use crate::config::UserError;
use crate::xds;

/// Why a node stopped, or did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A mistake that the operator can correct.
    #[error(transparent)]
    User(#[from] UserError),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    /// Those of the admin listener.
    #[error(transparent)]
    Tokens(#[from] tokens::Error),
    #[error("{0}")]
    Rules(#[from] tidegate_rules::error::Error),
    /// The management server of the rules.
    #[error(transparent)]
    Xds(#[from] xds::Error),
    /// A task ended that must run until shutdown.
    #[error(transparent)]
    Failed(#[from] Failed),
}

/// A task ended that must run until shutdown.
#[derive(Debug, thiserror::Error)]
#[error("a task of the node failed, so the node stops: {0}")]
pub struct Failed(String);

impl Failed {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

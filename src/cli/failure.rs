//! Why a command failed: one line on standard error, exit code 2.

use std::io;

use tidegate_cluster::pki;

use crate::config::{self, UserError};
use crate::export;
use crate::node;
use crate::observe::log;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A mistake that the user can correct.
    #[error(transparent)]
    User(#[from] UserError),
    #[error(transparent)]
    Config(#[from] config::Error),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    /// The node did not start, or stopped.
    #[error(transparent)]
    Node(#[from] node::Error),
    #[error(transparent)]
    Rules(#[from] tidegate_rules::Error),
    #[error(transparent)]
    Log(#[from] log::Error),
    #[error(transparent)]
    Export(#[from] export::Error),
    #[error(transparent)]
    Demo(#[from] tidegate_demo::Error),
    #[error("failed to write the output: {0}; check standard output")]
    Output(#[from] io::Error),
}

//! Why a command has no answer: one line on standard error, exit code 2.

use std::io;

use tidegate_cluster::pki;

use super::rules::TestError;
use crate::config::{self, UserError};
use crate::node;
use crate::observe::log;

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Something the person can put right.
    #[error(transparent)]
    User(#[from] UserError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// Certificates.
    #[error(transparent)]
    Pki(#[from] pki::Error),
    /// A node did not start, or could not go on.
    #[error(transparent)]
    Node(#[from] node::Error),
    /// Rule files.
    #[error(transparent)]
    Rules(#[from] tidegate_rules::Error),
    /// The log's filter.
    #[error(transparent)]
    Log(#[from] log::Error),
    /// The answer could not be written.
    #[error("write the answer: {0}; check where standard output goes")]
    Output(#[from] io::Error),
}

impl From<TestError> for Failure {
    fn from(error: TestError) -> Self {
        match error {
            TestError::Rules(error) => error.into(),
            TestError::Write(error) => error.into(),
        }
    }
}

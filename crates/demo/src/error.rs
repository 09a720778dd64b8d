//! Why the demo could not run.

use std::fmt::Display;
use std::io;

/// Why the demo could not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to write the output: {0}; check standard output")]
    Output(#[from] io::Error),
    #[error("{what}; {fix}")]
    Failed {
        what: String,
        /// What to do about it.
        fix: String,
    },
}

impl Error {
    pub(crate) fn new(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Failed { what: what.into(), fix: fix.into() }
    }

    /// For `map_err`: `what` failed with the error that follows.
    pub(crate) fn context<E: Display>(
        what: impl Display,
        fix: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        move |error| Self::new(format!("{what}: {error}"), fix)
    }
}

//! The result of a command that did not fail.

use std::process::ExitCode;

/// The result, as the exit code expresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success or yes: code 0.
    Yes,
    /// No: code 1.
    No,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Yes => Self::SUCCESS,
            Outcome::No => Self::from(1),
        }
    }
}

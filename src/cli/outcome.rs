//! How a command ended that gave an answer.

use std::process::ExitCode;

/// What the exit code says about an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Yes, or done: code 0.
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

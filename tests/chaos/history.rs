//! Every request of a run and what came of it.

use std::time::Duration;

use super::group::Key;

/// One request. Times count from the start of the load.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) sent: Duration,
    pub(crate) answered: Duration,
    /// The node it was sent to.
    pub(crate) token: usize,
    /// Whether that node had to answer, all the time. One that was killed, stopped or told to
    /// leave is not.
    pub(crate) is_meant_to_answer: bool,
    /// Whether an owner was meant to be within that node's reach, all the time. Of a minority it is
    /// not.
    pub(crate) is_in_majority: bool,
    pub(crate) key: Key,
    pub(crate) answer: Answer,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The owner's verdict.
    Owner { is_allowed: bool },
    /// The verdict of `on_unavailable`.
    Policy { is_allowed: bool },
    /// No verdict.
    Error(String),
}

impl Answer {
    pub(crate) fn is_allowed(&self) -> bool {
        matches!(self, Self::Owner { is_allowed: true } | Self::Policy { is_allowed: true })
    }

    pub(crate) fn is_by_policy(&self) -> bool {
        matches!(self, Self::Policy { .. })
    }

    /// Whether the hit was acknowledged as counted by the key's owner.
    pub(crate) fn is_counted(&self) -> bool {
        *self == Self::Owner { is_allowed: true }
    }
}

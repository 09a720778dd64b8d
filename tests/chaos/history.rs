//! The requests of a run and their answers.

use std::time::Duration;

use super::group::Key;

/// One request. Times are relative to the start of the load.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) sent: Duration,
    pub(crate) answered: Duration,
    /// Index of the node that received it.
    pub(crate) node_index: usize,
    /// Whether the node was available from request to answer: not killed, stopped or leaving.
    pub(crate) is_available: bool,
    /// Whether the node was in the majority, and so could reach an owner, from request to answer.
    pub(crate) in_majority: bool,
    pub(crate) key: Key,
    pub(crate) answer: Answer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Owner {
        is_allowed: bool,
    },
    Fallback {
        is_allowed: bool,
    },
    /// No verdict.
    Error(String),
}

impl Answer {
    pub(crate) fn is_allowed(&self) -> bool {
        matches!(self, Self::Owner { is_allowed: true } | Self::Fallback { is_allowed: true })
    }

    pub(crate) fn is_fallback(&self) -> bool {
        matches!(self, Self::Fallback { .. })
    }

    /// Whether the key's owner acknowledged the hit.
    pub(crate) fn is_counted(&self) -> bool {
        *self == Self::Owner { is_allowed: true }
    }
}

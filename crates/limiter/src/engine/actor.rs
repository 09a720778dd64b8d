//! The identity of a writer of per-actor counters.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One writer of per-actor counters: a node in one incarnation, or a region as another region sees
/// it.
///
/// A restarted node is a new actor. So a per-actor counter only ever grows, although the count that
/// the node held in memory is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ActorId(u64);

impl ActorId {
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ActorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

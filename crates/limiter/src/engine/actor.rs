//! Who counted: the name of one column.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One writer of columns: a node in one generation, or a region seen from another region.
///
/// A restarted node is another actor, so that a column only ever grows although the count that the
/// node held in memory is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ActorId(u64);

impl ActorId {
    /// The actor with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ActorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

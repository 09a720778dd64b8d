//! What can go wrong.

use std::fmt;

/// A change of the world. Nodes are named by their index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Every link loses, doubles and delays datagrams; all zero is good weather again.
    Weather { loss_ppm: u32, duplicate_ppm: u32, late_ppm: u32, late_ms: u64 },
    /// Everything to and from a node is late; 0 is quick again.
    Slow { node: usize, late_ms: u64 },
    /// The nodes of `side` and the others do not hear each other.
    Split { side: Vec<usize> },
    /// What `from` sends does not reach `to`.
    CutOneWay { from: usize, to: usize },
    /// Every cut is healed.
    Heal,
    /// The process of a node is gone, with all it knew.
    Crash { node: usize },
    /// A node starts: for the first time, or after a crash or a leave.
    Start { node: usize },
    /// The process of a node stands still and goes on later.
    Pause { node: usize, for_ms: u64 },
    /// The system clock of a node is set.
    ClockStep { node: usize, by_ms: i64 },
    /// A node leaves in order.
    Leave { node: usize },
    /// The rules are loaded anew on every node.
    Reload,
    /// Half of all asks are for one key, or no longer.
    Hot(bool),
    /// Half of all asks are for keys that were never asked before, or no longer.
    Flood(bool),
    /// A node is asked more at once than a lane holds.
    Burst { node: usize },
}

/// A fault and when it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Incident {
    /// Milliseconds after the load began.
    pub(crate) at_ms: u64,
    pub(crate) fault: Fault,
}

impl Fault {
    /// Whether it may make nodes take each other for dead, or changes who is a member.
    pub(crate) fn moves_keys(&self) -> bool {
        match self {
            Self::Weather { .. }
            | Self::Slow { .. }
            | Self::Split { .. }
            | Self::CutOneWay { .. }
            | Self::Crash { .. }
            | Self::Start { .. }
            | Self::Pause { .. }
            | Self::Leave { .. } => true,
            Self::Heal
            | Self::ClockStep { .. }
            | Self::Reload
            | Self::Hot(_)
            | Self::Flood(_)
            | Self::Burst { .. } => false,
        }
    }
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{} ms {:?}", self.at_ms, self.fault)
    }
}

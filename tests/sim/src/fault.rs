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
        match *self {
            Self::Split { .. }
            | Self::CutOneWay { .. }
            | Self::Crash { .. }
            | Self::Start { .. }
            | Self::Leave { .. } => true,
            Self::Weather { loss_ppm, late_ms, .. } => {
                loss_ppm > MILD_LOSS_PPM || late_ms > MILD_LATE_MS
            }
            Self::Slow { late_ms, .. } => late_ms > MILD_LATE_MS,
            Self::Pause { for_ms, .. } => for_ms > MILD_PAUSE_MS,
            Self::Heal
            | Self::ClockStep { .. }
            | Self::Reload
            | Self::Hot(_)
            | Self::Flood(_)
            | Self::Burst { .. } => false,
        }
    }

    /// Whether it may keep an ask from its owner or a key from a counter of its own.
    pub(crate) fn disturbs(&self) -> bool {
        match self {
            Self::Weather { .. }
            | Self::Slow { .. }
            | Self::Pause { .. }
            | Self::Flood(_)
            | Self::Burst { .. } => true,
            _ => self.moves_keys(),
        }
    }
}

/// What gossip and pings shrug off: retransmission costs milliseconds, and a node is taken for dead
/// after about a second.
const MILD_LOSS_PPM: u32 = 50_000;
const MILD_LATE_MS: u64 = 40;
const MILD_PAUSE_MS: u64 = 300;

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{} ms {:?}", self.at_ms, self.fault)
    }
}

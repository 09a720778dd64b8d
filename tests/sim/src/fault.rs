//! The faults that a scenario injects.

use std::fmt;

/// One change of the cluster or its network. Nodes are given by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Every link loses, duplicates and delays datagrams; all zero restores the links.
    PacketFaults { loss_ppm: u32, duplicate_ppm: u32, delay_ppm: u32, delay_ms: u64 },
    /// All traffic to and from a node is delayed; 0 ends it.
    Slow { node: usize, delay_ms: u64 },
    /// The nodes of `side` and the others cannot reach each other.
    Partition { side: Vec<usize> },
    /// Datagrams of `from` do not reach `to`.
    OneWayPartition { from: usize, to: usize },
    /// A node and those of `from` cannot reach each other; all others can.
    PartialPartition { node: usize, from: Vec<usize> },
    /// No core and an edge reach each other, or they do again.
    EdgeCut { edge: usize, is_cut: bool },
    /// Datagrams of the nodes of `from` do not reach those of `to`.
    OneWayCut { from: Vec<usize>, to: Vec<usize> },
    /// Links between regions lose and delay datagrams; all zero restores them.
    FarFaults { loss_ppm: u32, delay_ppm: u32, delay_ms: u64 },
    /// Ends every partition.
    Heal,
    /// Datagrams of more bytes are lost between two nodes; `None` ends it.
    BlackHole { one: usize, other: usize, over_bytes: Option<usize> },
    /// The process of a node ends without shutdown and loses its state.
    Crash { node: usize },
    /// All processes end at once, as in a loss of power.
    PowerLoss,
    /// All processes of a region end at once.
    Blackout { region: usize },
    /// The process ends of the node that stands for a region in the global map, and of every other
    /// one that stood for it.
    CrashStanding { region: usize },
    /// The process of one of the global voters ends: that of this rank among those that run.
    CrashGlobalVoter { rank: usize },
    /// An operator says that a region is lost, again and again until it is no home or until the
    /// next [`Fault::Heal`].
    RegionLost { region: usize },
    /// The disk of a node that does not run is replaced by an empty one.
    Wipe { node: usize },
    /// An operator makes a node that does not run the only voter of its cluster.
    Recover { node: usize },
    /// A node starts, for the first time or again.
    Start { node: usize },
    /// The process of a node is paused.
    Pause { node: usize, for_ms: u64 },
    /// The virtual machine of a node is stopped and goes on. Nothing in it can tell.
    Stop { node: usize, for_ms: u64 },
    /// The system clock of a node is stepped.
    ClockStep { node: usize, by_ms: i64 },
    /// Steps the system clocks of all machines.
    ClocksSet { by_ms: i64 },
    /// A node leaves gracefully.
    Leave { node: usize },
    /// Every node reloads its rules.
    Reload,
    /// A node reloads rules of which some have another mode, or those of the start again.
    Modes { node: usize, are_other: bool },
    /// Starts or ends a load in which half of all requests are for one key.
    HotKey(bool),
    /// Starts or ends a load in which half of all requests are for new keys.
    Flood(bool),
    /// A node receives more concurrent requests than one RPC stream carries.
    Burst { node: usize },
    /// No fault: all that follows waits until the cluster is in this state.
    Await(Awaited),
}

/// A state of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// As many nodes vote as can, all of them run, and no change of them is in progress.
    LiveVoters,
    /// Each token is decided by a node.
    AllOwned,
    /// The same, soon after a crash and no other fault.
    TakenOver,
    /// A node that runs is evicted.
    OneEvicted,
    /// In each region, one map is in force on all nodes, and has all of them; each token is decided
    /// by exactly one.
    Settled,
    /// All regions that may be homes are.
    AllHomes,
    /// One global map is in force on all nodes, all regions that may be are homes, and each global
    /// token is decided by exactly one node of all regions.
    GlobalSettled,
}

/// A fault and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Incident {
    /// Milliseconds from the start of the load.
    pub(crate) at_ms: u64,
    pub(crate) fault: Fault,
}

impl Fault {
    /// The node that it is about, if it is one.
    pub(crate) fn node(&self) -> Option<usize> {
        match *self {
            Self::Slow { node, .. }
            | Self::EdgeCut { edge: node, .. }
            | Self::PartialPartition { node, .. }
            | Self::Wipe { node }
            | Self::Recover { node }
            | Self::Crash { node }
            | Self::Start { node }
            | Self::Leave { node }
            | Self::Pause { node, .. }
            | Self::Stop { node, .. }
            | Self::ClockStep { node, .. }
            | Self::Modes { node, .. }
            | Self::Burst { node } => Some(node),
            _ => None,
        }
    }

    /// Whether it changes the membership or may make the failure detector report a live node as
    /// failed. Either moves keys to other owners.
    pub(crate) fn moves_keys(&self) -> bool {
        match *self {
            Self::Partition { .. }
            | Self::OneWayPartition { .. }
            | Self::PartialPartition { .. }
            | Self::BlackHole { .. }
            | Self::PowerLoss
            | Self::OneWayCut { .. }
            | Self::FarFaults { .. }
            | Self::Blackout { .. }
            | Self::CrashStanding { .. }
            | Self::CrashGlobalVoter { .. }
            | Self::Wipe { .. }
            | Self::Recover { .. }
            | Self::Crash { .. }
            | Self::Start { .. }
            | Self::Leave { .. } => true,
            Self::PacketFaults { loss_ppm, delay_ms, .. } => loses_pings(loss_ppm, delay_ms),
            Self::Slow { delay_ms, .. } => delay_ms > TOLERATED_DELAY_MS,
            Self::Pause { for_ms, .. } | Self::Stop { for_ms, .. } => for_ms > TOLERATED_PAUSE_MS,
            Self::Heal
            | Self::EdgeCut { .. }
            | Self::ClockStep { .. }
            | Self::ClocksSet { .. }
            | Self::Reload
            | Self::Modes { .. }
            | Self::HotKey(_)
            | Self::Flood(_)
            | Self::Burst { .. }
            | Self::RegionLost { .. }
            | Self::Await(_) => false,
        }
    }

    /// Whether it keeps nodes from each other.
    pub(crate) fn cuts(&self) -> bool {
        matches!(
            self,
            Self::Partition { .. }
                | Self::OneWayPartition { .. }
                | Self::PartialPartition { .. }
                | Self::OneWayCut { .. }
        )
    }

    /// Whether a request may not reach its key's owner, or a key may not get its own counter.
    pub(crate) fn disrupts_requests(&self) -> bool {
        match self {
            Self::PacketFaults { .. }
            | Self::EdgeCut { .. }
            | Self::Slow { .. }
            | Self::Pause { .. }
            | Self::Stop { .. }
            | Self::Flood(_)
            | Self::Burst { .. } => true,
            _ => self.moves_keys(),
        }
    }
}

/// Whether a node may be reported as failed because of such a link.
pub(crate) fn loses_pings(loss_ppm: u32, delay_ms: u64) -> bool {
    loss_ppm > TOLERATED_LOSS_PPM || delay_ms > TOLERATED_DELAY_MS
}

/// Up to these values no node is reported as failed: a retransmission costs milliseconds, and
/// failure detection takes about a second.
const TOLERATED_LOSS_PPM: u32 = 50_000;
const TOLERATED_DELAY_MS: u64 = 40;
const TOLERATED_PAUSE_MS: u64 = 300;

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{} ms {:?}", self.at_ms, self.fault)
    }
}

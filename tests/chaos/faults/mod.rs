//! The faults: preparation, injection and guarantees of each.

pub(crate) mod clock;
mod disk;
mod flood;
mod link;
mod process;

use std::time::Duration;

use clap::ValueEnum;

use crate::cluster::{Cluster, Setup};
use crate::group::Group;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// No fault: the baseline of this machine
    None,
    /// kill -9 of one node, which restarts
    Kill,
    /// SIGSTOP of three nodes in turn, 300 ms each
    Pause,
    /// SIGSTOP of one node for 3 s
    LongPause,
    /// Three nodes and two cannot reach each other
    Partition,
    /// As partition; one of the two nodes is killed and restarts while it is cut off
    RestartInPartition,
    /// One node is cut off; meanwhile another one is stopped for 3 s
    PauseInPartition,
    /// Three nodes and two, each a region, cannot reach each other; global keys only
    RegionCut,
    /// Two nodes receive nothing from the other three, which receive from them
    OneWayCut,
    /// One node loses 30 % of the datagrams that it receives
    OneWayLoss,
    /// Datagrams from and to one node are delayed by up to 20 ms and reordered
    Delay,
    /// The system clock of one node jumps ten minutes ahead
    ClockJump,
    /// The disk of one node is full
    DiskFull,
    /// SIGTERM and restart of all five nodes, one after the other
    RollingRestart,
    /// A sixth node joins
    Join,
    /// One of five nodes leaves
    Leave,
    /// kill -9 of three nodes, one after the other; a node with a new name starts in place of each
    Replace,
    /// kill -9 of all nodes at once, which restart
    Blackout,
    /// A flood of --junk new keys
    Flood,
}

/// The time of a fault in seconds: a fixed overhead, and the default duration of the fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) overhead_s: u64,
    pub(crate) duration_s: u64,
}

/// The guarantees that are checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Longest time without an exact answer for one key, at nodes that can reach an owner.
    pub(crate) without_exact_answer: Duration,
    /// Longest time until an acknowledged hit survives a crash: until it is on a replica, or on
    /// disk when all nodes crash.
    pub(crate) lag: Duration,
    /// Whether keys with `durability: replicated` lose nothing within the lag.
    pub(crate) keeps_durable: bool,
}

/// Command line options that faults use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultOptions {
    pub(crate) junk: u64,
}

/// Several intervals of 5 ms, on a machine that runs five nodes and their load.
const REPLICATION_LAG: Duration = Duration::from_millis(50);
/// Several snapshot intervals, configured as 500 ms.
const STORAGE_LAG: Duration = Duration::from_secs(2);
/// Time limit for views to agree after the fault.
pub(crate) const CONVERGENCE_MAX: Duration = Duration::from_secs(3);

impl Fault {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    pub(crate) fn budget(self) -> Budget {
        let (overhead_s, duration_s) = match self {
            Self::Partition | Self::OneWayCut => (11, 12),
            Self::RestartInPartition | Self::PauseInPartition => (14, 12),
            Self::RegionCut => (11, 8),
            Self::Replace => (20, 9),
            Self::ClockJump => (9, 15),
            Self::RollingRestart => (24, 1),
            Self::LongPause => (12, 1),
            Self::Blackout => (14, 4),
            Self::Flood => (20, 1),
            Self::OneWayLoss | Self::Delay | Self::DiskFull => (9, 6),
            Self::None | Self::Kill | Self::Pause | Self::Join | Self::Leave => (9, 4),
        };
        Budget { overhead_s, duration_s }
    }

    /// The groups of the load; a repeated group gets a larger share.
    pub(crate) fn groups(self) -> &'static [Group] {
        match self {
            Self::ClockJump => &[Group::Count, Group::Strict, Group::Window, Group::Window],
            // Keys of a region are counted in each.
            Self::RegionCut => &[Group::Global],
            _ => &[Group::Count, Group::Strict, Group::Durable, Group::Local],
        }
    }

    pub(crate) fn bounds(self) -> Bounds {
        let without_exact_answer = match self {
            Self::Partition
            | Self::OneWayCut
            | Self::RestartInPartition
            | Self::PauseInPartition => Duration::from_secs(3),
            // Each key has no exact answer in one of the regions until the cut has ended.
            Self::RegionCut => Duration::MAX,
            // Also without a fault: a busy machine is late now and then. In a blackout no node is
            // available, so this is the time after the restart.
            _ => Duration::from_secs(2),
        };
        let lag = if self == Self::Blackout { STORAGE_LAG } else { REPLICATION_LAG };
        // The confirming replica may be on the owner's side of a cut.
        let keeps_durable = !self.cuts_off() && self != Self::Blackout;
        Bounds { without_exact_answer, lag, keeps_durable }
    }

    /// Whether nodes are cut off from a majority.
    fn cuts_off(self) -> bool {
        matches!(
            self,
            Self::Partition | Self::OneWayCut | Self::RestartInPartition | Self::PauseInPartition
        )
    }

    /// Configures the nodes before they start.
    ///
    /// The result must be kept while the nodes run.
    pub(crate) async fn prepare(self, setup: &mut Setup) -> Option<link::Slow> {
        match self {
            Self::Delay => {
                // More than twice the round trip of the link.
                setup.cluster_options.push_str("deadline = \"100ms\"\n");
                return Some(link::slow(setup).await);
            }
            Self::ClockJump => clock::prepare(setup),
            Self::DiskFull => disk::prepare(setup),
            Self::Flood => flood::prepare(setup),
            // Of an owner and two replicas, one is in the majority, whichever two nodes are cut
            // off.
            fault if fault.cuts_off() => setup.cluster_options.push_str("replicas = 2\n"),
            Self::RegionCut => link::prepare_regions(setup),
            Self::Replace => setup.cluster_options.push_str("replace_after = \"1s\"\n"),
            // A planned change is exact if no check times out.
            Self::RollingRestart | Self::Join | Self::Leave => {
                setup.cluster_options.push_str("deadline = \"1s\"\n");
            }
            _ => {}
        }
        None
    }

    /// Waits before the start, so that no window ends during the fault.
    pub(crate) async fn wait_for_window(self, duration: Duration) {
        if self.groups().contains(&Group::Window) {
            clock::wait_for_window(duration).await;
        }
    }

    /// Injects the fault under load. When this returns, the fault has ended and the network is
    /// restored.
    pub(crate) async fn inject(self, cluster: &mut Cluster, fault_options: FaultOptions) {
        match self {
            Self::None | Self::Delay => tokio::time::sleep(cluster.duration).await,
            Self::Kill => process::kill_one(cluster).await,
            Self::Blackout => process::kill_all(cluster).await,
            Self::Pause => process::pause_three(cluster, Duration::from_millis(300)).await,
            Self::LongPause => process::pause_one(cluster, Duration::from_secs(3)).await,
            Self::Partition => link::partition(cluster, link::Direction::Both).await,
            Self::RestartInPartition => link::restart_in_partition(cluster).await,
            Self::PauseInPartition => link::pause_in_partition(cluster).await,
            Self::RegionCut => link::cut_regions(cluster).await,
            Self::OneWayCut => link::partition(cluster, link::Direction::Inbound).await,
            Self::OneWayLoss => link::loss(cluster).await,
            Self::ClockJump => clock::jump(cluster).await,
            Self::DiskFull => disk::fill(cluster).await,
            Self::RollingRestart => process::restart_all(cluster).await,
            Self::Join => process::join(cluster).await,
            Self::Leave => process::leave(cluster).await,
            Self::Replace => process::replace_three(cluster).await,
            Self::Flood => flood::pour(cluster, fault_options.junk).await,
        }
    }
}

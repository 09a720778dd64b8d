//! The faults: what is prepared for each, what is done, and what must hold.

mod churn;
pub(crate) mod clock;
mod crash;
mod disk;
mod flood;
mod link;
mod pause;

use std::time::Duration;

use clap::ValueEnum;

use crate::arena::{Arena, Setup};
use crate::group::Group;

/// What can be done to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// Nothing: what the machine itself costs
    None,
    /// kill -9 of one node, which comes back
    Kill,
    /// SIGSTOP of three nodes in turn, 300 ms each
    Pause,
    /// SIGSTOP of one node for 3 s
    LongPause,
    /// Three nodes and two receive nothing from each other
    Partition,
    /// Two nodes receive nothing from the other three, which receive from them
    OneWayCut,
    /// One node loses three in ten of the datagrams that it receives
    OneWayLoss,
    /// Datagrams from and to one node take up to 20 ms, out of order
    Delay,
    /// The clock of one node jumps ten minutes ahead
    ClockJump,
    /// The disk of one node is full
    DiskFull,
    /// SIGTERM and start of all five, one after the other
    RollingRestart,
    /// A sixth node joins
    Join,
    /// One of five nodes leaves
    Leave,
    /// kill -9 of all nodes at once, which come back
    Blackout,
    /// As many junk keys as --junk
    Flood,
}

/// Seconds: what a fault takes anyhow, and how long it lasts beside that by default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) fixed_s: u64,
    pub(crate) hold_s: u64,
}

/// What must hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    /// Longest time that a key has no right answer, at nodes that can reach an owner.
    pub(crate) without_right_answer: Duration,
    /// What an acknowledged count takes at most to where a crash does not reach: to a replica, or
    /// to the disk when all nodes die.
    pub(crate) lag: Duration,
    /// Whether `durability: replicated` keeps what was counted within the lag.
    pub(crate) spares_durable: bool,
}

/// What of the run concerns a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) junk: u64,
}

/// A few intervals of 5 ms, on a machine that carries five nodes and their load.
const REPLICATION_LAG: Duration = Duration::from_millis(50);
/// A few intervals of the 500 ms that the nodes are configured with here.
const STORAGE_LAG: Duration = Duration::from_secs(2);
/// After the last fault every node has one view again.
pub(crate) const ONE_VIEW_WITHIN: Duration = Duration::from_secs(3);

impl Fault {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    pub(crate) fn budget(self) -> Budget {
        let (fixed_s, hold_s) = match self {
            Self::Partition | Self::OneWayCut => (11, 12),
            Self::ClockJump => (9, 15),
            Self::RollingRestart => (24, 1),
            Self::LongPause => (12, 1),
            Self::Blackout => (14, 4),
            Self::Flood => (20, 1),
            Self::OneWayLoss | Self::Delay | Self::DiskFull => (9, 6),
            Self::None | Self::Kill | Self::Pause | Self::Join | Self::Leave => (9, 4),
        };
        Budget { fixed_s, hold_s }
    }

    /// The groups of the load, each as often as it is named.
    pub(crate) fn groups(self) -> &'static [Group] {
        match self {
            Self::ClockJump => &[Group::Count, Group::Strict, Group::Window, Group::Window],
            _ => &[Group::Count, Group::Strict, Group::Durable, Group::Local],
        }
    }

    pub(crate) fn promise(self) -> Promise {
        let without_right_answer = match self {
            Self::Partition | Self::OneWayCut => Duration::from_secs(3),
            // Without a fault as well: a busy machine is late now and then. In a blackout no node
            // runs, and this is the time after it.
            _ => Duration::from_secs(2),
        };
        let lag = if self == Self::Blackout { STORAGE_LAG } else { REPLICATION_LAG };
        // One confirmation may come from the owner's own side of a cut.
        let spares_durable = !matches!(self, Self::Blackout | Self::Partition | Self::OneWayCut);
        Promise { without_right_answer, lag, spares_durable }
    }

    /// Before the nodes start.
    ///
    /// What it returns is to be kept while they run.
    pub(crate) async fn prepare(self, setup: &mut Setup) -> Option<link::Slow> {
        match self {
            Self::Delay => {
                // More than twice what the link takes there and back.
                setup.cluster.push_str("deadline = \"100ms\"\n");
                return Some(link::slow(setup).await);
            }
            Self::ClockJump => clock::prepare(setup),
            Self::DiskFull => disk::prepare(setup),
            Self::Flood => flood::prepare(setup),
            // Of an owner and two replicas one is in the majority, whichever two nodes are cut off.
            Self::Partition | Self::OneWayCut => setup.cluster.push_str("replicas = 2\n"),
            // A planned change is exact while no check times out.
            Self::RollingRestart | Self::Join | Self::Leave => {
                setup.cluster.push_str("deadline = \"1s\"\n");
            }
            _ => {}
        }
        None
    }

    /// Before it starts, so that no window that counts ends while it lasts.
    pub(crate) async fn wait_for_its_time(self, hold: Duration) {
        if self.groups().contains(&Group::Window) {
            clock::far_from_the_next_window(hold).await;
        }
    }

    /// While the load runs. It has ended, and the network is whole, when this returns.
    pub(crate) async fn strike(self, arena: &mut Arena, extent: Extent) {
        match self {
            Self::None | Self::Delay => tokio::time::sleep(arena.hold).await,
            Self::Kill => crash::one(arena).await,
            Self::Blackout => crash::all(arena).await,
            Self::Pause => pause::three_for(arena, Duration::from_millis(300)).await,
            Self::LongPause => pause::one_for(arena, Duration::from_secs(3)).await,
            Self::Partition => link::partition(arena, link::Ways::Two).await,
            Self::OneWayCut => link::partition(arena, link::Ways::One).await,
            Self::OneWayLoss => link::loss(arena).await,
            Self::ClockJump => clock::jump(arena).await,
            Self::DiskFull => disk::fill(arena).await,
            Self::RollingRestart => churn::restart_all(arena).await,
            Self::Join => churn::join(arena).await,
            Self::Leave => churn::leave(arena).await,
            Self::Flood => flood::pour(arena, extent.junk).await,
        }
    }
}

//! Situations that a run may get into. A suite in which no seed reached a required one has tested
//! less than it seems, and fails.

use std::fmt;

/// Something worth having been through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Situation {
    /// Nothing went wrong at all.
    Calm,
    /// Datagrams were lost, doubled or overtaken.
    BadWeather,
    /// A node was slow.
    SlowPeer,
    /// Nodes were split in two sides.
    Split,
    /// A link was cut in one direction.
    OneWayCut,
    /// A node joined or left while others were cut off.
    HandoffInSplit,
    /// A process ended while another waited for its verdict.
    OwnerDiedMidAsk,
    /// A key's count was still there after its owner had crashed.
    PromotedReplica,
    /// A node came back after a crash, without what it knew.
    RejoinedWithoutState,
    /// A process stood still for longer than a lease.
    LongPause,
    /// A system clock jumped.
    ClockStep,
    /// A node left in order and was gone.
    Left,
    /// A node came that was not there before.
    Joined,
    /// The rules were loaded anew under load.
    Reloaded,
    /// One key was asked as often as all others together.
    HotKey,
    /// A store was full and new keys shared a counter.
    FullStore,
    /// A lane to a peer that answers was full.
    FullQueue,
    /// An ask was answered by policy.
    PolicyAnswered,
    /// A key reached its limit.
    LimitReached,
}

use Situation::*;

/// Every situation, in the order of the table.
pub(crate) const SITUATIONS: [Situation; 19] = [
    Calm,
    BadWeather,
    SlowPeer,
    Split,
    OneWayCut,
    HandoffInSplit,
    OwnerDiedMidAsk,
    PromotedReplica,
    RejoinedWithoutState,
    LongPause,
    ClockStep,
    Left,
    Joined,
    Reloaded,
    HotKey,
    FullStore,
    FullQueue,
    PolicyAnswered,
    LimitReached,
];

impl Situation {
    /// Whether a suite that never got there fails.
    pub(crate) fn is_required(self) -> bool {
        // Owners do not replicate, so no replica has anything to be promoted with.
        self != PromotedReplica
    }

    /// The situation that `name` stands for, as written by `Display`.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        SITUATIONS.into_iter().find(|situation| situation.to_string() == name)
    }
}

impl fmt::Display for Situation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Calm => "nothing went wrong",
            BadWeather => "bad weather",
            SlowPeer => "slow peer",
            Split => "split in two",
            OneWayCut => "cut in one direction",
            HandoffInSplit => "handoff during a partition",
            OwnerDiedMidAsk => "owner died between check and answer",
            PromotedReplica => "promoted replica",
            RejoinedWithoutState => "rejoin with lost state",
            LongPause => "pause longer than a lease",
            ClockStep => "clock step",
            Left => "node left in order",
            Joined => "new node joined",
            Reloaded => "rules reloaded",
            HotKey => "hot key",
            FullStore => "full store",
            FullQueue => "full queue",
            PolicyAnswered => "answer by policy",
            LimitReached => "limit reached",
        })
    }
}

//! Situations that a run may reach. A suite in which no seed reached one of them fails, because its
//! checks did not exercise that situation.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Situation {
    NoFaults,
    /// Datagrams were lost, duplicated or reordered.
    PacketFaults,
    /// All traffic of a node was delayed.
    SlowPeer,
    /// The nodes were partitioned in two.
    Partition,
    /// One direction of a link was cut.
    OneWayPartition,
    /// A node joined or left during a partition.
    HandoffInPartition,
    /// An owner crashed before it answered another node's request.
    OwnerCrashedMidRequest,
    /// A key kept its count after its owner had crashed.
    PromotedReplica,
    /// A node restarted after a crash, without its state.
    RejoinedWithoutState,
    /// A process was paused for longer than a lease.
    LongPause,
    /// A virtual machine was stopped, with all of its clocks.
    StoppedMachine,
    /// A system clock jumped.
    ClockStep,
    /// A node left gracefully and exited.
    Left,
    /// A node joined for the first time.
    Joined,
    /// The rules were reloaded under load.
    Reloaded,
    /// One key received half of all requests.
    HotKey,
    /// A store was full, so new keys shared a counter.
    FullStore,
    /// The send queue to a responsive peer was full.
    FullQueue,
    /// A request was answered by the fallback.
    FallbackAnswered,
    /// A key reached its limit.
    LimitReached,
}

/// Every situation and its display name, in table order.
pub(crate) const SITUATIONS: [(Situation, &str); 20] = [
    (Situation::NoFaults, "no faults"),
    (Situation::PacketFaults, "packet loss, duplicates or delay"),
    (Situation::SlowPeer, "slow peer"),
    (Situation::Partition, "network partition"),
    (Situation::OneWayPartition, "one-way partition"),
    (Situation::HandoffInPartition, "handoff during a partition"),
    (Situation::OwnerCrashedMidRequest, "owner crashed during a request"),
    (Situation::PromotedReplica, "promoted replica"),
    (Situation::RejoinedWithoutState, "rejoin with lost state"),
    (Situation::LongPause, "pause longer than a lease"),
    (Situation::StoppedMachine, "stopped machine"),
    (Situation::ClockStep, "clock step"),
    (Situation::Left, "graceful leave"),
    (Situation::Joined, "new node joined"),
    (Situation::Reloaded, "rules reloaded"),
    (Situation::HotKey, "hot key"),
    (Situation::FullStore, "full store"),
    (Situation::FullQueue, "full queue"),
    (Situation::FallbackAnswered, "fallback answer"),
    (Situation::LimitReached, "limit reached"),
];

impl Situation {
    /// Parses a display name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        SITUATIONS.into_iter().find(|(_, its)| *its == name).map(|(situation, _)| situation)
    }
}

impl fmt::Display for Situation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = SITUATIONS.into_iter().find(|(situation, _)| situation == self);
        f.pad(name.map_or("unnamed situation", |(_, name)| name))
    }
}

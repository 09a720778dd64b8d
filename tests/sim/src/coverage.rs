//! Situations that a run may get into. A suite in which no seed reached one of them has tested
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

/// Every situation and its name, in the order of the table.
pub(crate) const SITUATIONS: [(Situation, &str); 19] = [
    (Situation::Calm, "nothing went wrong"),
    (Situation::BadWeather, "bad weather"),
    (Situation::SlowPeer, "slow peer"),
    (Situation::Split, "split in two"),
    (Situation::OneWayCut, "cut in one direction"),
    (Situation::HandoffInSplit, "handoff during a partition"),
    (Situation::OwnerDiedMidAsk, "owner died between check and answer"),
    (Situation::PromotedReplica, "promoted replica"),
    (Situation::RejoinedWithoutState, "rejoin with lost state"),
    (Situation::LongPause, "pause longer than a lease"),
    (Situation::ClockStep, "clock step"),
    (Situation::Left, "node left in order"),
    (Situation::Joined, "new node joined"),
    (Situation::Reloaded, "rules reloaded"),
    (Situation::HotKey, "hot key"),
    (Situation::FullStore, "full store"),
    (Situation::FullQueue, "full queue"),
    (Situation::PolicyAnswered, "answer by policy"),
    (Situation::LimitReached, "limit reached"),
];

impl Situation {
    /// The situation that `name` stands for, as written by `Display`.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        SITUATIONS.into_iter().find(|(_, its)| *its == name).map(|(situation, _)| situation)
    }
}

impl fmt::Display for Situation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = SITUATIONS.into_iter().find(|(situation, _)| situation == self);
        f.pad(name.map_or("a situation without a name", |(_, name)| name))
    }
}

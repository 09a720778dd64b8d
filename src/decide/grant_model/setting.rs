//! What a run of the model is bounded by, and which rule it leaves out.

/// How many events of each kind are left. Messages are lost by never arriving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Bounds {
    /// Steps of time.
    pub(super) ticks: u8,
    /// Calls that ask for hits, of both holders.
    pub(super) asks: u8,
    /// Calls that end without a reply.
    pub(super) time_outs: u8,
    /// Messages that arrive twice.
    pub(super) doubled: u8,
    /// Checks of the owner's own clients.
    pub(super) checks: u8,
    /// Grants that no replica confirms.
    pub(super) unconfirmed: u8,
    /// Restarts of a holder.
    pub(super) restarts: u8,
    /// Deaths of an owner.
    pub(super) crashes: u8,
    /// Planned changes of the owner.
    pub(super) handovers: u8,
    /// Holders that learn another rule.
    pub(super) reloads: u8,
    /// Refunds of clients.
    pub(super) refunds: u8,
}

/// A rule without which grants would not be safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    ChargedBefore,
    /// Of a bucket.
    ChargedAtTheEndOfTheTerm,
    ConfirmedBeforeItIsSent,
    /// A call that arrives twice is granted something once.
    GrantedOnce,
    CountedFromSending,
    /// After three quarters of it, for clocks of other speeds.
    EndsBeforeItsTerm,
    /// Of a window.
    EndsWithItsSlice,
    ExpiredIsNotSpent,
    GivenBackIsNotSpent,
    /// What a call brings whose holder has given up is not spent: it was given back.
    LateReplyIsNotSpent,
    OtherLimitsAreNotSpent,
    GivenBackOnce,
    NoMoreThanGranted,
    /// Nothing is given back of a window that is over.
    NotLate,
    /// A mark is lowered by what is given back of grants beside it.
    MarksAreLowered,
    /// A grant is that of one start of its holder.
    OfOneIncarnation,
    /// An owner without an entry in its ledger takes nothing back.
    OnlyWhatIsEntered,
    /// A refund takes nothing that may not have been spent.
    OutstandingIsNotRefunded,
    /// Nor does one by a node that has just become the owner.
    UnknownIsNotRefunded,
}

//! The states, steps and replies of a range transfer to one member.
//!
//! ```text
//! Pending --offer--> Copying --> Copied --freeze--> Frozen --> Flushed --release--> Released
//!   ^                                                 |          |
//!   +----------------- flush failed ------------------+----------+ lease lost
//! ```
//!
//! Each change of the epoch returns every transfer to `Pending`.

use serde::{Deserialize, Serialize};

use crate::epoch::Epoch;
use crate::identity::Generation;
use crate::ranges::Ranges;

/// The progress of the transfer to one member under the current epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Transfer {
    /// Not yet offered, or the offer was not accepted.
    #[default]
    Pending,
    /// The member is at our epoch; states are being copied to it.
    Copying,
    /// All states are copied; the ranges are released once nothing else may return to them.
    Copied,
    /// These ranges are frozen; the last changes are being flushed.
    Frozen(Ranges),
    /// Frozen and flushed; the release is to be sent.
    Flushed(Ranges),
    /// The member accepted the release.
    Released,
}

/// A release without a reply. Either side may hold its ranges, so this node decides none of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct UnackedRelease {
    /// The incarnation of the receiver.
    pub(super) generation: Generation,
    pub(super) epoch: Epoch,
    pub(super) number: u64,
    pub(super) ranges: Ranges,
}

/// What the driver has to do next for one member; the outcome is reported to
/// [`RingOwnership`](crate::RingOwnership).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TransferStep {
    /// Send an offer under this epoch.
    Offer(Epoch),
    /// Subscribe the member to every change of `follows` from now on, and send it all states in
    /// `follows` and `copies`.
    Copy {
        /// Ranges that this node still decides, so their states may change during the copy.
        follows: Ranges,
        /// Ranges of the member whose states it may not have.
        copies: Ranges,
    },
    /// Wait until no decision is in progress in the frozen ranges, then send the last changes.
    Flush,
    /// Send a release.
    Release { epoch: Epoch, number: u64, ranges: Ranges },
}

/// The reply to an offer or a release. The order of the variants is the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HandoffReply {
    /// The receiver is at the sender's epoch: copy the states, then release.
    Ready,
    /// The receiver is at another epoch, or does not recognise the sender: retry soon.
    Later,
    /// The receiver holds the released ranges.
    Accepted,
    /// The receiver was at another epoch and will never accept this release.
    Refused,
}

//! What this node owes another under the present epoch, and what is on its way.

use serde::{Deserialize, Serialize};

use crate::Epoch;
use crate::identity::Generation;
use crate::ranges::Ranges;

/// How far a debt to one member has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Transfer {
    /// To be offered.
    #[default]
    Due,
    /// It said that it stands at our epoch; states are being copied.
    Copying,
    /// Copied; to be released as soon as nothing stands in the way.
    Copied,
    /// These ranges are frozen; what changed last is being flushed.
    Frozen(Ranges),
    /// Flushed; to be released.
    Flushed(Ranges),
    /// It answered that it took what it was owed.
    Paid,
}

/// A release that was not answered yet. Either side may hold its ranges, so neither decides them
/// here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct UnackedRelease {
    pub(super) generation: Generation,
    pub(super) epoch: Epoch,
    pub(super) number: u64,
    pub(super) ranges: Ranges,
}

/// The next thing to do for one member; [`super::Ring`] says what follows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Send an offer under this epoch.
    Offer(Epoch),
    /// Let the member hear every change of `follows` from now on, and send it every state at
    /// `copies`.
    Copy {
        /// What may change while it is copied.
        follows: Ranges,
        /// What it may not have.
        copies: Ranges,
    },
    /// Wait until no decision is under way in the frozen ranges, then send what changed last.
    Flush,
    /// Send a release.
    Release {
        /// Under this epoch.
        epoch: Epoch,
        /// Its number.
        number: u64,
        /// What changes hands.
        ranges: Ranges,
    },
}

/// What the receiver of an offer or of a release answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HandoffReply {
    /// Send it.
    Ready,
    /// The receiver stands at another epoch: offer again soon.
    Later,
    /// The receiver holds the ranges.
    Taken,
    /// The receiver stood at another epoch and will never take them by this release.
    Refused,
}

//! The name of a ring at a time.

use serde::{Deserialize, Serialize};

/// Which members a node recognises on one ring, as a value that two nodes can compare.
///
/// Equal exactly when both recognise the same members, know the same ones, and count alike. Ordered
/// by number: the newer epoch is the greater one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch {
    /// Grows whenever the roll changes, and is never lower than one met at a peer.
    pub number: u64,
    /// Fingerprint of the members recognised and known.
    pub name: u64,
}

impl Epoch {
    /// Highest number that is believed of a peer. An honest one counts the changes of a roll; at
    /// one a nanosecond it would be here after 292 years. As many numbers are left above it, so
    /// that whoever believed it can go on counting.
    pub const NUMBER_MAX: u64 = u64::MAX / 2;
}

/// A node's epochs, one a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Epochs {
    /// Of its region's ring.
    pub region: Epoch,
    /// Of the ring over all regions.
    pub global: Epoch,
}

/// Where a node stands, as its pings tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OwnershipStatus {
    /// Its epochs.
    pub epochs: Epochs,
    /// Whether a quorum of its region recognises it.
    pub has_lease: bool,
}

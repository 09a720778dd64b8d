//! A version of a ring's membership, as two nodes compare it.

use serde::{Deserialize, Serialize};

/// A version of one ring.
///
/// Two nodes' epochs are equal exactly when both recognise the same members and count the same
/// voters. Epochs are ordered by number; the newer one is greater.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch {
    /// Incremented by each membership change, and never lower than the highest seen at a peer.
    pub number: u64,
    /// Fingerprint of the recognised members and the voters
    /// ([`RingMembers::fingerprint`](crate::RingMembers::fingerprint)).
    pub name: u64,
}

impl Epoch {
    /// Highest number that is accepted from a peer. An honest number counts membership changes; at
    /// one change per nanosecond it would take 292 years to get here. The same range is left above
    /// it, so that a node that accepted this number can go on counting.
    pub const NUMBER_MAX: u64 = u64::MAX / 2;
}

/// A node's epochs, one per ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Epochs {
    /// Of the ring of the node's own region.
    pub region: Epoch,
    /// Of the ring over all regions.
    pub global: Epoch,
}

/// The ownership state of a node that its pings carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OwnershipStatus {
    pub epochs: Epochs,
    /// Whether the sender holds the lease of its region's ring.
    pub has_lease: bool,
}

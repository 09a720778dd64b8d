//! Who owns a key, while nodes die, join, leave and split: the protocol of
//! `docs/adr/0001-who-owns-a-key.md`.
//!
//! [`MembershipTable`] says whom this node recognises, [`Lease`](lease) whether a quorum recognises it,
//! [`Ring`] what it holds on one ring and how ranges change hands. The three are pure: time is an
//! argument, messages are values.

mod epoch;
pub mod identity;
pub mod lease;
pub mod members;
pub mod membership;
pub mod membership_table;
pub mod name;
pub mod quorum;
pub mod ranges;
pub mod ring;
mod ring_ownership;
pub mod route;
mod transfer;
mod voters;

pub use epoch::{Epoch, Epochs, OwnershipStatus};
pub use lease::{LeaseState, RecordedGrant};
pub use members::{Members, Place};
pub use membership_table::{LiveMember, MembershipTable};
pub use quorum::{Quorum, QuorumRule};
pub use ring_ownership::Ring;
pub use transfer::{HandoffReply, Step};
pub use voters::{VoterSet, Voters};

/// Time since this node started, by its monotonic clock.
pub type Monotonic = tidegate_limiter::units::Timestamp;

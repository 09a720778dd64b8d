//! Who owns a key while nodes crash, join, leave and lose contact: the protocol of
//! `docs/adr/0001-who-owns-a-key.md` as state machines without I/O.
//!
//! This crate opens no socket, reads no clock, spawns no task and holds no lock. Time is an
//! argument, messages are values, and equal inputs in equal order lead to equal states; that is
//! what makes the protocol model-checkable (`tests/model.rs`). It does not promise progress: a node
//! makes progress only while its driver delivers pings and calls [`RingOwnership::tick`].
//!
//! # State machines
//!
//! | type | decides |
//! |---|---|
//! | [`MembershipTable`] | which members this node recognises, and when one is evicted |
//! | [`Voters`] | which members count for a quorum, including lost ones |
//! | [`lease::Lease`] | whether a quorum recognises this node, and until when |
//! | [`RingOwnership`] | which ranges of one ring this node holds, and how they change hands |
//!
//! # Values
//!
//! [`identity`] and [`name`] say what a node is called; [`membership`] is the immutable view of the
//! cluster, [`ring`] the consistent-hash ring of a view, [`route`] the owner of each key that
//! follows from it, [`ranges`] a set of ring tokens, [`Quorum`] a majority, [`Epoch`] a version of
//! the ring, [`RingMembers`] what an epoch means.
//!
//! # Driving contract
//!
//! One [`MembershipTable`], one [`Voters`] and one [`RingOwnership`] per ring belong to a node.
//! Their driver serialises all access to them and does three things:
//!
//! 1. **Input.** It reports every event: [`MembershipTable::update`] for gossip,
//!    [`RingOwnership::follow`] when the table or the voters changed,
//!    [`RingOwnership::pong_received`] for answered pings, [`RingOwnership::offer_received`] and
//!    [`RingOwnership::release_received`] for messages, whose results are the replies to send.
//! 2. **Drain.** After each input it calls [`RingOwnership::next_step`] for each member, carries
//!    out the [`TransferStep`], and reports the outcome. One step per member is in progress at a
//!    time. A step may freeze ranges, so [`RingOwnership::decides`] has to be republished *before*
//!    the step is carried out.
//! 3. **Timeout.** It calls [`RingOwnership::tick`] and [`MembershipTable::evict`] every few
//!    milliseconds. There is no deadline to query: ticking too often is harmless, ticking too
//!    seldom delays claims and never breaks an invariant, because each decision compares the
//!    lease's end with the clock itself.

mod epoch;
pub mod identity;
pub mod lease;
pub mod membership;
pub mod membership_table;
pub mod name;
pub mod quorum;
pub mod ranges;
pub mod ring;
mod ring_members;
mod ring_ownership;
pub mod route;
mod voters;

pub use epoch::{Epoch, Epochs, OwnershipStatus};
pub use lease::{EntryId, LeaseState};
pub use membership::{Voter, VoterSet};
pub use membership_table::{LiveMember, MembershipTable};
pub use quorum::{Quorum, QuorumRule};
pub use ring_members::{RingMember, RingMembers};
pub use ring_ownership::{HandoffReply, RingOwnership, TransferStep};
pub use tidegate_limiter::units::Monotonic;
pub use voters::Voters;

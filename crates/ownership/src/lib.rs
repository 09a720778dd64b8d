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
//! | [`Autopilot`](autopilot::Autopilot) | the next map: who joins, leaves, is evicted and votes |
//! | [`Grants`](grants::Grants) | whom a voter grants a lease, and which map it may report |
//! | [`Lease`](lease::Lease) | until when this node may decide |
//! | [`RegionRight`](region_right::RegionRight) | until when this region may decide global keys |
//! | [`RegionGrants`](region_right::RegionGrants) | which regions a global voter grants that |
//! | [`RingOwnership`] | which ranges this node holds, and how they change hands |
//!
//! # Values
//!
//! [`identity`] and [`name`] say what a node is called; [`cluster_map`] is the agreed membership of
//! a region, [`homes`] the region of a global key, [`shares`] the tokens of
//! a key that has one in each region, [`membership`] what is known about the members
//! of all regions, [`ring`] the consistent-hash ring, [`route`] the owner of each key that follows
//! from it, [`ranges`] a set of ring tokens, [`RingMembers`] what an epoch means, [`standstill`]
//! whether the clock of this node stood still, [`clock_offsets`] how far others are from it,
//! [`versions`] which messages two nodes understand.
//!
//! # Driving contract
//!
//! One [`Grants`](grants::Grants) and one [`RingOwnership`] belong to a node. Their driver
//! serialises all access to them and does three things:
//!
//! 1. **Input.** It reports every event: [`RingOwnership::follow`] for a newer map,
//!    [`RingOwnership::pong_received`] for answered pings, [`RingOwnership::report_received`] for
//!    what this node itself reports as a voter, [`RingOwnership::offer_received`] and
//!    [`RingOwnership::release_received`] for messages, whose results are the replies to send. As a
//!    voter it answers pings with [`Grants::grant`](grants::Grants::grant) and
//!    [`Grants::report`](grants::Grants::report), both with the newest map that it knows, and the
//!    second with what is on its disk.
//! 2. **Drain.** After each input it calls [`RingOwnership::next_step`] for each member, carries
//!    out the [`TransferStep`], and reports the outcome. One step per member is in progress at a
//!    time. A step may freeze ranges, so [`RingOwnership::decides`] has to be republished *before*
//!    the step is carried out.
//! 3. **Timeout.** It calls [`RingOwnership::tick`] every few milliseconds. There is no deadline to
//!    query: ticking too often is harmless, ticking too seldom delays claims and never breaks an
//!    invariant, because each decision compares the lease's end with the clock itself.

pub mod autopilot;
pub mod clock_offsets;
pub mod cluster_map;
pub mod grants;
pub mod homes;
pub mod identity;
pub mod lease;
pub mod membership;
pub mod name;
pub mod ranges;
pub mod region_right;
pub mod ring;
mod ring_members;
mod ring_ownership;
pub mod route;
pub mod shares;
pub mod standstill;
pub mod versions;

pub use cluster_map::{ClusterMap, Epoch, Identity, MemberId};
pub use lease::{QuorumRule, VoteGrant};
pub use ring_members::RingMembers;
pub use ring_ownership::{HandoffReply, RingOwnership, TransferStep};
pub use tidegate_limiter::units::Monotonic;
pub use versions::Versions;

//! Who owns a key, while nodes die, join, leave and split: the protocol of
//! `docs/adr/0001-who-owns-a-key.md`.
//!
//! [`Roll`] says whom this node recognises, [`Lease`](lease) whether a quorum recognises it,
//! [`Ring`] what it holds on one ring and how ranges change hands. The three are pure: time is an
//! argument, messages are values.

mod debts;
mod epoch;
pub mod identity;
mod known;
pub mod lease;
mod machine;
pub mod members;
pub mod membership;
pub mod name;
pub mod quorum;
pub mod ranges;
pub mod ring;
pub mod roll;
pub mod route;

pub use debts::{HandoffReply, Step};
pub use epoch::{Epoch, Epochs, Stand};
pub use known::{Acquaintance, Electorate};
pub use lease::{Recognised, Standing};
pub use machine::Ring;
pub use members::{Members, Place};
pub use quorum::{Quorum, QuorumRule};
pub use roll::{Alive, Roll};

/// Time since this node started, by its monotonic clock.
pub type Moment = tidegate_limiter::units::Timestamp;

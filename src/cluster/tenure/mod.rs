//! Who owns a key, while nodes die, join, leave and split: the protocol of
//! `docs/adr/0001-who-owns-a-key.md`.
//!
//! [`Roll`] says whom this node recognises, [`Lease`](lease) whether a quorum recognises it,
//! [`Ring`] what it holds on one ring and how ranges change hands. The three are pure: time is an
//! argument, messages are values. [`Tenancy`] is what every decision asks.

mod debts;
pub mod driver;
mod epoch;
mod known;
pub mod lease;
pub mod members;
pub mod quorum;
mod ring;
pub mod roll;
mod tenancy;

pub use debts::Step;
pub use driver::Driver;
pub use epoch::{Epoch, Epochs, Stand};
pub use known::Electorate;
pub use lease::{Recognised, Standing};
pub use members::{Members, Place};
pub use quorum::Quorum;
pub use ring::Ring;
pub use roll::{Alive, Roll};
pub use tenancy::{Holding, Tenancy};

/// Time since this node started, by its monotonic clock.
pub type Moment = crate::units::Timestamp;

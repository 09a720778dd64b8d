//! What this node owns: drives the state machines of `tidegate-ownership` with gossip, pings,
//! messages and time.
//!
//! [`Driver`] does the I/O; [`Ownership`] is what each strict decision reads. A lease is lost when
//! its end has passed: [`Ownership::decides`] compares it with the clock in every decision. A range
//! stops being decided here when `Driver::publish` stores the new [`OwnedRanges`].

mod counters;
pub mod driver;
mod handle;
mod takeover;
pub(crate) mod topology;

pub use counters::Counters;
pub use driver::Driver;
pub use handle::{Leases, OwnedRanges, OwnerTerm, Ownership, Standing};

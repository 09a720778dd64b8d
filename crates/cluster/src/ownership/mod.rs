//! What this node owns: the state machines of ownership, driven by gossip, pings and time.

pub mod driver;
mod handle;

pub use driver::Driver;
pub use handle::{OwnedRanges, Ownership};

//! What this node owns: the state machines of ownership, driven by gossip, pings and time.

pub mod driver;
mod tenancy;

pub use driver::Driver;
pub use tenancy::{Holding, Tenancy};

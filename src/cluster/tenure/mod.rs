//! Who owns a key, while nodes die, join, leave and split: the protocol of
//! `docs/adr/0001-who-owns-a-key.md`, without I/O.

mod epoch;
mod tenancy;

pub use epoch::{Epoch, Epochs};
pub use tenancy::{Holding, Tenancy};

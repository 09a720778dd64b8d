//! The proto3-JSON form of Envoy's messages, read as Google's protojson reads it and written as it
//! writes it with `EmitUnpopulated` off.

mod field;
mod read;
mod structure;
mod write;

pub use read::{ReadError, request};
pub use write::response;

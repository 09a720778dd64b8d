//! Rules: what is limited, how, and how it is matched. Pure; reading files is the loader's edge.
//!
//! ```text
//! files ──── load ── yaml ─┐
//! messages ─────── tree ───┴─ shape ── compile (fields, limits, level) ── Book ── find
//! ```

mod calendar;
mod compile;
mod explain;
mod fields;
mod fingerprint;
mod level;
mod limits;
mod naming;
mod pattern;
mod shape;

pub mod book;
pub mod defaults;
pub mod error;
pub mod keys;
pub mod load;
pub mod metadata;
pub mod rule;
pub mod tally;
pub mod yaml;

pub use defaults::Defaults;
pub use error::{Error, Reason, Warning};
pub use explain::{Match, Step};
pub use level::Via;
pub use naming::Found;

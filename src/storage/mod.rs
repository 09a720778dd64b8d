//! Counts of long windows on disk, so that they outlive a restart of the whole cluster.
//!
//! # Idea
//!
//! Replicas keep a count alive while one of its holders lives. A week's quota should also outlive
//! the day on which all of them are switched off. So every node writes the counters that it holds,
//! its own and copies, of windows of an hour and longer to one file, every few seconds; and reads
//! them before it decides anything. States join by `max`, so what several nodes had on disk, and
//! what living ones have in memory, come together in any order, and nothing counts twice.
//!
//! # What it promises
//!
//! What a round wrote is on the disk before the round ends. A crash of everything gives back at
//! most what was counted in the last `storage.interval` and the time that a round takes:
//!
//! ```text
//! given back ≤ hits counted in (interval + round)        3 s and some milliseconds by default
//! ```
//!
//! Example: a weekly quota of 10,000 of which 6,000 were used when the power failed, at ten a
//! second: it starts again between 5,970 and 6,000, never at 0.
//!
//! # Bound
//!
//! The file holds a counter until it expires: at most `limits.keys_max`, and what other nodes took
//! over meanwhile. 60 to 80 bytes each, a log 16 a hit more.
//!
//! - `record` is a counter as bytes, `origin` whose they are: pure.
//! - `file` is redb, `disk` where it lies.
//! - `snapshots` is what is done with it, `snapshot_task` when.

mod changes;
pub mod disk;
pub mod error;
pub mod file;
pub mod origin;
pub mod record;
mod snapshot_task;
mod snapshots;
mod status;

pub use error::Error;
pub use origin::{Origin, Secret};
pub use snapshot_task::SnapshotTask;
pub use snapshots::Snapshots;
pub use status::Status;

//! Counters of long windows on disk, so that they survive a restart of the whole cluster.
//!
//! Replicas keep a counter while one of its holders lives. A week's quota should also survive the
//! day on which all of them are switched off. So every node writes the counters of windows of an
//! hour and longer, its own and the copies it holds, to one file every few seconds, and reads them
//! at start-up before it decides anything. States merge by `max`, so what several nodes read from
//! disk and what others have in memory combine in any order, and nothing counts twice.
//!
//! **Guarantee.** What a round wrote is on the disk when the round ends. A crash of all nodes gives
//! back at most the hits counted in one `storage.interval` and the duration of a round:
//!
//! ```text
//! given back ≤ hits counted in (interval + round)        3 s and some milliseconds by default
//! ```
//!
//! Example: a weekly quota of 10,000 of which 6,000 were used at a power failure, at ten a second:
//! it restarts between 5,970 and 6,000, never at 0.
//!
//! **Bound.** The file holds a counter until it expires, or the node drops it because others hold
//! it: at most `limits.keys_max`, and a few that were dropped in the last round. 60 to 80 bytes
//! each, and 16 more per hit of a log.
//!
//! - `record` is the encoding of one counter, `origin` says whose counters a file holds: both pure.
//! - `file` is the redb database, `disk` its location.
//! - `snapshots` runs the rounds.
//! - `map_file` is another file, with the cluster map.

pub mod disk;
mod file;
pub mod map_file;
mod origin;
pub mod record;
mod snapshots;

pub use origin::{Origin, Secret};
pub use snapshots::{SnapshotTask, Snapshots, Status};

//! The counters of a process: sharded, bounded, one lock per decision.
//!
//! The `token` of a key selects its shard, so all limits of a descriptor share one; its `tag`
//! selects the slot inside. A check locks its shard, decides and unlocks: some ten to some hundred
//! nanoseconds. A check of a known key allocates memory only where its state does: logs,
//! sub-windows and per-actor counters grow on the heap.
//!
//! - [`check`](Store::check) decides strict keys, [`check_eventual`](Store::check_eventual) decides
//!   eventual ones in this node's own counter, [`check_batch_if`](Store::check_batch_if) decides
//!   many with their memory prefetched.
//! - **Memory:** `table` and `pages` hold a key in under 50 bytes, `shard` expires keys, `overflow`
//!   decides new keys when the store is full.
//! - **Changes:** `queues` holds the keys to be sent, `sync` sends eventual keys and merges those
//!   of peers, `copies` reads and merges whole counters for replication, handoff and snapshots.
//!
//! **Invariant:** a counter that still matters is never evicted to make room for another.
//!
//! **Invariant:** no operation under a lock looks at more slots than its constant names, with two
//! exceptions: inserting or removing a key moves the run of neighbours behind it, some 50 slots on
//! average, and growing or shrinking moves all slots of one shard, some 4,096 (see [`Options`]).

mod carried;
mod check;
mod copies;
mod counting_mode;
mod grants;
pub mod interventions;
pub mod key;
mod moved_windows;
mod occupancy;
mod options;
mod overflow;
mod pages;
mod prefetch;
mod promises;
mod queues;
mod reservations;
mod reserved;
mod shard;
mod sharded;
mod slot;
mod sync;
mod table;
mod unconfirmed;
mod unsettled_clock;

pub use carried::Carried;
pub use check::{Checks, SingleCheck, Verdicts};
pub use copies::{Cursor, MergeOutcome, SnapshotStep, StoredCounter};
pub use counting_mode::{BEHIND_MAX, LocalActor, SYNC_SLACK_DIVISOR};
pub use grants::{Ask, GivenBack, Granted, Leased};
pub use interventions::{INTERVENTIONS_MAX, Intervention, Interventions};
pub use key::{
    Counter, CounterKind, DescriptorHash, KeyHash, KeyHasher, ParseReservationIdError,
    ReservationId,
};
pub use options::{OnFull, Options};
pub use reservations::{Applied, Commit, Made, Reserve, Reserved, Settled, Settlement};
pub use sharded::{Stats, Store};
pub use sync::BackgroundScan;
pub use unconfirmed::AwaitsCopy;

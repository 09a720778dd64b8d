//! The cluster map: agreeing on it, keeping it, founding and joining a cluster.
//!
//! | file | idea |
//! |---|---|
//! | [`engine`] | a library's Raft behind a few calls; an entry is a whole map |
//! | [`disk`] | what a node must not forget |
//! | [`founding`] | who founds a cluster, and with whom |
//! | [`handle`] | the task that drives all three, and `tidegate_ownership::autopilot` on the leader |
//!
//! A node that starts looks for its cluster in this order: it joins the one of which it has a map;
//! otherwise the one that a peer knows; otherwise it founds one with the others that are configured
//! to. It never founds because nobody answers, and a peer that refuses it is not "nobody".

pub mod disk;
pub mod engine;
pub mod founding;
pub mod handle;

pub use disk::{Disk, MemoryDisk, Saved};
pub use engine::Message;
pub use founding::Founders;
pub use handle::{Consensus, ForgetError, Options};

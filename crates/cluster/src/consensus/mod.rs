//! Agreeing on the cluster map, and what a node keeps of it. The task that drives this is
//! [`membership`](crate::membership).
//!
//! | file | idea |
//! |---|---|
//! | [`engine`] | a library's Raft behind a few calls; an entry is a whole map |
//! | [`disk`] | what a node must not forget |
//! | [`founding`] | who founds a cluster, and with whom |
//!
//! A node that starts looks for its cluster in this order: it joins the one of which it has a map;
//! otherwise the one that a peer knows; otherwise it founds one with the others that are configured
//! to. It never founds because it gets no answer, or because all peers refuse it.

pub mod disk;
pub mod engine;
pub mod founding;

pub use disk::{Disk, MemoryDisk, Saved};
pub use engine::Message;
pub use founding::Founders;

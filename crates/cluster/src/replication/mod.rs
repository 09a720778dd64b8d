//! Strict keys: copies of their counters on the nodes that would take over.
//!
//! The owner of a key decides alone. Each change puts the key into the store's replication queue.
//! Every few milliseconds, while there are changes, that queue is drained into one `SendQueue` per
//! peer, and each peer is sent the latest states of its keys, in a window of messages.
//!
//! ```text
//! store ─ replication queue ─▶ send queue of b ─ States ─▶ b   replica of the key   (targets)
//!                          └─▶ send queue of d ─ States ─▶ d   takes a range over   (subscribers)
//! ```
//!
//! - **Lost messages.** A message without a reply is sent again. Every few seconds owners compare
//!   digests with their replicas and send the keys that differ (`anti_entropy`), which also fills
//!   a replica that lost its memory or has just joined.
//! - **Slow peers.** A peer whose window is full gets no further message. Its keys wait in the send
//!   queue, each once, and the state is read when the message is filled.
//! - **Handoff.** [`Replicator::subscribe`] sends every change of a range to its next owner as
//!   well, [`Replicator::copy`] sends the states that exist through the same queue, and
//!   [`Replicator::flush`] waits until all of them are acknowledged.
//! - **Stray copies.** What is left of ranges that moved is dropped when the cluster has been at
//!   rest for a while (`stray_copies`).
//! - **Durability.** [`Replicator::confirm`] waits for one copy before a verdict is returned.
//!
//! Messages carry whole states, which the receiver merges: a message that is lost, duplicated or
//! late changes nothing in the end. A receiver forwards nothing but the keys that it owns.
//!
//! **Invariant:** a receiver merges no state that no honest node could hold (`receive`).

mod anti_entropy;
mod digest;
mod receive;
mod replicator;
mod send;
mod send_queue;
mod stray_copies;
mod targets;

pub use digest::are_valid_digests;
pub use receive::is_plausible;
pub use replicator::{Counters, Decides, Options, ReceivedFrom, Replicator};
pub use send::awaits_confirm;
pub use stray_copies::SettledMap;

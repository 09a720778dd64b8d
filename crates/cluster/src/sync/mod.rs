//! Eventual keys: synchronisation of per-actor counters.
//!
//! Every node counts under its own actor. It sends its count to the key's owner in its region (a
//! *push*), and the reply carries what the others counted. The owner sends changes to the other
//! nodes that use the key (a *fan-out*) and to one replica, and exchanges one counter per region
//! with the key's owners in the other regions (a *region exchange*), so that the long link carries
//! one number whatever the number of nodes behind it.
//!
//! ```text
//!   node a ──push──▶                       ◀──push── node c
//!                    owner (eu) ⇄ owner (us)
//!   node b ◀─fan-out─                      ─fan-out─▶ node d
//! ```
//!
//! A node that uses a key is sent one number, the *rest*: what all others counted, which the owner
//! makes of their counters. Only the owner and its replica know who counted what.
//!
//! Messages carry absolute counters, never increments, which the receiver merges: a message that is
//! lost, duplicated or late changes nothing in the end. A key returns to the queue when its message
//! fails, or when the owner's reply leaves it out: a receiver with another view leaves out the keys
//! that it did not accept, and is sent them again. A count that is large beside what is left of the
//! limit is *announced* at once, by the node and further by the owner, in lanes of their own
//! (`lanes`). A key far from its limit waits for a slow background scan instead of the next round;
//! `store/sync.rs` of the limiter crate describes the idea and the bound.
//!
//! When a member joins, leaves or restarts, every key is queued: its owner may have none of our
//! counters. A push also carries the counters of nodes and regions that are gone, because no other
//! node sends them to a new owner.
//!
//! **Invariant:** a receiver merges from a peer only the actors for which the peer is authoritative
//! (`actor_authority`).

mod actor_authority;
mod batch;
mod collect;
mod lanes;
mod receive;
mod recipients;
mod synchroniser;

pub use synchroniser::{Counters, Options, Synchroniser};

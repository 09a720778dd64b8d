//! The door for clients of Redis: `CL.THROTTLE` as redis-cell answers it, and checks by the rules.
//!
//! ```text
//! serve.rs ── accepts, deals ──▶ threads.rs ── connection.rs: read ─▶ read.rs ─▶ command.rs
//!                                                  ▲                                 │
//!                                                  └─ write ◀─ reply.rs ◀─ batch.rs ◀┘ decides
//! ```
//!
//! All whole commands of one read are decided together, consecutive `CL.THROTTLE`s by one call, and
//! answered in order by one write. Threads of the door's own carry the connections, each with an
//! event loop: a connection never changes its thread, so no thread ever waits for another. Under
//! load a thread looks for events a moment longer before it sleeps (`watch.rs`).
//!
//! # Bounds
//!
//! | what | bound | at the bound |
//! |---|---|---|
//! | connections | `limits.connections_max` | no more are accepted until one ends; counted |
//! | a command | `limits.body_bytes_max`, 1,024 words | an error, and the connection is closed |
//! | before `AUTH` | 10 words of 16 KiB | likewise, as Redis |
//! | a key; what `TG.CHECK` names | `limits.value_bytes_max`; `limits.entries_max` | an error |
//! | time for a command that has begun; for `AUTH` | `limits.header_timeout` | cut; counted |
//! | time in which a client takes no replies | `limits.header_timeout` | cut; counted |
//! | replies not sent | 64 KiB and one reply | nothing more is read until they are gone |
//! | commands decided at once | 512 | the others follow |
//! | silence | `resp.idle_timeout` | closed, within twice the time; counted |
//! | drain | `limits.drain_timeout` | connections still open are dropped; counted |

pub mod command;
pub mod limit;
pub mod read;
pub mod reply;
pub mod session;

mod about;
mod batch;
mod connection;
mod serve;
mod threads;
mod watch;

pub use serve::{Listener, serve};

//! The listener for Redis clients: `CL.THROTTLE` compatible with redis-cell, and checks by the
//! rules.
//!
//! ```text
//! serve.rs ── accepts ──▶ connection.rs: read ─▶ read.rs ─▶ command.rs
//!                              ▲                                │
//!                              └─ write ◀─ reply.rs ◀─ batch.rs ◀┘ decides
//! ```
//!
//! All complete commands of one read are decided together, consecutive `CL.THROTTLE`s by one call,
//! and answered in order by one write. The listener has its own worker threads, each with an event
//! loop. A connection stays on one worker, so workers never wait for each other. Under load a
//! worker polls for events a little longer before it sleeps (`busy_poll.rs`).
//!
//! # Bounds
//!
//! | what | bound | at the bound |
//! |---|---|---|
//! | connections | `limits.connections_max` | accepting pauses until one ends; counted |
//! | a command | `limits.body_bytes_max`, 1,024 words | an error, and the connection is closed |
//! | before `AUTH` | 10 words of 16 KiB | likewise, as Redis |
//! | a key; what `TG.CHECK` names | `limits.value_bytes_max`; `limits.entries_max` | an error |
//! | time for a handshake, a begun command, `AUTH` | `limits.header_timeout` | cut; counted |
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

mod batch;
mod busy_poll;
mod connection;
mod listener;
mod serve;
mod server_info;
mod stream;

pub use listener::Listener;
pub use serve::serve;

//! Paces HTTP requests, so that a server which names its limits never has to refuse one.
//!
//! The server may be anything: a service behind tidegate, or an API of others. What responses say
//! in `RateLimit`, `X-RateLimit-*` and `Retry-After` decides when the next request leaves: what
//! remains is spread over the time that it has to last, and after a refusal requests pause with
//! full jitter. All tasks that share a [`Pacer`] share what it learns, by origin and policy. The
//! crate does *not* limit by itself, store anything beyond the process, or choose a TLS library:
//! the client is the caller's.
//!
//! - [`Pacing`] is middleware for reqwest (feature `reqwest`, on by default).
//! - [`Pacer`] is for other HTTP clients on tokio.
//! - [`schedule`] and [`fields`] are the pure core, for anything else: time and random numbers are
//!   arguments. Its documentation has the rules, and an example with numbers.
//!
//! ```no_run
//! use reqwest_middleware::{ClientBuilder, reqwest};
//! use tidegate_client::Pacing;
//!
//! # async fn run() -> reqwest_middleware::Result<()> {
//! let client = ClientBuilder::new(reqwest::Client::new()).with(Pacing::default()).build();
//! // From however many tasks: with `"a";r=50;t=30` they leave 0.6 s apart.
//! let response = client.get("http://api.example.com/items").send().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The same behaviour exists for Python, Go and TypeScript, from one table of test vectors.

pub mod fields;
mod pacer;
#[cfg(feature = "reqwest")]
mod pacing;
mod policy;
mod recent;
pub mod schedule;

pub use pacer::{Pacer, WAIT_MAX, WaitError};
#[cfg(feature = "reqwest")]
pub use pacing::{Pacing, RETRIES};
pub use schedule::Permit;

/// Compiles the example in the README.
#[cfg(all(doctest, feature = "reqwest"))]
#[doc = include_str!("../README.md")]
struct Readme;

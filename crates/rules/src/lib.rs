//! Rate limit rules: the YAML files of envoyproxy/ratelimit, with more algorithms and policies.
//!
//! The crate decides nothing and counts nothing but statistics: it says which [`Rule`](rule::Rule)
//! applies to a descriptor. Reading a folder ([`load::read`]) is its only I/O; watching one for
//! changes is up to the caller.
//!
//! ```text
//! files ──── load ── yaml ─┐
//! messages ────────────────┴─ shape ── compile (fields, limits, level) ── Book ── find
//! ```
//!
//! - [`load`]: from files or trees to a book. [`yaml`]: the reader, with positions and bounds.
//! - [`book`]: the immutable set of rules and its lookup; [`rule`]: one rule and its statistics.
//! - [`error`]: what is wrong, where, and what to do; [`keys`]: every key and where it belongs.
//! - [`schema`]: the JSON schema of a rule file, for editors.
//! - [`stats`]: what a node counts of a rule.
//! - [`metadata`], [`tally`]: what envoyproxy/ratelimit has beside limits.
//!
//! ```
//! use tidegate_limiter::descriptor::Entry;
//! use tidegate_rules::load::{Options, Source, parse};
//!
//! let yaml = b"domain: shop
//! descriptors:
//!   - key: user
//!     rate_limit: {unit: minute, requests_per_unit: 10}
//! ";
//! let source = Source { name: "shop.yaml".into(), bytes: yaml.to_vec() };
//! let book = parse(&[source], &Options::default())?;
//! let found = book.find("shop", &[Entry { key: "user", value: "ann" }]).expect("a rule");
//! assert_eq!(found.rule.limits[0].limit(), 10);
//! # Ok::<(), tidegate_rules::Error>(())
//! ```

mod compile;
mod explain;
mod fields;
mod fingerprint;
mod level;
mod limits;
mod shape;

pub mod book;
pub mod error;
pub mod keys;
pub mod load;
pub mod metadata;
pub mod rule;
pub mod schema;
pub mod stats;
pub mod tally;
pub mod yaml;

pub use error::{Error, Reason, Warning};
pub use explain::{Found, Match, Step};
pub use level::Via;
pub use rule::Defaults;

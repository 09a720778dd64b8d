//! Rate limits for one process: seven algorithms over small states, mergeable counters, and a
//! bounded store.
//!
//! The crate promises exact decisions with integer arithmetic, a bound on memory, and copies of a
//! counter that merge to the same result in any order. It does *not* read a clock, perform I/O,
//! start threads, match rules or talk to other nodes: time is an argument, and moving state between
//! processes is left to the caller.
//!
//! - [`units`]: wall-clock and monotonic time, durations, amounts; saturating newtypes.
//! - [`quota`]: what one limit allows, validated.
//! - [`engine`]: the algorithms as pure functions over a [`State`](engine::State), and its merge.
//! - [`store`]: millions of counters by hashed key, sharded, bounded, with expiry and change
//!   queues.
//! - [`descriptor`]: the key/value entries that identify a request.
//! - [`soft_limit`]: which admitted hits are signalled.
//! - [`policy`]: consistency and failure policy of a rule, for a cluster of limiters.
//!
//! # A store
//!
//! ```
//! use tidegate_limiter::descriptor::Entry;
//! use tidegate_limiter::policy::{Mode, Scope};
//! use tidegate_limiter::quota::{Algorithm, Quota};
//! use tidegate_limiter::store::{Counter, KeyHasher, OnFull, Options, Store};
//! use tidegate_limiter::units::{Hits, Span, Timestamp};
//!
//! let store = Store::new(Options { keys_max: 10_000, on_full: OnFull::Share, shards: None });
//! let hasher = KeyHasher::new(*b"a 16 byte secret");
//! let quota = Quota::simple(Algorithm::SlidingWindowCounter, 2, Span::from_secs(60))?;
//!
//! let alice = hasher.descriptor("api", &[Entry { key: "user", value: "alice" }]);
//! let counter = Counter { key: alice.counter(&quota, Mode::Strict, Scope::Region), quota };
//! for second in 0..3 {
//!     let now = Timestamp::from_secs(1_767_225_600 + second);
//!     let verdict = store.check(&[counter], Hits::ONE, now)[0];
//!     println!("allowed: {}, remaining: {}", verdict.allowed, verdict.remaining);
//!     assert_eq!(verdict.allowed, second < 2);
//! }
//! # Ok::<(), tidegate_limiter::quota::Error>(())
//! ```
//!
//! # A single counter
//!
//! ```
//! use tidegate_limiter::engine::{Retry, State, decide};
//! use tidegate_limiter::quota::{Algorithm, Quota};
//! use tidegate_limiter::units::{Hits, Span, Timestamp};
//!
//! let quota = Quota::simple(Algorithm::TokenBucket, 10, Span::from_secs(1))?;
//! let mut state = State::Absent;
//! let now = Timestamp::from_secs(1_767_225_600);
//! assert_eq!(decide(&mut state, &quota, Hits::new(8), now).remaining, 2);
//! let denied = decide(&mut state, &quota, Hits::new(3), now);
//! assert_eq!(denied.retry, Retry::After(Span::from_millis(100)));
//! # Ok::<(), tidegate_limiter::quota::Error>(())
//! ```

pub mod descriptor;
pub mod engine;
pub mod policy;
pub mod quota;
pub mod soft_limit;
pub mod store;
pub mod units;

/// Compiles and runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! Traces: where the time of a request went, over all nodes that took part, for OpenTelemetry.
//!
//! ```text
//! POST /v1/check ──────────────────  at the node that received it, kind server
//!    forward ────────────────        there: waits for the owner of the key, kind client
//!       decide ──────                at the owner, kind server
//! ```
//!
//! Whether a request is recorded is decided once, from its headers ([`propagation`]) and, where
//! they say nothing, by `traces.sampling_rate`. A request that is not recorded has no [`Span`], so
//! it costs what it takes to find that out; without `traces.endpoint` it costs one branch, and
//! without the feature `otel` nothing: there [`Span`] is a type without values.
//!
//! The span of a request is that of the task which answers it ([`Traces::current`]): the decision
//! path adds to it what it decided, without a parameter in every function between.
//!
//! Spans never wait: one that ends goes into a queue of bounded length, and is dropped and counted
//! when that is full. `node/traces.rs` sends what is in it.

pub mod propagation;

#[cfg(not(feature = "otel"))]
mod off;
#[cfg(feature = "otel")]
mod queue;
#[cfg(feature = "otel")]
mod span;

use std::sync::atomic::AtomicU64;

#[cfg(not(feature = "otel"))]
pub use off::{Span, Traces, within};
#[cfg(feature = "otel")]
pub use queue::{BATCH_MAX, QUEUE_MAX, Queue};
#[cfg(feature = "otel")]
pub use span::{Span, Traces, within};

/// What a span stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The handling of a request.
    Server,
    /// The wait for the reply to a request.
    Client,
}

/// Spans since the start, by what became of them.
#[derive(Debug, Default)]
pub struct Counters {
    pub sent: AtomicU64,
    /// The queue was full.
    pub dropped: AtomicU64,
    /// The receiver did not take them.
    pub failed: AtomicU64,
}

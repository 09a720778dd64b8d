//! The one path to a verdict.
//!
//! ```text
//! ask ─▶ match rules ─▶ route each key ─┬─ mine, or eventual ─▶ store ──────────┐
//!        (plan.rs)                      ├─ another's ─▶ owner (forward.rs) ─────┤─▶ answer
//!                                       └─ nobody answers ─▶ policy (policy.rs) ┘
//! ```
//!
//! Front doors see [`Decide`]; peers see [`Decider::decide_as_owner`]. Both end in the same
//! [`Store`](crate::store::Store).

mod ask;
mod decider;
mod forward;
mod plan;
mod policy;

pub use ask::{Answer, Ask, Source, Status};
pub use decider::{Counters, Decider, Parts, Remote};

/// The one path to a verdict, as the front doors see it.
pub trait Decide: Send + Sync + 'static {
    /// Decides and counts. Never fails: an owner that does not answer is covered by the rule's
    /// `on_unavailable`.
    fn decide(&self, ask: Ask<'_>) -> impl Future<Output = Answer> + Send;
}

//! The one path to a verdict.
//!
//! ```text
//!                      ┌─ eventual ─▶ store
//! ask ─▶ match rules ──┤                                        ┌─ refused lately ─▶ denials.rs
//!        (plan.rs)     └─ strict ─▶ held here? ─┬─ no ──────────┼─ ask its owner ─▶ forward.rs
//!                                   (owner.rs)  └─ yes ▶ store  └─ nobody decides ─▶ policy.rs
//! ```
//!
//! Front doors see [`Decide`]; peers see [`Decider::decide_as_owner`]. Both end in the same
//! [`Store`](crate::store::Store).

mod ask;
mod candidates;
mod decider;
mod denials;
mod forward;
mod owner;
mod parts;
mod plan;
mod policy;
mod seen;

pub use ask::{Answer, Ask, Source, Status};
pub use decider::Decider;
pub use parts::{Counters, Parts, Remote};

/// The one path to a verdict, as the front doors see it.
pub trait Decide: Send + Sync + 'static {
    /// Decides and counts. Never fails: an owner that does not answer is covered by the rule's
    /// `on_unavailable`.
    fn decide(&self, ask: Ask<'_>) -> impl Future<Output = Answer> + Send;
}

//! The one path to a verdict.
//!
//! ```text
//!                      ┌─ eventual ─▶ store
//! ask ─▶ match rules ──┤                                        ┌─ refused lately ─▶ denials.rs
//!        (plan.rs)     └─ strict ─▶ held here? ─┬─ no ──────────┼─ ask its owner ─▶ forward.rs
//!                                   (owner.rs)  └─ yes ▶ store  └─ nobody decides ─▶ policy.rs
//! ```
//!
//! `[envoy]` may have the descriptors of a request decided with regard to each other
//! (together.rs); otherwise each is decided by itself.
//!
//! Front doors see [`Decide`]; peers see [`Decider::decide_as_owner`]. Both end in the same
//! [`Store`](tidegate_limiter::store::Store).

mod all_or_nothing;
mod ask;
mod decider;
mod dedup_cache;
mod forward;
mod negative_cache;
mod owner;
mod parts;
mod plan;
mod policy;
mod refusal;
mod routing_attempts;
mod status;
mod throttle;

use std::sync::LazyLock;

pub use ask::{Answer, CheckRequest, Status, VerdictSource};
pub use decider::Decider;
pub use parts::{Counters, Parts, Remote};
pub use throttle::{Demand, TOGETHER_MAX, Throttle};

use tidegate_rules::tally::Tallies;

use crate::config::Envoy;

/// The one path to a verdict, as the front doors see it.
pub trait Decide: Send + Sync + 'static {
    /// Decides and counts. Never fails: an owner that does not answer is covered by the rule's
    /// `on_unavailable`.
    fn decide(&self, ask: CheckRequest<'_>) -> impl Future<Output = Answer> + Send;

    /// Whether there ever were rules to decide by.
    fn is_loaded(&self) -> bool {
        true
    }

    /// What Envoy's rate limit service may be told.
    fn envoy(&self) -> &Envoy {
        static USUAL: LazyLock<Envoy> = LazyLock::new(Envoy::default);
        &USUAL
    }

    /// Where a door counts the requests that it answers with an error.
    fn tallies(&self) -> Option<&Tallies> {
        None
    }
}

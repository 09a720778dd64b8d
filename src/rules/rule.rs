//! One rule: the limits of a descriptor and how they are to be held.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use super::quota::Quota;
pub use crate::config::policy::{Durability, Mode, OnUnavailable, Scope};

/// What applies to the descriptors that match it.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Names the rule in metrics, logs and answers: `domain.key_value.key`, as envoyproxy/ratelimit
    /// names its statistics. Unique in a book.
    pub id: Arc<str>,
    /// The `name` of the rule file, for people.
    pub name: Option<Arc<str>>,
    /// All must pass; none is charged when one refuses. Empty means unlimited.
    pub limits: SmallVec<[Quota; 1]>,
    /// Who decides.
    pub mode: Mode,
    /// Which nodes share a strict limit.
    pub scope: Scope,
    /// The answer while the owner is out of reach.
    pub on_unavailable: OnUnavailable,
    /// Whether the owner's answer waits for a replica.
    pub durability: Durability,
    /// Counts and reports, never refuses.
    pub shadow: bool,
    /// What this node did by this rule; survives a reload that keeps the id.
    pub stats: Arc<RuleStats>,
}

/// What one node did by one rule, in hits. Read by the metrics, written by `decide`.
#[derive(Debug, Default)]
pub struct RuleStats {
    /// Hits that were let through.
    pub allowed: AtomicU64,
    /// Hits that were refused.
    pub denied: AtomicU64,
    /// Hits that a shadow rule would have refused.
    pub shadowed: AtomicU64,
    /// Asks answered by `on_unavailable`.
    pub unavailable: AtomicU64,
}

impl RuleStats {
    /// Adds `n` to one of the counters. Relaxed: they are statistics and order nothing.
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

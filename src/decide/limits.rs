//! The limits of one descriptor as another node has to know them.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_limiter::policy::{Durability, Scope};
use tidegate_limiter::store::{Counter, KeyHash};
use tidegate_limiter::units::Hits;
use tidegate_rules::stats::RuleStats;

/// The limits of one descriptor, with what their owner has to know: what checks have in common that
/// leave together.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) scope: Scope,
    pub(super) durability: Durability,
    /// Of a leased rule, whose calls ask for hits beside their checks: what is counted of it.
    pub(super) leased: Option<Arc<RuleStats>>,
    /// It is one region's part of a limit that regions share (`shares.rs`).
    pub(super) is_share: bool,
    /// All with the same token.
    pub(super) counters: SmallVec<[Counter; 1]>,
}

impl Limits {
    pub(super) fn key(&self) -> Option<KeyHash> {
        self.counters.first().map(|counter| counter.key)
    }

    /// A check was refused while other nodes held granted hits. A peek is none.
    pub(super) fn refused_early(&self, hits: Hits) {
        if let Some(stats) = self.leased.as_ref().filter(|_| hits.charge() > 0) {
            RuleStats::add(&stats.refused_early, 1);
        }
    }
}

/// Equal limits of two rules differ, as what is granted to one is not counted for the other. A rule
/// that a reload keeps keeps its statistics.
impl PartialEq for Limits {
    fn eq(&self, other: &Self) -> bool {
        let is_same_rule = match (&self.leased, &other.leased) {
            (Some(stats), Some(others)) => Arc::ptr_eq(stats, others),
            (None, None) => true,
            _ => false,
        };
        is_same_rule
            && (self.scope, self.durability, &self.counters)
                == (other.scope, other.durability, &other.counters)
    }
}

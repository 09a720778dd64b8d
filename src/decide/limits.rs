//! The limits of one descriptor as another node has to know them.

use smallvec::SmallVec;
use tidegate_limiter::policy::{Durability, Scope};
use tidegate_limiter::store::{Counter, KeyHash};

/// The limits of one descriptor, with what their owner has to know: what checks have in common that
/// leave together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) scope: Scope,
    pub(super) durability: Durability,
    /// The rule is leased: a call asks for hits beside its checks.
    pub(super) is_leased: bool,
    /// All with the same token.
    pub(super) counters: SmallVec<[Counter; 1]>,
}

impl Limits {
    pub(super) fn key(&self) -> Option<KeyHash> {
        self.counters.first().map(|counter| counter.key)
    }
}

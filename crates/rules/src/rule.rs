//! One rule: the limits of a descriptor and how they are to be held.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::quota::Quota;

use super::metadata::Metadata;
use crate::tally::{Tallies, Tally};
pub use tidegate_limiter::policy::{Durability, Mode, OnUnavailable, Scope};

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
    /// A request is over its quota rules only when all of them refuse it.
    pub quota_mode: bool,
    /// The names of rules that do not apply to a request that this one applies to.
    pub replaces: Box<[Arc<str>]>,
    /// What Envoy is told of a request that this rule let pass.
    pub metadata: Option<Arc<Metadata>>,
    /// What this node did by this rule; survives a reload that keeps the id.
    pub stats: Arc<RuleStats>,
}

impl Rule {
    /// The rule of a limit that a request brings along: strict, with the usual policy, under a name
    /// made of the request itself.
    ///
    /// Example: `user=ann` and `path` without a value, in the domain `shop`, are
    /// `shop.user_ann.path`.
    ///
    /// Source: envoyproxy/ratelimit, `src/config/config_impl.go`, `descriptorKey`.
    pub fn brought_along(domain: &str, entries: &[Entry<'_>], limit: Quota) -> Self {
        let mut id = format!("{domain}.");
        for (index, entry) in entries.iter().enumerate() {
            if index > 0 {
                id.push('.');
            }
            id.push_str(entry.key);
            if !entry.value.is_empty() {
                id.extend(["_", entry.value]);
            }
        }
        Self { limits: smallvec::smallvec![limit], ..Self::usual(id.into()) }
    }

    /// What is to be said of all limits that clients name with their requests, whatever they are:
    /// who decides them, and what is answered while the owner is out of reach.
    pub fn of_clients(mode: Mode, on_unavailable: OnUnavailable) -> Self {
        Self { mode, on_unavailable, ..Self::usual("clients".into()) }
    }

    /// A rule without limits, with what applies when nothing is said.
    fn usual(id: Arc<str>) -> Self {
        Self {
            id,
            name: None,
            limits: SmallVec::new(),
            mode: Mode::Strict,
            scope: Scope::default(),
            on_unavailable: OnUnavailable::default(),
            durability: Durability::default(),
            shadow: false,
            quota_mode: false,
            replaces: Box::default(),
            metadata: None,
            stats: Arc::default(),
        }
    }
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
    /// The tally under the rule's id, looked up once.
    tally: OnceLock<Arc<Tally>>,
}

impl RuleStats {
    /// Adds `n` to one of the counters. Relaxed: they are statistics and order nothing.
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// The rule's tally in `tallies`, of which a process has one: it is looked up by `id` the first
    /// time alone.
    pub fn tally(&self, tallies: &Tallies, id: &str) -> &Arc<Tally> {
        self.tally.get_or_init(|| tallies.of(id))
    }
}

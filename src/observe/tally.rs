//! What was asked and answered, in hits and by name, as envoyproxy/ratelimit counts it.
//!
//! A name is `domain.key_value.key`, made from a rule or, for rules with `detailed_metric` and
//! limits that a request brings along, from the request itself. Clients can invent such names, so
//! their number is bounded: beyond [`NAMES_MAX`] everything is counted under [`OTHER`].
//!
//! Worked example: of a limit of 10 an hour with 8 used, an ask for 5 is refused. Of its hits 2
//! came near the limit and 3 went over it: `total_hits` 5, `near_limit` 2, `over_limit` 3.
//!
//! Source: envoyproxy/ratelimit, `src/stats/manager_impl.go` and `src/limiter/base_limiter.go`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

/// Most names. Each costs some 200 bytes here and six series where they are stored.
pub const NAMES_MAX: usize = 10_000;
/// The name under which everything beyond [`NAMES_MAX`] is counted.
pub const OTHER: &str = "(other)";

/// What one name counted, in hits.
#[derive(Debug, Default)]
pub struct Tally {
    /// Hits that were asked for.
    pub total_hits: AtomicU64,
    /// Hits beyond the limit.
    pub over_limit: AtomicU64,
    /// Hits below the limit, but beyond the part of it that counts as near.
    pub near_limit: AtomicU64,
    /// Hits that were refused from memory.
    pub over_limit_with_local_cache: AtomicU64,
    /// Hits of asks that passed.
    pub within_limit: AtomicU64,
    /// Hits beyond the limit of a rule in shadow mode, which passed.
    pub shadow_mode: AtomicU64,
}

/// Every [`Tally`] of the process by its name, and what is counted once for all.
#[derive(Debug, Default)]
pub struct Tallies {
    by_name: RwLock<BTreeMap<Arc<str>, Arc<Tally>>>,
    /// Asks for a domain that no rule speaks of, by domain.
    not_found: RwLock<BTreeMap<Arc<str>, Arc<AtomicU64>>>,
    /// What many requests share.
    pub service: Service,
}

/// What is counted once for all names.
#[derive(Debug, Default)]
#[expect(clippy::struct_field_names, reason = "its names are those of the source")]
pub struct Service {
    /// Loads of the rules that made a book.
    pub config_load_success: AtomicU64,
    /// Loads that made none.
    pub config_load_error: AtomicU64,
    /// Requests that were wrong in form, or came before there were rules.
    pub service_error: AtomicU64,
    /// Requests that passed only because everything is in shadow mode.
    pub global_shadow_mode: AtomicU64,
}

impl Tallies {
    /// The tally of `name`, which is made when it is new.
    pub fn of(&self, name: &str) -> Arc<Tally> {
        entry(&self.by_name, name)
    }

    /// Counts an ask for a domain that no rule speaks of.
    pub fn domain_not_found(&self, domain: &str) {
        entry(&self.not_found, domain).fetch_add(1, Ordering::Relaxed);
    }

    /// All names with their tallies, sorted.
    pub fn all(&self) -> Vec<(Arc<str>, Arc<Tally>)> {
        sorted(&self.by_name)
    }

    /// All unknown domains with how often they were asked for, sorted.
    pub fn unknown_domains(&self) -> Vec<(Arc<str>, Arc<AtomicU64>)> {
        sorted(&self.not_found)
    }
}

fn entry<T: Default>(map: &RwLock<BTreeMap<Arc<str>, Arc<T>>>, name: &str) -> Arc<T> {
    if let Some(found) = map.read().get(name) {
        return found.clone();
    }
    let mut map = map.write();
    let name = if map.len() < NAMES_MAX || map.contains_key(name) { name } else { OTHER };
    if let Some(found) = map.get(name) {
        return found.clone();
    }
    map.entry(name.into()).or_default().clone()
}

fn sorted<T>(map: &RwLock<BTreeMap<Arc<str>, Arc<T>>>) -> Vec<(Arc<str>, Arc<T>)> {
    let mut all: Vec<_> = map.read().iter().map(|(name, it)| (name.clone(), it.clone())).collect();
    all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_nothing_is_lost_beyond_the_bound() {
        let tallies = Tallies::default();
        for n in 0..NAMES_MAX + 5 {
            tallies.of(&format!("d.k_{n}")).total_hits.fetch_add(1, Ordering::Relaxed);
        }
        let all = tallies.all();
        assert_eq!(all.len(), NAMES_MAX + 1);
        let sum: u64 = all.iter().map(|(_, it)| it.total_hits.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, NAMES_MAX as u64 + 5);
        assert_eq!(tallies.of(OTHER).total_hits.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn a_name_keeps_its_tally() {
        let tallies = Tallies::default();
        assert!(Arc::ptr_eq(&tallies.of("a"), &tallies.of("a")));
        tallies.domain_not_found("x");
        tallies.domain_not_found("x");
        assert_eq!(tallies.unknown_domains()[0].1.load(Ordering::Relaxed), 2);
    }
}

//! The rule book: all rules of a folder, immutable, matched by descriptor.
//!
//! The entries of a request select a path through the domain's tree, one level per entry. On each
//! level the exact value matches first, then the first declared wildcard, then the bare key; there
//! is no backtracking. The rule is the one at the end of the path, so a rule only matches requests
//! with as many entries as the rule is deep.
//!
//! Example: with `a` limited, `a=x` without a limit, and `b` limited below `a`, the request
//! (`a=y`, `b=1`) takes bare `a` and then `b`; (`a=x`, `b=1`) takes `a=x`, finds nothing below it
//! and is not limited, although bare `a` has a match. That is envoyproxy/ratelimit's walk
//! (`src/config/config_impl.go`, `GetLimit`), with one difference: keys and values are never
//! joined, so (`a`, `b_c`) and (`a_b`, `c`) are two rules with two counters.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tidegate_limiter::descriptor::Entry;

use super::error::{Warning, Warnings};
use super::explain::{Found, Match};
use super::fingerprint;
use super::level::{Branch, Level, Via};
pub use super::rule::Rule;

/// An immutable set of rules. A request uses one book from beginning to end.
#[derive(Clone, Debug)]
pub struct Book {
    domains: BTreeMap<Box<str>, Level>,
    warnings: Warnings,
    fingerprint: u64,
    is_loaded: bool,
    limits_in_flight: bool,
}

impl Book {
    pub(super) fn new(domains: BTreeMap<Box<str>, Level>, warnings: Warnings) -> Self {
        let fingerprint = fingerprint::of(&domains);
        let mut book =
            Self { domains, warnings, fingerprint, is_loaded: true, limits_in_flight: false };
        let is_limited = |rule: &Arc<Rule>| rule.in_flight.is_limited();
        let limits_in_flight = book.rules().any(is_limited);
        book.limits_in_flight = limits_in_flight;
        book
    }

    /// Whether any rule limits the requests in flight.
    pub fn limits_in_flight(&self) -> bool {
        self.limits_in_flight
    }

    /// The book before any rules were loaded. It limits nothing, and [`Book::is_loaded`] is false.
    pub fn unloaded() -> Self {
        Self { is_loaded: false, ..Self::default() }
    }

    /// Whether rules were loaded, even if there were none.
    pub fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// The rule for a descriptor of a domain, if one matches, with what the request adds to it.
    /// Allocates only for rules with a star in a key and for rules whose name or counter depends on
    /// the request ([`Found`]).
    pub fn find(&self, domain: &str, entries: &[Entry<'_>]) -> Option<Found<'_>> {
        let mut is_plain = true;
        let leaf = self.walk(domain, entries, |branch, via, entry| {
            is_plain &= branch.is_plain(via, entry);
        })?;
        let rule = leaf.rule.as_ref()?;
        if is_plain && !leaf.naming.detailed {
            return Some(Found::plain(rule));
        }
        self.explain(domain, entries).map(Found::from)
    }

    /// Like [`Book::find`], with the reasons.
    pub fn explain(&self, domain: &str, entries: &[Entry<'_>]) -> Option<Match<'_>> {
        let mut taken = Vec::with_capacity(entries.len());
        let leaf = self.walk(domain, entries, |branch, via, _| taken.push((branch, via)))?;
        Some(Match::of(domain, entries, &taken, (leaf, leaf.rule.as_ref()?)))
    }

    /// Follows the entries through the domain's tree and calls `seen` for each step. Returns the
    /// branch of the last entry.
    pub(super) fn walk<'b>(
        &'b self,
        domain: &str,
        entries: &[Entry<'_>],
        mut seen: impl FnMut(&'b Branch, Via, &Entry<'_>),
    ) -> Option<&'b Branch> {
        let mut level = self.domains.get(domain)?;
        let mut leaf = None;
        for entry in entries {
            let (branch, via) = level.step(entry)?;
            seen(branch, via, entry);
            level = &branch.children;
            leaf = Some(branch);
        }
        leaf
    }

    /// Whether a domain has rules.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// The domains, sorted.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.domains.keys().map(|name| &**name)
    }

    /// All rules, by domain and then by key and value, outer before inner.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        let mut rules = Vec::new();
        for level in self.domains.values() {
            level.rules(&mut rules);
        }
        rules.into_iter()
    }

    /// What was accepted but has another effect than its author may expect.
    pub fn warnings(&self) -> &[Warning] {
        self.warnings.as_slice()
    }

    /// A hash of the content of the rules: equal on two nodes exactly when their rules are equal.
    /// Names and order of files, comments and notation have no influence.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Takes over the statistics of the rules with the same id in `old`.
    pub fn carry_stats(&mut self, old: &Self) {
        let by_id: HashMap<_, _> = old.rules().map(|rule| (&*rule.id, &rule.stats)).collect();
        for level in self.domains.values_mut() {
            level.rules_mut(&mut |rule| {
                if let Some(&stats) = by_id.get(&*rule.id) {
                    rule.stats = Arc::clone(stats);
                }
            });
        }
    }
}

impl Default for Book {
    /// No rules: nothing is limited.
    fn default() -> Self {
        Self::new(BTreeMap::new(), Warnings::default())
    }
}

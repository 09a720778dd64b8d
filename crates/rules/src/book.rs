//! The rule book: all rules of a folder, immutable, matched by descriptor.
//!
//! A request's entries walk down the domain's tree, one level an entry. On each level the exact
//! value wins, else the first declared wildcard, else the bare key; there is no way back. The rule
//! is the one where the entries end, so their number must be the rule's depth.
//!
//! Example: with `a` limited, `a=x` without a limit, and `b` limited below `a`, the request
//! (`a=y`, `b=1`) takes bare `a` and then `b`; (`a=x`, `b=1`) takes `a=x`, finds nothing below it
//! and is not limited, although bare `a` would have led on. That is envoyproxy/ratelimit's walk
//! (`src/config/config_impl.go`, `GetLimit`), with one difference: keys and values are never
//! joined, so (`a`, `b_c`) and (`a_b`, `c`) are two rules with two counters.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tidegate_limiter::descriptor::Entry;

use super::error::{Warning, Warnings};
use super::fingerprint;
use super::level::{Branch, Level, Via};
use super::naming::Found;
pub use super::rule::Rule;

/// An immutable set of rules. A request holds one for its whole life.
#[derive(Clone, Debug)]
pub struct Book {
    domains: BTreeMap<Box<str>, Level>,
    warnings: Warnings,
    fingerprint: u64,
    is_loaded: bool,
}

impl Book {
    /// A book of these domains.
    pub(super) fn new(domains: BTreeMap<Box<str>, Level>, warnings: Warnings) -> Self {
        let fingerprint = fingerprint::of(&domains);
        Self { domains, warnings, fingerprint, is_loaded: true }
    }

    /// A book from before any rules were loaded: it limits nothing, and says so
    /// ([`Book::is_loaded`]).
    pub fn unloaded() -> Self {
        Self { is_loaded: false, ..Self::default() }
    }

    /// Whether rules were ever loaded, be they none.
    pub fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// The rule for a descriptor of a domain, if one matches, and what the request adds to it.
    /// Allocates nothing, but for rules with a star in a key and for those that are named or
    /// counted by the request ([`Found`]).
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

    /// Walks down the domain's tree, one level an entry, and tells `seen` of each step. Ends at the
    /// branch where the entries end.
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

    /// Whether any rules speak of a domain.
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

    /// What was accepted and does not do what its author may think.
    pub fn warnings(&self) -> &[Warning] {
        self.warnings.as_slice()
    }

    /// A hash of everything the rules say: equal on two nodes exactly when their rules are. Names
    /// of files, their order, comments and spelling do not count.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Goes on with the statistics of the rules that the old book had by the same id.
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

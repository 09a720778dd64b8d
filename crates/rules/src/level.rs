//! One level of a domain's tree of descriptors, and how an entry selects a branch of it.
//!
//! # Wildcards
//!
//! In a value or a key `*` matches any text, including none.
//!
//! A pattern is split at its stars when it is loaded. `ab*ba` becomes `ab` and `ba`: the text must
//! begin with the first part, end with the last and contain the others in order, without overlap,
//! so `aba` does not match. envoyproxy/ratelimit matches the same way, but over the joined text
//! `key_value`. Here key and value are matched separately, except where the key itself has a star:
//! then the pattern also runs over `key_value`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tidegate_limiter::descriptor::Entry;

use super::rule::Rule;

/// Sibling descriptors. Immutable once sealed.
#[derive(Clone, Debug, Default)]
pub(super) struct Level {
    /// Sorted by key, then value: the order of output and of the fingerprint.
    branches: Vec<Branch>,
    /// Few keys, each with possibly many values.
    keys: BTreeMap<Box<str>, Keyed>,
    /// Patterns with their branch, in the order of declaration: the first match is taken.
    patterns: Vec<(Pattern, usize)>,
}

/// One descriptor of a rule file.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub key: Box<str>,
    /// Its value; empty when it has none.
    pub value: Box<str>,
    /// Applies to requests whose last entry selects this branch.
    pub rule: Option<Arc<Rule>>,
    pub children: Level,
    /// How its hits are named in envoyproxy/ratelimit's statistics.
    pub naming: Naming,
}

impl Branch {
    /// Whether name and counter of an entry on this branch are those of the rule file, regardless
    /// of the request's value.
    pub(super) fn is_plain(&self, via: Via, entry: &Entry<'_>) -> bool {
        match via {
            Via::Value => true,
            Via::Key => !self.naming.value,
            // Where the key has a star, the name uses the key of the request.
            Via::Pattern => !self.naming.value && !self.naming.shared && *self.key == *entry.key,
        }
    }
}

/// Flags that change the name or the counter of a match, not whether it matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Naming {
    /// `detailed_metric`: by all entries of the request.
    pub detailed: bool,
    /// `value_to_metric`: by the value of the request.
    pub value: bool,
    /// `share_threshold`: all values that match the wildcard share a counter.
    pub shared: bool,
}

/// Why a branch matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The value is the branch's.
    Value,
    /// The branch's pattern matches.
    Pattern,
    /// The branch has no value.
    Key,
}

#[derive(Clone, Debug, Default)]
struct Keyed {
    bare: Option<usize>,
    values: HashMap<Box<str>, usize>,
}

impl Level {
    /// The branch for an entry: the exact value, else the first declared pattern, else the bare
    /// key. Allocates only where a key has a star.
    pub(super) fn step(&self, entry: &Entry<'_>) -> Option<(&Branch, Via)> {
        let keyed = self.keys.get(entry.key);
        let by_value = || keyed?.values.get(entry.value).map(|&at| (at, Via::Value));
        let by_pattern = || {
            let matching = self.patterns.iter().find(|(pattern, _)| pattern.matches(entry));
            matching.map(|&(_, at)| (at, Via::Pattern))
        };
        let by_key = || keyed?.bare.map(|at| (at, Via::Key));
        let (at, via) = by_value().or_else(by_pattern).or_else(by_key)?;
        self.branches.get(at).map(|branch| (branch, via))
    }

    /// The branches, by key and value.
    pub(super) fn branches(&self) -> &[Branch] {
        &self.branches
    }

    /// Whether there is no descriptor.
    pub(super) fn is_empty(&self) -> bool {
        self.branches.is_empty()
    }

    /// The branches that have a pattern, in the order in which they are tried.
    pub(super) fn patterns(&self) -> impl Iterator<Item = &Branch> {
        self.patterns.iter().filter_map(|&(_, at)| self.branches.get(at))
    }

    /// Every rule at or below this level, depth first.
    pub(super) fn rules<'a>(&'a self, into: &mut Vec<&'a Arc<Rule>>) {
        for branch in &self.branches {
            into.extend(&branch.rule);
            branch.children.rules(into);
        }
    }

    /// Like [`Level::rules`], mutable.
    pub(super) fn rules_mut(&mut self, change: &mut impl FnMut(&mut Rule)) {
        for branch in &mut self.branches {
            if let Some(rule) = &mut branch.rule {
                change(Arc::make_mut(rule));
            }
            branch.children.rules_mut(change);
        }
    }
}

/// A level under construction.
#[derive(Debug, Default)]
pub(super) struct Open {
    branches: BTreeMap<Name, Branch>,
    patterns: Vec<(Pattern, Name)>,
}

/// Key and value.
type Name = (Box<str>, Box<str>);

impl Open {
    /// Whether there is a descriptor with this key and value.
    pub(super) fn has(&self, key: &str, value: &str) -> bool {
        self.branches.contains_key(&(Box::from(key), Box::from(value)))
    }

    /// Adds a new descriptor.
    pub(super) fn add(&mut self, branch: Branch) {
        let name = (branch.key.clone(), branch.value.clone());
        if let Some(pattern) = Pattern::new(&branch.key, &branch.value) {
            self.patterns.push((pattern, name.clone()));
        }
        self.branches.insert(name, branch);
    }

    /// Completes the level.
    pub(super) fn seal(self) -> Level {
        let mut level = Level::default();
        let mut positions = BTreeMap::new();
        for (at, (name, branch)) in self.branches.into_iter().enumerate() {
            let keyed = level.keys.entry(branch.key.clone()).or_default();
            if branch.value.is_empty() {
                keyed.bare = Some(at);
            } else {
                keyed.values.insert(branch.value.clone(), at);
            }
            positions.insert(name, at);
            level.branches.push(branch);
        }
        level.patterns = self
            .patterns
            .into_iter()
            .filter_map(|(pattern, name)| Some((pattern, *positions.get(&name)?)))
            .collect();
        level
    }
}

/// A key/value pair with at least one star in it.
#[derive(Clone, Debug)]
struct Pattern {
    /// The exact key, when only the value has stars; the parts then are the value's.
    key: Option<Box<str>>,
    parts: Box<[Box<str>]>,
}

impl Pattern {
    /// The pattern of a rule's key and value; `None` when neither has a star.
    fn new(key: &str, value: &str) -> Option<Self> {
        let split = |text: &str| text.split('*').map(Box::from).collect();
        if key.contains('*') {
            let joined = if value.is_empty() { key.into() } else { format!("{key}_{value}") };
            return Some(Self { key: None, parts: split(&joined) });
        }
        value.contains('*').then(|| Self { key: Some(key.into()), parts: split(value) })
    }

    /// Whether an entry of a request matches. Allocates only where the rule's key has a star.
    fn matches(&self, entry: &Entry<'_>) -> bool {
        match &self.key {
            Some(key) => **key == *entry.key && self.fits(entry.value),
            None => self.fits(&format!("{}_{}", entry.key, entry.value)),
        }
    }

    /// The ends first, then each inner part at its first occurrence: if any choice of positions
    /// matches, that one does. Linear in the text.
    fn fits(&self, text: &str) -> bool {
        let [first, middle @ .., last] = &*self.parts else { return false };
        let inner = text.strip_prefix(&**first).and_then(|rest| rest.strip_suffix(&**last));
        inner
            .and_then(|inner| {
                middle
                    .iter()
                    .try_fold(inner, |rest, part| rest.split_once(&**part).map(|(_, after)| after))
            })
            .is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_text_and_no_character_serves_twice() {
        for (pattern, value, expected) in [
            ("f*", "foo", true),
            ("f*", "f", true),
            ("f*", "xf", false),
            ("*.png", "a.png", true),
            ("*.png", ".png", true),
            ("*.png", "a.jpg", false),
            ("*", "", true),
            ("ab*ba", "abba", true),
            ("ab*ba", "aba", false),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
            ("a*bb*b", "abb", false),
            ("a*bb*b", "abbb", true),
            ("/*/x/*", "/é/x/", true),
            ("a**b", "ab", true),
        ] {
            let entry = Entry { key: "k", value };
            let matched = Pattern::new("k", pattern).is_some_and(|p| p.matches(&entry));
            assert_eq!(matched, expected, "{pattern} on {value}");
        }
    }

    #[test]
    fn a_star_in_the_key_runs_over_key_and_value() {
        let pattern = Pattern::new("a*", "x").unwrap();
        assert!(pattern.matches(&Entry { key: "abc", value: "x" }));
        assert!(!pattern.matches(&Entry { key: "abc", value: "y" }));
        assert!(Pattern::new("a*", "").unwrap().matches(&Entry { key: "a", value: "" }));
    }

    #[test]
    fn a_star_in_the_value_never_reaches_into_the_key() {
        let pattern = Pattern::new("a", "b_*").unwrap();
        assert!(pattern.matches(&Entry { key: "a", value: "b_c" }));
        assert!(!pattern.matches(&Entry { key: "a_b", value: "c" }));
        assert!(Pattern::new("a", "b").is_none());
    }
}

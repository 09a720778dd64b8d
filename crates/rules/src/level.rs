//! One level of a domain's tree of descriptors, and how an entry selects a branch of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tidegate_limiter::descriptor::Entry;

use super::pattern::Pattern;
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

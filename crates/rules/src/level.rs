//! One level of a domain's tree of descriptors, and the step that an entry takes on it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tidegate_limiter::descriptor::Entry;

use super::pattern::Pattern;
use super::rule::Rule;

/// The descriptors that stand beside each other. Immutable once sealed.
#[derive(Clone, Debug, Default)]
pub(super) struct Level {
    /// Sorted by key, then value: the order of everything that is printed or hashed.
    branches: Vec<Branch>,
    /// Few keys, each with possibly many values.
    keys: BTreeMap<Box<str>, Keyed>,
    /// Patterns with their branch, in the order of declaration: the first that matches wins.
    patterns: Vec<(Pattern, usize)>,
}

/// One descriptor of a rule file.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    /// Its key.
    pub key: Box<str>,
    /// Its value; empty when it has none.
    pub value: Box<str>,
    /// What applies when a request's entries end here.
    pub rule: Option<Arc<Rule>>,
    /// What may follow.
    pub children: Level,
    /// How its hits are named in envoyproxy/ratelimit's statistics.
    pub naming: Naming,
}

impl Branch {
    /// Whether an entry that took this branch is named and counted as the rule file says, whatever
    /// the request's value is.
    pub(super) fn is_plain(&self, via: Via, entry: &Entry<'_>) -> bool {
        match via {
            Via::Value => true,
            Via::Key => !self.naming.value,
            // A star in the key itself is named after the key of the request.
            Via::Pattern => !self.naming.value && !self.naming.shared && *self.key == *entry.key,
        }
    }
}

/// Flags that change how a match is named, not whether it matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Naming {
    /// `detailed_metric`: by all entries of the request.
    pub detailed: bool,
    /// `value_to_metric`: by the value of the request.
    pub value: bool,
    /// `share_threshold`: all values that match the wildcard are one.
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
    /// The branch that an entry takes: the exact value, else the first declared pattern, else the
    /// bare key. Allocates only where a key has a star.
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

    /// Whether no descriptor stands here.
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

    /// The same to be changed, in the same order.
    pub(super) fn rules_mut(&mut self, change: &mut impl FnMut(&mut Rule)) {
        for branch in &mut self.branches {
            if let Some(rule) = &mut branch.rule {
                change(Arc::make_mut(rule));
            }
            branch.children.rules_mut(change);
        }
    }
}

/// A level that still grows.
#[derive(Debug, Default)]
pub(super) struct Open {
    branches: BTreeMap<Name, Branch>,
    patterns: Vec<(Pattern, Name)>,
}

/// Key and value.
type Name = (Box<str>, Box<str>);

impl Open {
    /// Whether a descriptor with this key and value is there.
    pub(super) fn has(&self, key: &str, value: &str) -> bool {
        self.branches.contains_key(&(Box::from(key), Box::from(value)))
    }

    /// Adds a descriptor that is not there yet.
    pub(super) fn add(&mut self, branch: Branch) {
        let name = (branch.key.clone(), branch.value.clone());
        if let Some(pattern) = Pattern::new(&branch.key, &branch.value) {
            self.patterns.push((pattern, name.clone()));
        }
        self.branches.insert(name, branch);
    }

    /// Ends the growth.
    pub(super) fn seal(self) -> Level {
        let mut level = Level::default();
        let mut places = BTreeMap::new();
        for (at, (name, branch)) in self.branches.into_iter().enumerate() {
            let keyed = level.keys.entry(branch.key.clone()).or_default();
            if branch.value.is_empty() {
                keyed.bare = Some(at);
            } else {
                keyed.values.insert(branch.value.clone(), at);
            }
            places.insert(name, at);
            level.branches.push(branch);
        }
        level.patterns = self
            .patterns
            .into_iter()
            .filter_map(|(pattern, name)| Some((pattern, *places.get(&name)?)))
            .collect();
        level
    }
}

//! Why a rule matched, step by step, and the name of the match in envoyproxy/ratelimit's
//! statistics.
//!
//! Used for output, for tests, and for requests whose name or counter depends on their values
//! ([`Found`]).
//!
//! # What a request adds to its rule
//!
//! A name for the statistics, and patterns that replace its values in the counter's key.
//!
//! Most rules need neither: their hits are counted under the rule's id, and each value has its
//! own counter. With `share_threshold` all values that match a wildcard are one counter:
//!
//! ```text
//! rule      (path, files/*), share_threshold      10 an hour
//! requests  (path, files/a), (path, files/b)      one counter, that of (path, files/*)
//! ```
//!
//! With `detailed_metric` the name repeats the request (`d.path_files/a`), with `value_to_metric`
//! the values of one level do.
//!
//! Source: envoyproxy/ratelimit, `src/config/config_impl.go`, `GetLimit`.

use std::sync::Arc;

use tidegate_limiter::descriptor::Entry;

use super::level::{Branch, Via};
use super::metadata::Metadata;
use super::rule::Rule;

/// A match, explained.
#[derive(Clone, Debug)]
pub struct Match<'b> {
    pub rule: &'b Arc<Rule>,
    /// One per entry, outermost first.
    pub steps: Vec<Step<'b>>,
    /// envoyproxy/ratelimit's statistics key for this request: the rule's id, except with
    /// `detailed_metric`, `value_to_metric`, `share_threshold` or wildcards in keys.
    pub stats_key: String,
    /// Whether the rule's metadata is part of the match. envoyproxy/ratelimit creates a new rule,
    /// without metadata, when the name depends on the request.
    pub keeps_metadata: bool,
}

/// How one entry was matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<'b> {
    /// The key of the rule file.
    pub key: &'b str,
    /// Its value; empty for none.
    pub value: &'b str,
    /// Why it matched.
    pub via: Via,
    /// With `share_threshold`: the pattern that replaces the values that match it.
    pub shared: Option<String>,
}

impl<'b> Match<'b> {
    /// The match of `rule`, which belongs to `leaf`, the last of the branches `taken`.
    pub(super) fn of(
        domain: &str,
        entries: &[Entry<'_>],
        taken: &[(&'b Branch, Via)],
        (leaf, rule): (&'b Branch, &'b Arc<Rule>),
    ) -> Self {
        let steps: Vec<_> = taken
            .iter()
            .zip(entries)
            .map(|(&(branch, via), entry)| Step {
                key: &branch.key,
                value: &branch.value,
                via,
                shared: (via == Via::Pattern && branch.naming.shared)
                    .then(|| pattern_of(branch, entry)),
            })
            .collect();

        let is_shared = steps.iter().any(|step| step.shared.is_some());
        let mut stats_key = String::from(domain);
        let mut file_key = String::from(domain);
        for ((step, &(branch, via)), entry) in steps.iter().zip(taken).zip(entries) {
            file_key.extend([".", &branch.key]);
            if !branch.value.is_empty() {
                file_key.extend(["_", &branch.value]);
            }
            let by_value = leaf.naming.detailed || via == Via::Value || branch.naming.value;
            let value = match (&step.shared, via) {
                (Some(pattern), _) => pattern.clone(),
                (None, _) if by_value => entry.value.into(),
                (None, Via::Pattern) => pattern_of(branch, entry),
                (None, _) => String::new(),
            };
            stats_key.push('.');
            stats_key.push_str(entry.key);
            // Only the detailed name has a separator for a missing value.
            if !value.is_empty() || (leaf.naming.detailed && !is_shared) {
                stats_key.push('_');
                stats_key.push_str(&value);
            }
        }
        let keeps_metadata =
            if leaf.naming.detailed { !leaf.children.is_empty() } else { stats_key == file_key };
        Self { rule, steps, stats_key, keeps_metadata }
    }
}

/// The value part of a branch's pattern: the whole pattern when the key was matched by a star.
fn pattern_of(branch: &Branch, entry: &Entry<'_>) -> String {
    if *branch.key == *entry.key {
        return branch.value.to_string();
    }
    match &*branch.value {
        "" => branch.key.to_string(),
        value => format!("{}_{value}", branch.key),
    }
}

/// A rule as one request matched it.
#[derive(Clone, Debug)]
pub struct Found<'b> {
    pub rule: &'b Arc<Rule>,
    /// The name of its hits in the statistics, where it differs from the rule's id.
    pub name: Option<Box<str>>,
    /// Sent to Envoy when the rule admits the request.
    pub metadata: Option<&'b Arc<Metadata>>,
    /// Per entry: what replaces its value in the counter's key. Empty when no value is shared.
    stand_ins: Box<[Option<Box<str>>]>,
}

impl<'b> Found<'b> {
    pub(super) fn plain(rule: &'b Arc<Rule>) -> Self {
        Self { rule, name: None, metadata: rule.metadata.as_ref(), stand_ins: Box::default() }
    }

    /// The entries of the counter's key, if they are not the request's own.
    pub fn counted_as<'e>(&'e self, entries: &[Entry<'e>]) -> Option<Vec<Entry<'e>>> {
        if self.stand_ins.is_empty() {
            return None;
        }
        let stand_in = |(entry, pattern): (&Entry<'e>, &'e Option<Box<str>>)| Entry {
            key: entry.key,
            value: pattern.as_deref().unwrap_or(entry.value),
        };
        Some(entries.iter().zip(&self.stand_ins).map(stand_in).collect())
    }
}

impl<'b> From<Match<'b>> for Found<'b> {
    fn from(found: Match<'b>) -> Self {
        let is_shared = found.steps.iter().any(|step| step.shared.is_some());
        let stand_ins = if is_shared {
            found.steps.into_iter().map(|step| step.shared.map(String::into_boxed_str)).collect()
        } else {
            Box::default()
        };
        let name = (found.stats_key != *found.rule.id).then(|| found.stats_key.into());
        let metadata = found.rule.metadata.as_ref().filter(|_| found.keeps_metadata);
        Self { rule: found.rule, name, metadata, stand_ins }
    }
}

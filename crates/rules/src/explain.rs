//! Why a rule matched, step by step, and the name of the match in envoyproxy/ratelimit's
//! statistics.
//!
//! Used for output, for tests, and for requests whose name or counter depends on their values
//! ([`Found`](super::Found)).

use std::sync::Arc;

use tidegate_limiter::descriptor::Entry;

use super::level::{Branch, Via};
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

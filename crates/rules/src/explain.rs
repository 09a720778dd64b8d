//! Why a rule matched, step by step, and how envoyproxy/ratelimit names the match in its
//! statistics.
//!
//! For people, for tests, and for requests that are named or counted by their values
//! ([`Found`](super::Found)); the others need no more than the walk.

use std::sync::Arc;

use tidegate_limiter::descriptor::Entry;

use super::book::{Book, Rule};
use super::level::{Branch, Via};

/// A match, explained.
#[derive(Clone, Debug)]
pub struct Match<'b> {
    /// The rule.
    pub rule: &'b Arc<Rule>,
    /// One an entry, outermost first.
    pub steps: Vec<Step<'b>>,
    /// envoyproxy/ratelimit's statistics key for this very request: the rule's id, but for the keys
    /// `detailed_metric`, `value_to_metric` and `share_threshold` and for wildcards in keys.
    pub stats_key: String,
    /// Whether the rule's metadata goes with the match. envoyproxy/ratelimit makes a rule that is
    /// named by the request anew, and the new one has none.
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
    /// With `share_threshold`: the pattern that stands for all values that match it.
    pub shared: Option<String>,
}

impl Book {
    /// Like [`Book::find`], with reasons.
    pub fn explain(&self, domain: &str, entries: &[Entry<'_>]) -> Option<Match<'_>> {
        let mut taken = Vec::with_capacity(entries.len());
        let leaf = self.walk(domain, entries, |branch, via, _| taken.push((branch, via)))?;
        let rule = leaf.rule.as_ref()?;
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
        for ((step, &(branch, via)), entry) in steps.iter().zip(&taken).zip(entries) {
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
            // Only the detailed name writes the separator of a value that is not there.
            if !value.is_empty() || (leaf.naming.detailed && !is_shared) {
                stats_key.push('_');
                stats_key.push_str(&value);
            }
        }
        let keeps_metadata =
            if leaf.naming.detailed { !leaf.children.is_empty() } else { stats_key == file_key };
        Some(Match { rule, steps, stats_key, keeps_metadata })
    }
}

/// The value part of a branch's pattern, seen from the request's key: the whole pattern when the
/// key itself was matched by a star.
fn pattern_of(branch: &Branch, entry: &Entry<'_>) -> String {
    if *branch.key == *entry.key {
        return branch.value.to_string();
    }
    match &*branch.value {
        "" => branch.key.to_string(),
        value => format!("{}_{value}", branch.key),
    }
}

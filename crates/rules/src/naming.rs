//! What a request adds to the rule that it matches: a name for the statistics, and patterns that
//! replace its values in the counter's key.
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

use super::explain::Match;
use super::metadata::Metadata;
use super::rule::Rule;

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

//! A hash of the whole content of a rule book.
//!
//! SipHash-2-4 over a canonical form: sorted, texts prefixed with their length, defaults filled in,
//! wildcards in the order of declaration because it affects matching. The key is fixed: the hash
//! identifies rules and protects nothing.

use std::collections::BTreeMap;
use std::hash::Hasher;

use siphasher::sip::SipHasher24;
use tidegate_limiter::quota::Quota;

use super::level::{Branch, Level};
use super::metadata::{Metadata, Value};
use super::rule::{InFlightLimits, Rule};

/// Incremented when the canonical form changes, so that two versions never match by chance.
const FORM: &str = "tidegate rules 3";

/// The fingerprint of some domains.
pub(super) fn of(domains: &BTreeMap<Box<str>, Level>) -> u64 {
    let mut form = Form(SipHasher24::new());
    form.text(FORM);
    form.number(domains.len() as u64);
    for (name, level) in domains {
        form.text(name);
        form.level(level);
    }
    form.0.finish()
}

struct Form(SipHasher24);

impl Form {
    fn level(&mut self, level: &Level) {
        self.list(level.branches().iter(), Self::branch);
        for branch in level.patterns() {
            self.text(&branch.key);
            self.text(&branch.value);
        }
    }

    fn branch(&mut self, branch: &Branch) {
        self.text(&branch.key);
        self.text(&branch.value);
        for flag in [branch.naming.detailed, branch.naming.value, branch.naming.shared] {
            self.number(u64::from(flag));
        }
        self.list(branch.rule.iter(), |form, rule| form.rule(rule));
        self.level(&branch.children);
    }

    fn rule(&mut self, rule: &Rule) {
        self.text(&rule.id);
        self.number(u64::from(rule.name.is_some()));
        self.text(rule.name.as_deref().unwrap_or_default());
        // The numbers of the enums' variants, as on the wire.
        self.number(rule.mode as u64);
        self.number(rule.scope as u64);
        self.number(rule.on_unavailable as u64);
        self.number(rule.durability as u64);
        self.number(u64::from(rule.shadow));
        self.number(u64::from(rule.quota_mode));
        self.list(rule.replaces.iter(), |form, name| form.text(name));
        self.list(rule.metadata.iter(), |form, metadata| form.metadata(metadata));
        self.list(rule.limits.iter(), Self::quota);
        // Nothing without them, so that the form of other rules is that of versions without them.
        if rule.in_flight.is_limited() {
            let InFlightLimits { everywhere, at_node } = rule.in_flight;
            self.text("in flight");
            for limit in [everywhere, at_node] {
                self.number(limit.map_or(u64::MAX, u64::from));
            }
        }
        for (index, soft) in rule.soft_limits.iter().enumerate() {
            if let Some(soft) = soft {
                self.text("soft_limit");
                self.number(index as u64);
                self.number(soft.get().into());
            }
        }
    }

    fn quota(&mut self, quota: &Quota) {
        self.text(quota.algorithm().name());
        self.number(u64::from(quota.limit()));
        self.number(quota.window().as_nanos());
        self.number(u64::from(quota.burst()));
        self.number(u64::from(quota.sub_windows()));
        self.number(quota.queue().map_or(u64::MAX, u64::from));
    }

    fn metadata(&mut self, metadata: &Metadata) {
        self.list(metadata.iter(), |form, (key, value)| {
            form.text(key);
            form.value(value);
        });
    }

    /// Prefixed with a number for the kind of value.
    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.number(0),
            Value::Bool(truth) => self.number(1 + u64::from(*truth)),
            Value::Number(number) => {
                self.number(3);
                self.number(number.to_bits());
            }
            Value::Text(text) => {
                self.number(4);
                self.text(text);
            }
            Value::List(values) => {
                self.number(5);
                self.list(values.iter(), Self::value);
            }
            Value::Map(metadata) => {
                self.number(6);
                self.metadata(metadata);
            }
        }
    }

    /// The number of items, then each; an option is a list of none or one.
    fn list<I: ExactSizeIterator>(&mut self, items: I, mut write: impl FnMut(&mut Self, I::Item)) {
        self.number(items.len() as u64);
        for item in items {
            write(self, item);
        }
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.write(text.as_bytes());
    }

    fn number(&mut self, number: u64) {
        self.0.write(&number.to_le_bytes());
    }
}

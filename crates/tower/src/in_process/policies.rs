//! What the fields of a response say of a rule alike for all requests: written once, not for each
//! request.
//!
//! *Example*: of the rule `login` with 100 a minute the whole `RateLimit-Policy`,
//! `"login";q=100;w=60`, of which the first part also begins an item of `RateLimit`.
//!
//! A rule that was applied costs some 1 KB here.

use std::collections::HashMap;
use std::ptr;
use std::sync::{Arc, OnceLock};

use http::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use smallvec::SmallVec;
use tidegate_rules::book::{Book, Rule};

use crate::structured::{SEPARATOR, push_policy, push_string};
use crate::verdict::{CURRENT, LIMIT, POLICY, REMAINING, RESET};

/// A book, and what is written of its rules.
pub(super) struct Rules {
    pub(super) book: Arc<Book>,
    /// By the address of a rule, which stays where it is for as long as the book is there.
    /// Written at the first request to which the rule applies.
    policies: HashMap<usize, OnceLock<Box<Policy>>>,
}

/// The limits of a rule.
pub(super) struct Policy {
    /// The fields of a request to which no other rule applies, with empty ones in place of those
    /// that depend on the count: a copy of it takes a part of the time of adding each by its name.
    pub(super) fields: HeaderMap,
    /// One per limit.
    pub(super) items: SmallVec<[Item; 1]>,
}

/// An item of `RateLimit-Policy`.
pub(super) struct Item {
    pub(super) text: Box<str>,
    name_bytes: usize,
    /// `X-RateLimit-Limit` if it is the most restrictive one.
    pub(super) limit: HeaderValue,
}

impl Rules {
    pub(super) fn new(book: Book) -> Self {
        let limited = book.rules().filter(|rule| !rule.limits.is_empty());
        let policies = limited.map(|rule| (address(rule), OnceLock::new())).collect();
        Self { policies, book: book.into() }
    }

    /// `None` for a rule without limits.
    #[inline]
    pub(super) fn policy(&self, rule: &Rule) -> Option<&Policy> {
        let policy = self.policies.get(&address(rule))?;
        Some(policy.get_or_init(|| Policy::of(rule).into()))
    }
}

impl Policy {
    fn of(rule: &Rule) -> Self {
        let items = rule.limits.iter().enumerate().map(|(index, quota)| {
            let mut text = String::new();
            push_string(&mut text, &rule.limit_name(index));
            let name_bytes = text.len();
            push_policy(&mut text, quota.limit().into(), Some(quota.window().as_secs_ceil()));
            Item { text: text.into(), name_bytes, limit: quota.limit().into() }
        });
        let items: SmallVec<[Item; 1]> = items.collect();
        let texts: Vec<&str> = items.iter().map(|item| &*item.text).collect();
        let mut fields = HeaderMap::new();
        fields.extend(items.first().map(|item| (LIMIT, item.limit.clone())));
        // Printable ASCII by construction; otherwise it would be left out.
        fields.extend(HeaderValue::try_from(texts.join(SEPARATOR)).ok().map(|it| (POLICY, it)));
        for name in [REMAINING, RESET, CURRENT, RETRY_AFTER] {
            fields.insert(name, HeaderValue::from_static(""));
        }
        Self { fields, items }
    }
}

impl Item {
    /// The name of the limit, as a string of a structured field.
    #[inline]
    pub(super) fn name(&self) -> &str {
        self.text.get(..self.name_bytes).unwrap_or_default()
    }
}

fn address(rule: &Rule) -> usize {
    ptr::from_ref(rule).addr()
}

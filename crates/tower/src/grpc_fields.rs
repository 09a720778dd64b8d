//! `RateLimit` and `RateLimit-Policy` of a node's answer by gRPC, which carries numbers and no
//! header fields.

use http::HeaderValue;
use http::header::HeaderName;

use crate::structured::{ITEMS_MAX, SEPARATOR, push_current, push_policy, push_string};
use crate::verdict::{CURRENT, POLICY};

/// One policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<'a> {
    pub(crate) name: &'a str,
    /// Hits per window.
    pub(crate) quota: u64,
    /// Seconds.
    pub(crate) window: Option<u64>,
    pub(crate) remaining: u64,
    /// Seconds until the whole quota is available again.
    pub(crate) reset: u64,
}

/// The two fields while they are written.
#[derive(Debug)]
pub(crate) struct Fields {
    policy: String,
    current: String,
    items: usize,
}

impl Fields {
    pub(crate) fn new() -> Self {
        Self { policy: String::new(), current: String::new(), items: 0 }
    }

    /// Adds a policy, up to [`ITEMS_MAX`].
    pub(crate) fn add(&mut self, item: &Item<'_>) {
        if self.items == ITEMS_MAX {
            return;
        }
        self.items += 1;
        let separator = if self.items > 1 { SEPARATOR } else { "" };
        self.policy.push_str(separator);
        self.current.push_str(separator);
        push_string(&mut self.policy, item.name);
        push_string(&mut self.current, item.name);
        push_policy(&mut self.policy, item.quota, item.window);
        push_current(&mut self.current, item.remaining, item.reset);
    }

    /// Both fields; none without a policy.
    pub(crate) fn finish(self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        // They consist of printable ASCII by construction; otherwise they would be left out.
        let value = |name, text: String| Some((name, HeaderValue::try_from(text).ok()?));
        let fields = [value(POLICY, self.policy), value(CURRENT, self.current)];
        fields.into_iter().take(if self.items == 0 { 0 } else { 2 }).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_bytes_become_strings_of_a_field() {
        let mut fields = Fields::new();
        for name in ["a\"\\", "ключ", "x\r\ny"] {
            fields.add(&Item { name, quota: 1, window: None, remaining: 1, reset: 0 });
        }
        let values: Vec<_> = fields.finish().collect();
        assert_eq!(values[0].0, POLICY);
        assert_eq!(
            values[0].1,
            "\"a\\\"\\\\\";q=1, \"%D0%BA%D0%BB%D1%8E%D1%87\";q=1, \"x%0D%0Ay\";q=1"
        );
    }

    #[test]
    fn there_are_no_more_items_than_the_bound() {
        let mut fields = Fields::new();
        for _ in 0..100 {
            fields.add(&Item { name: "a", quota: 1, window: None, remaining: 1, reset: 0 });
        }
        let values: Vec<_> = fields.finish().collect();
        let items = |value: &HeaderValue| value.to_str().map_or(0, |text| text.split(',').count());
        assert!(values.iter().all(|(_, value)| items(value) == ITEMS_MAX));
        assert_eq!(Fields::new().finish().count(), 0);
    }
}

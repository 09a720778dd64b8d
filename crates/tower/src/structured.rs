//! Writes `RateLimit` and `RateLimit-Policy`, structured fields (RFC 9651) of
//! draft-ietf-httpapi-ratelimit-headers.
//!
//! *Example*: 100 a minute with 57 left for another 31 s.
//!
//! ```text
//! RateLimit-Policy: "login";q=100;w=60
//! RateLimit: "login";r=57;t=31
//! ```

use std::fmt::Write;

#[cfg(feature = "grpc")]
use http::HeaderValue;
#[cfg(feature = "grpc")]
use http::header::HeaderName;

#[cfg(feature = "grpc")]
use crate::verdict::{CURRENT, POLICY};

/// Most items of the two fields; further limits are left out of them. A field of some KiB is more
/// than proxies pass on.
pub(crate) const ITEMS_MAX: usize = 16;
/// Between two items.
pub(crate) const SEPARATOR: &str = ", ";
/// Longest name of an item, in bytes; longer names are cut.
const NAME_BYTES_MAX: usize = 128;

/// One policy.
#[cfg(feature = "grpc")]
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
#[cfg(feature = "grpc")]
#[derive(Debug)]
pub(crate) struct Fields {
    policy: String,
    current: String,
    items: usize,
}

#[cfg(feature = "grpc")]
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

/// Appends the parameters of an item of `RateLimit-Policy`.
pub(crate) fn push_policy(out: &mut String, quota: u64, window: Option<u64>) {
    push_parameter(out, ";q=", quota);
    if let Some(window) = window {
        push_parameter(out, ";w=", window);
    }
}

/// Appends the parameters of an item of `RateLimit`.
#[inline]
pub(crate) fn push_current(out: &mut String, remaining: u64, reset: u64) {
    push_parameter(out, ";r=", remaining);
    push_parameter(out, ";t=", reset);
}

#[inline]
fn push_parameter(out: &mut String, name: &str, value: u64) {
    out.push_str(name);
    out.push_str(itoa::Buffer::new().format(value));
}

/// A string of RFC 9651: printable ASCII in quotes. Other bytes are percent-encoded, so that
/// different names stay different.
pub(crate) fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for byte in text.bytes().take(NAME_BYTES_MAX) {
        match byte {
            b'"' | b'\\' => {
                out.push('\\');
                out.push(char::from(byte));
            }
            b' '..=b'~' => out.push(char::from(byte)),
            _ => {
                // Writing to a `String` cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out.push('"');
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

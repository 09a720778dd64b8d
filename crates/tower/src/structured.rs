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

/// Most items of the two fields; further limits are left out of them. A field of some KiB is more
/// than proxies pass on.
pub(crate) const ITEMS_MAX: usize = 16;
/// Between two items.
pub(crate) const SEPARATOR: &str = ", ";
/// Longest name of an item, in bytes; longer names are cut.
const NAME_BYTES_MAX: usize = 128;

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

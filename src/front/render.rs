//! A response in HTTP headers, for all HTTP listeners.
//!
//! | header | value | when |
//! |---|---|---|
//! | `X-RateLimit-Limit` | hits per window | a limit applied |
//! | `X-RateLimit-Remaining` | hits that would still pass | a limit applied |
//! | `X-RateLimit-Reset` | seconds until the full limit is available again | a limit applied |
//! | `X-RateLimit-Retry-After` | seconds, or `never` | refused |
//! | `Retry-After` | seconds, at least 1 (RFC 9110, 10.2.3) | refused, and waiting helps |
//! | `X-RateLimit-Soft-Breach` | `1` | admitted above a soft limit |
//! | `X-RateLimit-Delay` | seconds with milliseconds: `0.250` | admitted by a queue |
//! | `RateLimit-Policy` | `"name";q=100;w=60` per limit | a limit applied |
//! | `RateLimit` | `"name";r=42;t=12` per limit | a limit applied |
//!
//! `X-RateLimit-Soft-Breach` is that of envoyproxy/ratelimit#1215. The last two are those of
//! draft-ietf-httpapi-ratelimit-headers-10, structured fields (RFC 9651).
//! Times are rounded **up**, so a client that waits as long is never early. The `X-RateLimit-*`
//! headers describe the most restrictive descriptor: the refusal that lasts longest, else the limit
//! with the least remaining. Shadow rules are left out: clients must not slow down for a limit that
//! is only being tried. Of several limits of one name, as of two descriptors that one rule limits,
//! the last two headers have the most restrictive one: clients know a policy by its name.
//!
//! *Example*: 100 a minute and 10 a second on the rule `login`, the second of them refusing for
//! another 0.3 s:
//!
//! ```text
//! X-RateLimit-Limit: 10
//! X-RateLimit-Remaining: 0
//! X-RateLimit-Reset: 1
//! X-RateLimit-Retry-After: 1
//! Retry-After: 1
//! RateLimit-Policy: "login-1m";q=100;w=60, "login-1s";q=10;w=1
//! RateLimit: "login-1m";r=57;t=31, "login-1s";r=0;t=1
//! ```

use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt::Write;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use smallvec::SmallVec;
use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::units::Span;
use tidegate_rules::rule::Rule;

use crate::decide::{CheckResponse, Status, VerdictSource};

/// Hits per window of the most restrictive limit.
pub const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// Remaining hits of the most restrictive limit.
pub const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// Seconds until the most restrictive limit is fully available again.
pub const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// Seconds until the same request may pass, or `never`.
pub const RETRY: HeaderName = HeaderName::from_static("x-ratelimit-retry-after");
/// `1` on a request that is admitted above a soft limit.
pub const SOFT_BREACH: HeaderName = HeaderName::from_static("x-ratelimit-soft-breach");
/// Seconds an admitted request has to wait before it passes.
pub const DELAY: HeaderName = HeaderName::from_static("x-ratelimit-delay");
/// The policies that apply, in the form of the IETF draft.
pub const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// What remains of each policy, in the form of the IETF draft.
pub const CURRENT: HeaderName = HeaderName::from_static("ratelimit");

/// The value of [`SOFT_BREACH`].
pub const BREACHED: HeaderValue = HeaderValue::from_static("1");

/// Most items in the draft's two headers; further limits are left out of them. A header of some KiB
/// is more than proxies pass on.
pub const ITEMS_MAX: usize = 16;
/// Longest name of an item, in bytes; longer names are cut.
pub const NAME_BYTES_MAX: usize = 128;

/// Writes the headers of `response` into `headers`.
pub fn headers(response: &CheckResponse, headers: &mut HeaderMap) {
    if let Some(verdict) = most_restrictive(response) {
        headers.insert(LIMIT, verdict.limit.into());
        headers.insert(REMAINING, verdict.remaining.into());
        headers.insert(RESET, verdict.reset.as_secs_ceil().into());
        if !response.allowed {
            match verdict.retry {
                Retry::After(span) => {
                    let secs = span.as_secs_ceil().max(1);
                    headers.insert(RETRY, secs.into());
                    headers.insert(RETRY_AFTER, secs.into());
                }
                Retry::Never => {
                    headers.insert(RETRY, HeaderValue::from_static("never"));
                }
                Retry::Now => {}
            }
        }
        let (policy, current) = structured_fields(response);
        // Both consist of printable ASCII by construction; otherwise they would be left out.
        headers.extend(HeaderValue::try_from(policy).ok().map(|value| (POLICY, value)));
        headers.extend(HeaderValue::try_from(current).ok().map(|value| (CURRENT, value)));
    }
    if response.is_soft_limited() {
        headers.insert(SOFT_BREACH, BREACHED);
    }
    let delay = delay(response);
    if !delay.is_zero() {
        let millis = delay.as_millis_ceil();
        let text = format!("{}.{:03}", millis / 1_000, millis % 1_000);
        headers.extend(HeaderValue::try_from(text).ok().map(|value| (DELAY, value)));
    }
}

/// Why a request that would have to wait for longer than it may is refused.
pub const QUEUE_TOO_LONG: &str = "the queue is longer than a request may be held; try again later";

/// Why a request is refused that would pass as soon as others have ended.
pub const TOO_MANY_IN_FLIGHT: &str = "too many requests are in flight; try again later";

/// Why a request is refused, and when it may pass, in one line.
pub fn refusal(response: &CheckResponse) -> String {
    match most_restrictive(response).map_or(Retry::Now, |verdict| verdict.retry) {
        Retry::After(span) => {
            format!("over the limit; try again in {} s", span.as_secs_ceil().max(1))
        }
        Retry::Never => "over the limit; this costs more than the limit ever allows".to_owned(),
        Retry::Now => "over the limit".to_owned(),
    }
}

/// How long an admitted request has to wait before it passes: the longest of its queues.
pub fn delay(response: &CheckResponse) -> Span {
    if !response.allowed {
        return Span::ZERO;
    }
    verdicts(response).map(|limit| limit.verdict.delay).max().unwrap_or(Span::ZERO)
}

/// The most restrictive verdict of all descriptors, shadow rules aside.
pub fn most_restrictive(response: &CheckResponse) -> Option<&Verdict> {
    leading(response).map(|(_, verdict)| verdict)
}

/// The rule of that verdict.
pub fn leading_rule(response: &CheckResponse) -> Option<&Rule> {
    leading(response).and_then(|(status, _)| status.rule.as_deref())
}

fn leading(response: &CheckResponse) -> Option<(&Status, &Verdict)> {
    response
        .statuses
        .iter()
        .filter(|status| !is_shadow(status))
        .filter_map(|status| Some((status, status.leading_verdict()?)))
        .min_by_key(|(status, verdict)| restriction(status.allowed, verdict))
}

/// The smaller, the more restrictive.
fn restriction(is_allowed: bool, verdict: &Verdict) -> impl Ord + use<> {
    let wait = match verdict.retry {
        _ if is_allowed => Span::ZERO,
        Retry::Now => Span::ZERO,
        Retry::After(span) => span,
        Retry::Never => Span::MAX,
    };
    (is_allowed, Reverse(wait), verdict.remaining, Reverse(verdict.reset))
}

/// The names of the limits that refused, as in `RateLimit-Policy`.
pub fn violated(response: &CheckResponse) -> Vec<Cow<'_, str>> {
    let refusals = verdicts(response).filter(|limit| !limit.verdict.allowed);
    let mut names = Vec::new();
    for name in refusals.map(|limit| limit.name()) {
        if names.len() < ITEMS_MAX && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// `RateLimit-Policy` and `RateLimit`.
fn structured_fields(response: &CheckResponse) -> (String, String) {
    let (mut policy, mut current) = (String::new(), String::new());
    for (name, Limit { rule, index, verdict }) in items(response) {
        let window = rule.limits.get(index).map(tidegate_limiter::quota::Quota::window);
        let separator = if policy.is_empty() { "" } else { ", " };
        policy.push_str(separator);
        current.push_str(separator);
        push_string(&mut policy, &name);
        push_string(&mut current, &name);
        // Writing to a `String` cannot fail.
        let _ = write!(policy, ";q={}", verdict.limit);
        if let Some(window) = window {
            let _ = write!(policy, ";w={}", window.as_secs_ceil());
        }
        let _ = write!(current, ";r={};t={}", verdict.remaining, verdict.reset.as_secs_ceil());
    }
    (policy, current)
}

/// The limits of the two structured fields: of those with one name the most restrictive.
fn items(response: &CheckResponse) -> SmallVec<[(Cow<'_, str>, Limit<'_>); 2]> {
    let mut items: SmallVec<[(Cow<'_, str>, Limit<'_>); 2]> = SmallVec::new();
    for limit in verdicts(response) {
        let name = limit.name();
        let restriction = |it: &Limit<'_>| restriction(it.verdict.allowed, it.verdict);
        if let Some((_, shown)) = items.iter_mut().find(|it| written(&it.0) == written(&name)) {
            if restriction(&limit) < restriction(shown) {
                *shown = limit;
            }
        } else if items.len() < ITEMS_MAX {
            items.push((name, limit));
        }
    }
    items
}

/// A limit that applied.
#[derive(Clone, Copy)]
struct Limit<'r> {
    rule: &'r Rule,
    /// In its rule; [`IN_FLIGHT`] if it is about requests in flight.
    index: usize,
    verdict: &'r Verdict,
}

impl<'r> Limit<'r> {
    fn name(&self) -> Cow<'r, str> {
        self.rule.limit_name(self.index)
    }
}

/// No limit of a rule has this index.
const IN_FLIGHT: usize = usize::MAX;

/// All limits that applied except those of shadow rules.
fn verdicts(response: &CheckResponse) -> impl Iterator<Item = Limit<'_>> {
    response
        .statuses
        .iter()
        .filter(|status| !is_shadow(status))
        .filter_map(|status| Some((status, status.rule.as_deref()?)))
        .flat_map(|(status, rule)| {
            let of_limits = status.source != VerdictSource::InFlight;
            let index = move |index| if of_limits { index } else { IN_FLIGHT };
            let verdicts = status.verdicts.iter().enumerate();
            verdicts.map(move |(at, verdict)| Limit { rule, index: index(at), verdict })
        })
}

fn is_shadow(status: &Status) -> bool {
    status.rule.as_ref().is_some_and(|rule| rule.shadow)
}

/// What a name becomes in the two fields.
fn written(name: &str) -> &[u8] {
    name.as_bytes().get(..NAME_BYTES_MAX).unwrap_or(name.as_bytes())
}

/// A string of RFC 9651: printable ASCII in quotes. Other bytes are percent-encoded, so that
/// different names stay different.
fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for byte in written(text) {
        match *byte {
            byte @ (b'"' | b'\\') => {
                out.push('\\');
                out.push(char::from(byte));
            }
            byte @ b' '..=b'~' => out.push(char::from(byte)),
            byte => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out.push('"');
}

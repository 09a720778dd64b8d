//! From statuses to a [`Verdict`] with the fields that a node would send.
//!
//! `X-RateLimit-*` describe the most restrictive limit: the refusal that lasts longest, else the
//! limit with the least remaining. Shadow rules are left out: clients must not slow down for a
//! limit that is only being tried. Times are rounded up.
//!
//! *Example*: 100 a minute and 10 a second on the rule `login`, the second of them refusing for
//! another 0.3 s:
//!
//! ```text
//! X-RateLimit-Limit: 10, X-RateLimit-Remaining: 0, X-RateLimit-Reset: 1, Retry-After: 1
//! RateLimit-Policy: "login-1m";q=100;w=60, "login-1s";q=10;w=1
//! RateLimit: "login-1m";r=57;t=31, "login-1s";r=0;t=1
//! ```

use std::cmp::Reverse;
use std::ptr;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use smallvec::SmallVec;
use tidegate_limiter::engine::{Retry, Verdict as LimitVerdict};
use tidegate_limiter::units::Span;
use tidegate_rules::book::Rule;

use super::decide::{Status, is_allowed};
use super::policies::{Item, Rules};
use crate::structured::{ITEMS_MAX, SEPARATOR, push_current};
use crate::verdict::{CURRENT, LIMIT, POLICY, REMAINING, RESET, SOFT_BREACH, Verdict};

/// Room for the values of one limit.
const BYTES_USUAL: usize = 96;

/// A limit that clients see.
#[derive(Clone, Copy)]
struct Limit<'s> {
    rule: &'s Rule,
    /// Of its rule.
    index: usize,
    item: &'s Item,
    verdict: &'s LimitVerdict,
}

/// The limits of a check, in the order of the rules.
type Limits<'s> = SmallVec<[Limit<'s>; 2]>;

/// What the statuses of a check by `rules` mean for its sender.
#[inline]
pub(super) fn verdict(statuses: &[Status<'_>], rules: &Rules) -> Verdict {
    let allowed = is_allowed(statuses);
    let (mut limits, mut fields, mut is_soft_limited) = (Limits::new(), None, false);
    for Status { rule, verdicts, .. } in statuses.iter().filter(|status| !status.rule.shadow) {
        let Some(policy) = rules.policy(rule) else { continue };
        for (index, (item, verdict)) in policy.items.iter().zip(verdicts).enumerate() {
            limits.push(Limit { rule, index, item, verdict });
        }
        is_soft_limited |= rule.is_soft_limited(verdicts);
        fields.get_or_insert(&policy.fields);
    }
    let Some((leading, fields)) = limits.iter().min_by_key(|limit| restriction(limit)).zip(fields)
    else {
        return Verdict { allowed, ..Verdict::unlimited() };
    };
    let several = (limits.len() > 1).then(|| shown(&limits));
    let shown = several.as_ref().unwrap_or(&limits);
    let reset = leading.verdict.reset.as_secs_ceil();
    let mut verdict = Verdict {
        allowed,
        limit: Some(leading.verdict.limit.into()),
        remaining: Some(leading.verdict.remaining.into()),
        reset: Some(reset),
        fields: fields.clone(),
        ..Verdict::unlimited()
    };
    set_counts(&mut verdict.fields, leading.verdict, reset, shown);
    if limits.len() > 1 {
        verdict.fields.insert(LIMIT, leading.item.limit.clone());
    }
    if !limits.iter().all(|limit| ptr::eq(limit.rule, leading.rule)) {
        verdict.fields.extend(policies(shown).map(|policies| (POLICY, policies)));
    }
    if allowed {
        let delay = limits.iter().map(|limit| limit.verdict.delay).max();
        verdict.delay = delay.unwrap_or(Span::ZERO).to_std();
        if !verdict.delay.is_zero() {
            let counted = statuses.iter().filter(|it| !it.verdicts.is_empty() && it.is_within());
            verdict.counted = Some(counted.map(|status| status.at).collect());
        }
        if is_soft_limited {
            verdict.fields.insert(SOFT_BREACH, HeaderValue::from_static("1"));
        }
    } else {
        verdict.retry_after = leading.verdict.retry.after().map(Span::to_std);
        verdict.violated = violated(shown);
    }
    // The room of the second is that of a field of the response.
    match verdict.retry_after_secs() {
        Some(secs) => verdict.fields.insert(RETRY_AFTER, secs.into()),
        None => verdict.fields.remove(RETRY_AFTER),
    };
    verdict
}

/// Sets the fields that depend on the count; their values share one allocation.
#[inline]
fn set_counts(fields: &mut HeaderMap, leading: &LimitVerdict, reset: u64, limits: &Limits<'_>) {
    let mut text = String::with_capacity(BYTES_USUAL);
    text.push_str(itoa::Buffer::new().format(leading.remaining));
    let remaining_end = text.len();
    text.push_str(itoa::Buffer::new().format(reset));
    let reset_end = text.len();
    for (index, Limit { item, verdict, .. }) in limits.iter().take(ITEMS_MAX).enumerate() {
        text.push_str(if index > 0 { SEPARATOR } else { "" });
        text.push_str(item.name());
        push_current(&mut text, verdict.remaining.into(), verdict.reset.as_secs_ceil());
    }
    let text = Bytes::from(text);
    // Printable ASCII by construction; otherwise a field would be empty.
    let value = |value| {
        HeaderValue::from_maybe_shared::<Bytes>(value).unwrap_or(HeaderValue::from_static(""))
    };
    for (name, field) in fields {
        if *name == REMAINING {
            *field = value(text.slice(..remaining_end));
        } else if *name == RESET {
            *field = value(text.slice(remaining_end..reset_end));
        } else if *name == CURRENT {
            *field = value(text.slice(reset_end..));
        }
    }
}

/// `RateLimit-Policy` of several rules.
fn policies(limits: &Limits<'_>) -> Option<HeaderValue> {
    let items: Vec<&str> = limits.iter().take(ITEMS_MAX).map(|limit| &*limit.item.text).collect();
    HeaderValue::try_from(items.join(SEPARATOR)).ok()
}

/// The names of the limits that refused.
fn violated(limits: &Limits<'_>) -> Vec<String> {
    let refusals = limits.iter().filter(|limit| !limit.verdict.allowed);
    refusals.take(ITEMS_MAX).map(|limit| limit.rule.limit_name(limit.index).into_owned()).collect()
}

/// The limits that clients are shown: of those with one name, as of two descriptors that one rule
/// limits, the most restrictive.
fn shown<'s>(limits: &Limits<'s>) -> Limits<'s> {
    let is_shown = |(index, limit): &(usize, &Limit<'_>)| {
        !limits.iter().enumerate().any(|(at, other)| {
            at != *index
                && other.item.name() == limit.item.name()
                && (restriction(other), at) < (restriction(limit), *index)
        })
    };
    limits.iter().enumerate().filter(is_shown).map(|(_, limit)| *limit).collect()
}

/// The smaller, the more restrictive.
fn restriction(limit: &Limit<'_>) -> impl Ord + use<> {
    let LimitVerdict { allowed, retry, remaining, reset, .. } = *limit.verdict;
    let wait = match retry {
        Retry::Now => Span::ZERO,
        Retry::After(span) => span,
        Retry::Never => Span::MAX,
    };
    (allowed, Reverse(wait), remaining, Reverse(reset))
}

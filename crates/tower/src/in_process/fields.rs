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

use std::borrow::Cow;
use std::cmp::Reverse;

use http::header::RETRY_AFTER;
use tidegate_limiter::engine::{Retry, Verdict as LimitVerdict};
use tidegate_limiter::units::Span;
use tidegate_rules::book::Rule;

use super::decide::{Status, is_allowed};
use crate::structured::{Fields, ITEMS_MAX, Item};
use crate::verdict::{LIMIT, REMAINING, RESET, Verdict};

/// The fields of one limit, and room for `Retry-After`.
const FIELDS_USUAL: usize = 6;

/// What the statuses of a check mean for its sender.
pub(super) fn verdict(statuses: &[Status<'_>]) -> Verdict {
    let mut verdict = Verdict { allowed: is_allowed(statuses), ..Verdict::unlimited() };
    let Some(leading) = limits(statuses).map(|(_, _, it)| it).min_by_key(|it| restriction(it))
    else {
        return verdict;
    };
    let reset = leading.reset.as_secs_ceil();
    verdict.limit = Some(leading.limit.into());
    verdict.remaining = Some(leading.remaining.into());
    verdict.reset = Some(reset);
    verdict.fields.reserve_exact(FIELDS_USUAL);
    verdict.fields.push((LIMIT, leading.limit.into()));
    verdict.fields.push((REMAINING, leading.remaining.into()));
    verdict.fields.push((RESET, reset.into()));
    if verdict.allowed {
        let delay = limits(statuses).map(|(_, _, it)| it.delay).max();
        verdict.delay = delay.unwrap_or(Span::ZERO).to_std();
    } else {
        verdict.retry_after = leading.retry.after().map(Span::to_std);
        let secs = verdict.retry_after_secs();
        verdict.fields.extend(secs.map(|secs| (RETRY_AFTER, secs.into())));
        let refusals = limits(statuses).filter(|(_, _, it)| !it.allowed);
        let names = refusals.map(|(rule, index, _)| name(rule, index).into_owned());
        verdict.violated = names.take(ITEMS_MAX).collect();
    }
    let mut fields = Fields::new();
    for (rule, index, it) in limits(statuses) {
        fields.add(&Item {
            name: &name(rule, index),
            quota: it.limit.into(),
            window: rule.limits.get(index).map(|quota| quota.window().as_secs_ceil()),
            remaining: it.remaining.into(),
            reset: it.reset.as_secs_ceil(),
        });
    }
    verdict.fields.extend(fields.finish());
    verdict
}

/// All limits but those of shadow rules: the rule, its index in it, and its verdict.
fn limits<'s>(
    statuses: &'s [Status<'_>],
) -> impl Iterator<Item = (&'s Rule, usize, &'s LimitVerdict)> {
    statuses.iter().filter(|status| !status.rule.shadow).flat_map(|status| {
        let verdicts = status.verdicts.iter().enumerate();
        verdicts.map(|(index, verdict)| (status.rule, index, verdict))
    })
}

/// The smaller, the more restrictive.
fn restriction(verdict: &LimitVerdict) -> impl Ord + use<> {
    let wait = match verdict.retry {
        Retry::Now => Span::ZERO,
        Retry::After(span) => span,
        Retry::Never => Span::MAX,
    };
    (verdict.allowed, Reverse(wait), verdict.remaining, Reverse(verdict.reset))
}

/// The name of a limit: that of its rule, with the window if the rule has several.
fn name(rule: &Rule, index: usize) -> Cow<'_, str> {
    let name = rule.name.as_deref().unwrap_or(&rule.id);
    match rule.limits.get(index) {
        Some(quota) if rule.limits.len() > 1 => format!("{name}-{}", quota.window()).into(),
        _ => name.into(),
    }
}

//! `rate_limit`: one limit or a list of them, and the policy that applies to them.

use std::sync::Arc;

use tidegate_limiter::engine::grant;
use tidegate_limiter::policy::{Durability, Mode, OnUnavailable, Scope};
use tidegate_limiter::quota::{self, Algorithm, Quota, QuotaParts, SUB_WINDOWS_MAX};
use tidegate_limiter::soft_limit::SoftLimit;
use tidegate_limiter::units::Span;

use super::error::{Error, Reason, Warnings};
use super::fields::Fields;
use super::keys::Section;
use super::rule::{Defaults, InFlightLimits, Rule};
use super::yaml::{Kind, Node};

/// Most limits of one rule. They are decided together under one lock.
pub(super) const LIMITS_MAX: usize = 8;
/// What holds for all limits of a rule alike.
const POLICY: [&str; 4] = ["mode", "scope", "on_unavailable", "durability"];
/// The words of `scope`.
pub(super) const SCOPES: [(&str, Scope); 2] =
    [("region", Scope::Region), ("global", Scope::Global)];
/// The words of `on_unavailable`.
pub(super) const FALLBACKS: [(&str, OnUnavailable); 3] = [
    ("allow", OnUnavailable::Allow),
    ("deny", OnUnavailable::Deny),
    ("local", OnUnavailable::Local),
];
/// The words of `durability`.
pub(super) const DURABILITIES: [(&str, Durability); 2] =
    [("async", Durability::Async), ("replicated", Durability::Replicated)];
const DAY: u64 = 86_400;
/// The words of `unit`, and their seconds.
pub(super) const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3_600),
    ("day", DAY),
    ("week", 7 * DAY),
    ("month", 30 * DAY),
    ("year", 365 * DAY),
];

/// Reads the `rate_limit` of a descriptor into the rule `id`; `None` when it has none.
pub(super) fn read<'a>(
    id: &str,
    descriptor: &Fields<'a>,
    defaults: &Defaults,
    warnings: &mut Warnings,
) -> Result<Option<Rule>, Error> {
    let in_flight = read_in_flight(descriptor)?;
    let Some(node) = descriptor.node("rate_limit") else {
        if in_flight.is_limited() {
            return Ok(Some(Rule { in_flight, ..policy(id, &[descriptor], defaults)? }));
        }
        warn_without_limit(descriptor, warnings);
        return Ok(None);
    };
    let (mappings, is_list) = match &node.kind {
        Kind::List(elements) => (&**elements, true),
        Kind::Map(_) | Kind::Scalar(_) => (std::slice::from_ref(node), false),
    };
    if mappings.is_empty() || mappings.len() > LIMITS_MAX {
        return Err(descriptor.error("rate_limit", Reason::LimitCount(mappings.len())));
    }
    let file = descriptor.file;
    let read = |mapping: &'a Node| Fields::read(file, mapping, Section::RateLimit, warnings);
    let limits: Vec<Fields<'a>> = mappings.iter().map(read).collect::<Result<_, _>>()?;

    let sources: Vec<&Fields<'a>> = std::iter::once(descriptor).chain(&limits).collect();
    let mut rule = policy(id, &sources, defaults)?;
    warn_of_shared_policy(descriptor, &limits, warnings);

    let (mut replaces, mut soft_limits) = (Vec::new(), Vec::new());
    for limit in &limits {
        match read_quota(limit, rule.mode, warnings)? {
            Some(quota) if rule.limits.iter().any(|other| share_a_counter(other, &quota)) => {
                return Err(limit.error(window_key(limit), Reason::SameCounter));
            }
            Some(quota) => {
                rule.limits.push(quota);
                soft_limits.push(read_soft_limit(limit, &quota)?);
            }
            None if is_list && limits.len() > 1 => {
                return Err(limit.error("unlimited", Reason::UnlimitedInList));
            }
            None => warn_without_quota(limit, warnings),
        }
        let own = limit.text("name")?.filter(|name| !name.is_empty());
        read_replaces(limit, own.unwrap_or_default(), warnings, &mut replaces)?;
        rule.name = rule.name.or_else(|| own.map(Arc::from));
    }
    rule.replaces = replaces.into();
    rule.in_flight = in_flight;
    if soft_limits.iter().any(Option::is_some) {
        rule.soft_limits = soft_limits.into();
    }
    warn_of_strict_lease(&rule, &sources, warnings);
    Ok(Some(rule))
}

fn read_in_flight(descriptor: &Fields<'_>) -> Result<InFlightLimits, Error> {
    let read = |key| descriptor.integer(key, 1, u32::MAX);
    Ok(InFlightLimits { everywhere: read("concurrency")?, at_node: read("node_concurrency")? })
}

/// Policy is not inherited: what a descriptor sets applies to its own limit only.
fn warn_without_limit(descriptor: &Fields<'_>, warnings: &mut Warnings) {
    let others = ["shadow_mode", "quota_mode", "detailed_metric", "metadata"];
    for key in POLICY.into_iter().chain(others) {
        if descriptor.node(key).is_some() {
            let text = "has no effect: this descriptor has no rate_limit of its own";
            warnings.add(descriptor.warning(key, text));
        }
    }
    if descriptor.is_given("rate_limit") {
        warnings.add(descriptor.warning("rate_limit", "is empty: nothing is limited here"));
    }
}

fn warn_without_quota(limit: &Fields<'_>, warnings: &mut Warnings) {
    if limit.node("soft_limit").is_some() {
        warnings.add(limit.warning("soft_limit", "has no effect: nothing is limited here"));
    }
}

/// A limit that is meant to have a policy of its own needs a descriptor of its own.
fn warn_of_shared_policy(descriptor: &Fields<'_>, limits: &[Fields<'_>], warnings: &mut Warnings) {
    for key in POLICY.into_iter().filter(|key| descriptor.node(key).is_none()) {
        let mut giving = limits.iter().filter(|limit| limit.node(key).is_some());
        if let Some(first) = giving.next()
            && giving.count() + 1 < limits.len()
        {
            let text = "applies to all limits of this descriptor; write it there";
            warnings.add(first.warning(key, text));
        }
    }
}

/// A log and a queue grant nothing, and the limits of a rule are granted together.
fn warn_of_strict_lease(rule: &Rule, sources: &[&Fields<'_>], warnings: &mut Warnings) {
    if rule.mode == Mode::Leased
        && !rule.limits.iter().all(grant::can_grant)
        && let Some(source) = sources.iter().find(|source| source.node("mode").is_some())
    {
        let text = "is strict in effect: a log or a queue grants no hits to other nodes";
        warnings.add(source.warning("mode", text));
    }
}

/// The rule `id` with the policy that the descriptor or any of its limits sets; they must not
/// differ. Eventual limits are counted everywhere and have no owner that could wait for a replica.
fn policy(id: &str, sources: &[&Fields<'_>], defaults: &Defaults) -> Result<Rule, Error> {
    let mut rule = Rule::usual(id.into());
    let mode = agreed(sources, "mode", &Mode::ALL.map(|mode| (mode.name(), mode)))?;
    rule.mode = mode.map_or(defaults.mode, |(mode, _)| mode);
    if let Some((scope, source)) = agreed(sources, "scope", &SCOPES)? {
        rule.scope = scope;
        if (rule.mode, scope) == (Mode::Eventual, Scope::Global) {
            return Err(source.error("scope", Reason::GlobalEventual));
        }
    }
    let fallback = agreed(sources, "on_unavailable", &FALLBACKS)?;
    rule.on_unavailable = fallback.map_or(defaults.on_unavailable, |(fallback, _)| fallback);
    if let Some((durability, source)) = agreed(sources, "durability", &DURABILITIES)? {
        rule.durability = durability;
        if (rule.mode, durability) == (Mode::Eventual, Durability::Replicated) {
            return Err(source.error("durability", Reason::DurableEventual));
        }
    }
    Ok(rule)
}

/// The value that the sources give, and the first that gives it.
fn agreed<'s, 'a, T: Copy + PartialEq>(
    sources: &[&'s Fields<'a>],
    key: &'static str,
    choices: &[(&str, T)],
) -> Result<Option<(T, &'s Fields<'a>)>, Error> {
    let mut found: Option<(T, &'s Fields<'a>)> = None;
    for source in sources {
        match (source.choice(key, choices)?, &found) {
            (Some(value), Some((first, _))) if value != *first => {
                return Err(source.error(key, Reason::Contradiction));
            }
            (Some(value), None) => found = Some((value, source)),
            _ => {}
        }
    }
    Ok(found)
}

/// The quota of one mapping; `None` when it is unlimited.
fn read_quota(
    limit: &Fields<'_>,
    mode: Mode,
    warnings: &mut Warnings,
) -> Result<Option<Quota>, Error> {
    let unit_name = limit.text("unit")?.unwrap_or_default();
    let unit = calendar_unit(unit_name);
    let window = limit.text("window")?;
    let multiplier = limit.integer("unit_multiplier", 1, u32::MAX)?;
    if limit.flag("unlimited")? {
        return match (unit, window, multiplier) {
            (None, None, None) => Ok(None),
            _ => Err(limit.error(window_key(limit), Reason::UnitWhenUnlimited)),
        };
    }
    let window = match (unit, window) {
        (_, Some(_)) if !unit_name.is_empty() => {
            return Err(limit.error("window", Reason::UnitAndWindow));
        }
        (_, Some(_)) if multiplier.is_some() => {
            return Err(limit.error("unit_multiplier", Reason::MultiplierAndWindow));
        }
        (_, Some(text)) => {
            text.parse().map_err(|_| limit.error("window", Reason::Duration(text.into())))?
        }
        (Some(unit), None) => times(unit, multiplier.unwrap_or(1)),
        (None, None) => return Err(limit.error("unit", Reason::Unit(unit_name.into()))),
    };
    let algorithm = read_algorithm(limit, mode)?;
    let per_unit = limit.integer("requests_per_unit", 0, u32::MAX)?;
    if per_unit.is_none() {
        let text = "is missing, which means 0: every hit is refused";
        warnings.add(limit.warning("requests_per_unit", text));
    }
    let per_unit = per_unit.unwrap_or(0);
    Quota::new(QuotaParts {
        algorithm,
        limit: per_unit,
        window,
        burst: limit.integer("burst", 0, u32::MAX)?.unwrap_or(per_unit),
        sub_windows: limit.integer("sub_windows", 1, SUB_WINDOWS_MAX)?.unwrap_or(1),
        queue: limit.integer("queue", 0, u32::MAX)?,
    })
    .map(Some)
    .map_err(|error| limit.error(key_of(error, limit), Reason::Quota(error)))
}

/// `80%` of what the limit holds, or a number of hits.
fn read_soft_limit(limit: &Fields<'_>, quota: &Quota) -> Result<Option<SoftLimit>, Error> {
    let Some(text) = limit.text("soft_limit")? else { return Ok(None) };
    let soft = if let Some(percent) = text.strip_suffix('%') {
        percent.parse().ok().and_then(|percent| SoftLimit::percent(percent, quota))
    } else {
        let hits = limit.integer("soft_limit", 0, u32::MAX).ok().flatten();
        hits.and_then(|hits| SoftLimit::hits(hits, quota))
    };
    let capacity = quota.capacity();
    soft.map(Some)
        .ok_or_else(|| limit.error("soft_limit", Reason::SoftLimit { text: text.into(), capacity }))
}

fn read_algorithm(limit: &Fields<'_>, mode: Mode) -> Result<Algorithm, Error> {
    let choices = Algorithm::ALL.map(|algorithm| (algorithm.name(), algorithm));
    let named = limit.choice("algorithm", &choices)?;
    match (mode, named) {
        (Mode::Strict | Mode::Leased, named) => Ok(named.unwrap_or(Algorithm::FixedWindow)),
        (Mode::Eventual, None) => Ok(Algorithm::SlidingWindowCounter),
        (_, Some(known @ (Algorithm::FixedWindow | Algorithm::SlidingWindowCounter))) => Ok(known),
        (_, Some(other)) => Err(limit.error("algorithm", Reason::NotEventual(other))),
    }
}

/// `replaces` names other rules.
fn read_replaces(
    limit: &Fields<'_>,
    own_name: &str,
    warnings: &mut Warnings,
    into: &mut Vec<Arc<str>>,
) -> Result<(), Error> {
    for node in limit.list("replaces", "a list of `- name: OTHER`")? {
        let other = Fields::read(limit.file, node, Section::Replaces, warnings)?;
        match other.text("name")?.unwrap_or_default() {
            "" => return Err(other.error("name", Reason::EmptyReplaces)),
            name if name == own_name => return Err(other.error("name", Reason::ReplacesItself)),
            name => into.push(name.into()),
        }
    }
    Ok(())
}

/// Whether two limits of one descriptor count the same thing: all that the key of the counter is
/// made of is equal, except `sub_windows`, which is only accuracy.
fn share_a_counter(a: &Quota, b: &Quota) -> bool {
    (a.algorithm(), a.window(), a.queue().is_some())
        == (b.algorithm(), b.window(), b.queue().is_some())
}

fn window_key(limit: &Fields<'_>) -> &'static str {
    let has = |key: &&'static str| limit.node(key).is_some();
    ["window", "unit_multiplier"].into_iter().find(has).unwrap_or("unit")
}

/// Longer than any window if it cannot be represented.
fn times(unit: Span, multiplier: u32) -> Span {
    Span::from_nanos(unit.as_nanos().saturating_mul(multiplier.into()))
}

/// The key whose value made the quota invalid.
fn key_of(error: quota::Error, limit: &Fields<'_>) -> &'static str {
    match error {
        quota::Error::Window { .. } => window_key(limit),
        quota::Error::SubWindowsUnused(_) | quota::Error::SubWindows(_) => "sub_windows",
        quota::Error::QueueUnused(_) | quota::Error::QueueTooLong(_) => "queue",
        quota::Error::Drain { .. } if limit.node("queue").is_some() => "queue",
        quota::Error::BurstUnused(_)
        | quota::Error::BurstZero
        | quota::Error::QueueWithBurst
        | quota::Error::Drain { .. } => "burst",
        quota::Error::LogTooLong(_) => "requests_per_unit",
    }
}

/// The length of a calendar unit, in any case, as envoyproxy/ratelimit counts it: a month is 30
/// days, a year 365. `None` for everything else, including its `unknown`.
fn calendar_unit(name: &str) -> Option<Span> {
    UNITS
        .iter()
        .find(|(unit, _)| unit.eq_ignore_ascii_case(name))
        .map(|&(_, secs)| Span::from_secs(secs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendar_units_are_envoys() {
        assert_eq!(calendar_unit("MiNuTe"), Some(Span::from_secs(60)));
        assert_eq!(calendar_unit("month"), Some(Span::from_secs(2_592_000)));
        for name in ["", "seconds", "unknown", " minute"] {
            assert_eq!(calendar_unit(name), None, "{name}");
        }
    }
}

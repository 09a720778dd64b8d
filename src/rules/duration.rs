//! Lengths of time as rule files write them.

use crate::units::{NANOS_PER_SEC, Span};

/// The length of a calendar unit, in any case, as envoyproxy/ratelimit counts it: a month is 30
/// days, a year 365. `None` for everything else, its `unknown` too.
pub(super) fn unit(name: &str) -> Option<Span> {
    const DAY: u64 = 86_400;
    const UNITS: [(&str, u64); 7] = [
        ("second", 1),
        ("minute", 60),
        ("hour", 3_600),
        ("day", DAY),
        ("week", 7 * DAY),
        ("month", 30 * DAY),
        ("year", 365 * DAY),
    ];
    UNITS
        .iter()
        .find(|(unit, _)| unit.eq_ignore_ascii_case(name))
        .map(|&(_, secs)| Span::from_secs(secs))
}

/// A duration: one or more numbers with their units, `90s`, `5m`, `1h30m`, `7d`. `None` when it is
/// none, or longer than can be told.
pub(super) fn window(text: &str) -> Option<Span> {
    if text.is_empty() {
        return None;
    }
    let mut rest = text;
    let mut nanos: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = split_after(rest, |c| c.is_ascii_digit());
        let (unit, after) = split_after(after, |c| c.is_ascii_alphabetic());
        let part = number.parse::<u64>().ok()?.checked_mul(unit_nanos(unit)?)?;
        nanos = nanos.checked_add(part)?;
        rest = after;
    }
    Some(Span::from_nanos(nanos))
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ms" => 1_000_000,
        "s" => NANOS_PER_SEC,
        "m" => 60 * NANOS_PER_SEC,
        "h" => 3_600 * NANOS_PER_SEC,
        "d" => 86_400 * NANOS_PER_SEC,
        "w" => 7 * 86_400 * NANOS_PER_SEC,
        _ => return None,
    })
}

/// The longest beginning of `text` whose characters all fit, and the rest.
fn split_after(text: &str, fits: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !fits(c)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_sums_of_numbers_with_units() {
        for (text, secs) in
            [("90s", 90), ("5m", 300), ("1h30m", 5_400), ("7d", 604_800), ("1w", 604_800)]
        {
            assert_eq!(window(text), Some(Span::from_secs(secs)), "{text}");
        }
        assert_eq!(window("1500ms"), Some(Span::from_millis(1500)));
        for text in ["", "90", "s", "90 s", "-5s", "1.5h", "5M", "99999999999999999999s", "ſ"] {
            assert_eq!(window(text), None, "{text}");
        }
        assert_eq!(window("18446744073709551615d"), None);
    }

    #[test]
    fn calendar_units_are_envoys() {
        assert_eq!(unit("MiNuTe"), Some(Span::from_secs(60)));
        assert_eq!(unit("month"), Some(Span::from_secs(2_592_000)));
        for name in ["", "seconds", "unknown", " minute"] {
            assert_eq!(unit(name), None, "{name}");
        }
    }
}

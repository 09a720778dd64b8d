//! The calendar units of rule files.

use tidegate_limiter::units::Span;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendar_units_are_envoys() {
        assert_eq!(unit("MiNuTe"), Some(Span::from_secs(60)));
        assert_eq!(unit("month"), Some(Span::from_secs(2_592_000)));
        for name in ["", "seconds", "unknown", " minute"] {
            assert_eq!(unit(name), None, "{name}");
        }
    }
}

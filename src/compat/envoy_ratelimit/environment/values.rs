//! Values in the syntax of Go's `strconv`, `time`, envconfig and logrus.

use std::time::Duration;

/// A boolean: `1`, `t`, `T`, `TRUE`, `true`, `True` and their opposites.
pub fn flag(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// The level here of one of logrus.
pub fn level(name: &str) -> Option<&'static str> {
    Some(match name.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => "error",
        "warn" | "warning" => "warn",
        "info" => "info",
        "debug" => "debug",
        "trace" => "trace",
        _ => return None,
    })
}

/// An integer: decimal, or `0x`, `0o`, `0b` and `0` (octal) in front. Underscores are rejected.
pub(super) fn integer(text: &str) -> Option<i64> {
    let (is_negative, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => (text.starts_with('-'), digits),
        None => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixes = [("0x", 16), ("0b", 2), ("0o", 8), ("0", 8)];
    let mut prefixed = prefixes.iter().filter_map(|(prefix, radix)| {
        lower.strip_prefix(prefix).filter(|rest| !rest.is_empty()).map(|rest| (rest, *radix))
    });
    let (digits, radix) = prefixed.next().unwrap_or((&lower, 10));
    // `from_str_radix` accepts a sign, but it has been read already.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let amount = i64::from_str_radix(digits, radix).ok()?;
    Some(if is_negative { -amount } else { amount })
}

/// A fraction, such as `0.8`.
pub(super) fn ratio(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// A duration such as `10s`, `1h30m` or `0`, in milliseconds, rounded up.
pub(super) fn duration_ms(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text == "0" {
        return Some(0);
    }
    let (mut rest, mut ns) = (text, 0.0_f64);
    while !rest.is_empty() {
        let end = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let end = rest.find(|char: char| char.is_ascii_digit() || char == '.');
        let (unit, after) = rest.split_at(end.unwrap_or(rest.len()));
        ns += number
            * match unit {
                "ns" => 1.0,
                "us" | "µs" | "μs" => 1e3,
                "ms" => 1e6,
                "s" => 1e9,
                "m" => 60e9,
                "h" => 3_600e9,
                _ => return None,
            };
        rest = after;
    }
    // Go keeps nanoseconds in 63 bits.
    let is_valid = !text.is_empty() && ns < 9.2e18;
    let ns = Duration::try_from_secs_f64(ns / 1e9).ok().filter(|_| is_valid)?.as_nanos();
    u64::try_from(ns.div_ceil(1_000_000)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_go_reads_them() {
        for (text, value) in [("true", Some(true)), ("T", Some(true)), ("0", Some(false))] {
            assert_eq!(flag(text), value);
        }
        for text in ["yes", "on", "tRUE", " true"] {
            assert_eq!(flag(text), None, "{text}");
        }
        for (text, value) in [
            ("8080", 8080),
            ("+1", 1),
            ("-5", -5),
            ("0x1F", 31),
            ("010", 8),
            ("0o10", 8),
            ("0b11", 3),
            ("0", 0),
        ] {
            assert_eq!(integer(text), Some(value), "{text}");
        }
        for text in ["", "8080/tcp", "1.5", "0x", "--1", "0x-1", "9223372036854775808"] {
            assert_eq!(integer(text), None, "{text}");
        }
        assert_eq!(
            (ratio("0.8"), ratio("1e-1"), ratio("NaN"), ratio("x")),
            (Some(0.8), Some(0.1), None, None)
        );
    }

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, ms) in [
            ("0", 0),
            ("10s", 10_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1_500),
            ("0.067s", 67),
            ("150us", 1),
            ("24h", 86_400_000),
        ] {
            assert_eq!(duration_ms(text), Some(ms), "{text}");
        }
        for text in ["", "10", "s", "10 s", "1d", "-1s", "1.2.3s", "99999999999h"] {
            assert_eq!(duration_ms(text), None, "{text}");
        }
    }
}

//! The value of a scalar where a number or a boolean is expected.
//!
//! The table is YAML 1.1's as the Go YAML library (v2) reads it: `1_000` is 1000, `0x10` is 16,
//! `0123` is 83, `yes` and `on` are true, `1e3`, `.5` and `089` are numbers but not integers, a
//! date is text. Example: `089` starts like an octal number but is not one, so it is read as a
//! decimal fraction, which rule files reject.

use std::sync::Arc;

/// A leaf: its text, and whether it was quoted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar {
    /// The text, unquoted and unescaped, otherwise as written.
    pub text: Arc<str>,
    /// Text regardless of its form: quoted, a block, or tagged `!!str`.
    pub is_text: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Empty, `~` or `null`.
    Null,
    /// `true`, `yes`, `on`, `y` and their opposites.
    Bool(bool),
    /// An integer that fits.
    Int(i64),
    /// A number that is no integer, or does not fit into 64 bits.
    OtherNumber,
    Text,
}

impl Scalar {
    pub fn meaning(&self) -> Meaning {
        if self.is_text { Meaning::Text } else { meaning(&self.text) }
    }

    /// The nearest double; NaN when the scalar is not a number.
    pub fn number(&self) -> f64 {
        let (text, sign) = match self.text.strip_prefix('-') {
            Some(magnitude) => (magnitude, -1.0),
            None => (self.text.strip_prefix('+').unwrap_or(&self.text), 1.0),
        };
        let digits = text.replace('_', "");
        if matches!(&*digits, ".inf" | ".Inf" | ".INF") {
            return sign * f64::INFINITY;
        }
        #[expect(clippy::cast_precision_loss, reason = "the caller asks for a double")]
        let whole = integer(&digits).map(|magnitude| magnitude as f64);
        sign * whole.or_else(|| digits.parse().ok()).unwrap_or(f64::NAN)
    }
}

fn meaning(text: &str) -> Meaning {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Meaning::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Meaning::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Meaning::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Meaning::OtherNumber,
        _ => {}
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        return Meaning::OtherNumber;
    }
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Meaning::Text;
    }
    let digits = unsigned.replace('_', "");
    match integer(&digits) {
        Some(magnitude) => {
            let signed = i128::from(magnitude);
            let signed = if text.starts_with('-') { -signed } else { signed };
            i64::try_from(signed).map_or(Meaning::OtherNumber, Meaning::Int)
        }
        None if is_decimal(&digits) => Meaning::OtherNumber,
        None => Meaning::Text,
    }
}

/// An integer in base 10, or in the base that its prefix names.
fn integer(digits: &str) -> Option<u64> {
    let (digits, base) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&digits[2..], 16),
        [b'0', b'b' | b'B', ..] => (&digits[2..], 2),
        [b'0', b'o' | b'O', ..] => (&digits[2..], 8),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    // `from_str_radix` would take a second sign.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    u64::from_str_radix(digits, base).ok()
}

/// `digits [. digits] [e [sign] digits]`, with a digit on at least one side of the point.
fn is_decimal(text: &str) -> bool {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let is_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mantissa_is_number =
        is_digits(whole) && is_digits(fraction) && !(whole.is_empty() && fraction.is_empty());
    let exponent_is_number = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !digits.is_empty() && is_digits(digits)
    });
    mantissa_is_number && exponent_is_number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_mean_what_yaml_1_1_says() {
        for (text, expected) in [
            ("", Meaning::Null),
            ("~", Meaning::Null),
            ("yes", Meaning::Bool(true)),
            ("Off", Meaning::Bool(false)),
            ("12", Meaning::Int(12)),
            ("-12", Meaning::Int(-12)),
            ("1_000", Meaning::Int(1000)),
            ("0x10", Meaning::Int(16)),
            ("0b11", Meaning::Int(3)),
            ("0123", Meaning::Int(83)),
            ("0", Meaning::Int(0)),
            ("089", Meaning::OtherNumber),
            ("1.5", Meaning::OtherNumber),
            ("5.", Meaning::OtherNumber),
            (".5", Meaning::OtherNumber),
            ("1e3", Meaning::OtherNumber),
            ("-.inf", Meaning::OtherNumber),
            ("99999999999999999999", Meaning::OtherNumber),
            ("9223372036854775807", Meaning::Int(i64::MAX)),
            ("-9223372036854775808", Meaning::Int(i64::MIN)),
            ("2020-01-01", Meaning::Text),
            ("1.2.3.4", Meaning::Text),
            ("10s", Meaning::Text),
            (".", Meaning::Text),
            ("+", Meaning::Text),
            ("--1", Meaning::Text),
            ("0x", Meaning::Text),
            ("1e", Meaning::Text),
            ("yEs", Meaning::Text),
        ] {
            assert_eq!(meaning(text), expected, "{text:?}");
        }
    }

    #[test]
    fn quoted_scalars_are_text_whatever_they_look_like() {
        assert_eq!(Scalar { text: "12".into(), is_text: true }.meaning(), Meaning::Text);
    }
}
